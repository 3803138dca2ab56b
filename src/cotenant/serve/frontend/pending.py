"""A request between its arrival and its response."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final, NamedTuple, Protocol

from cotenant.serve.frontend.statistics import ModelStatistics
from cotenant.serve.model.event import ModelSpec, RejectReason
from cotenant.serve.protocol.oip.infer import CheckedRequest, InferError, InferRequest, ModelSignature
from cotenant.serve.protocol.oip.infer_json import ResponseOutput
from cotenant.serve.runtime.model import LoadedModel
from cotenant.serve.runtime.threads import ResponseFlow, RunResult
from cotenant.units.instant import Duration, Instant

REFUSED_AS: Final = {
    RejectReason.UNKNOWN_MODEL: "not-found",
    RejectReason.NOT_READY: "unavailable",
    RejectReason.QUEUE_FULL: "exhausted",
    RejectReason.TOO_LATE: "late",
    RejectReason.OVER_SHARE: "exhausted",
    RejectReason.DRAINING: "unavailable",
    RejectReason.TOO_MANY_ROWS: "invalid",
}
"""Kind of the error that the client gets."""
_SHAPES_LIMIT: Final = 4096
_next_number: Final = itertools.count(1)


class ShapeNumbers:
    """Assigns numbers to the row shapes of a model's requests; two shapes never have the same number."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        """Start without shapes."""
        self._numbers: dict[tuple[tuple[int, ...], ...], int] = {}

    def number(self, shapes: tuple[tuple[int, ...], ...]) -> int:
        """Return the number of these shapes."""
        shape_number = self._numbers.get(shapes)
        if shape_number is None:
            if len(self._numbers) >= _SHAPES_LIMIT:
                # Numbers are never reused: requests of a forgotten shape only cannot share a run with earlier ones.
                self._numbers.clear()
            shape_number = self._numbers[shapes] = next(_next_number)
        return shape_number


class Reply(Protocol):
    """Destination of a request's responses."""

    streams: bool
    """Whether it accepts any number of responses."""

    def send_response(self, request: InferRequest, spec: ModelSpec, outputs: list[ResponseOutput]) -> None:
        """Send the response; for a decoupled model, one of several."""
        ...

    def send_error(self, error: InferError) -> None:
        """Send an error instead of a response."""
        ...

    def end(self) -> None:
        """Note that a decoupled model has sent all its responses."""
        ...


class ServedModel(NamedTuple):
    """A served model with the data that its requests share."""

    model: LoadedModel
    signature: ModelSignature
    statistics: ModelStatistics
    shape_numbers: ShapeNumbers


class PendingRequest:
    """A valid request; `reply` is None after the client has gone."""

    __slots__ = (
        *("admitted", "arrived", "checked", "statistics", "response_flow", "model", "number", "result"),
        *("limit_ns", "reply", "request", "size_bytes", "started"),
    )

    def __init__(
        self,
        request: InferRequest,
        model: LoadedModel,
        checked: CheckedRequest,
        statistics: ModelStatistics,
        reply: Reply,
    ) -> None:
        """Start unscheduled."""
        self.request = request
        self.model = model
        self.checked = checked
        self.statistics = statistics
        self.reply: Reply | None = reply
        self.number = 0
        self.size_bytes = 0
        self.limit_ns: Duration = 0
        """Latency objective or timeout; zero: none."""
        self.admitted = False
        self.response_flow: ResponseFlow | None = None
        self.result: RunResult | None = None
        """Result of its run, after the run has ended."""
        self.arrived: Instant = 0
        self.started: Instant = 0


def error_of(error: Exception) -> InferError:
    """Return an `InferError` as it is, and any other exception as an internal error."""
    if isinstance(error, InferError):
        return error
    description = f"{type(error).__name__}: {str(error)[:500]}"
    asyncio.get_running_loop().call_exception_handler(
        {"message": "a request failed with an internal error", "exception": error}
    )
    return InferError(f"internal error of the server: {description}", "fault")
