"""What is known of a request between its arrival and its answer?"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple, Protocol

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.serving import ModelSpec, Refusal
from cotenant.format.infer import Checked, InferError, InferRequest, Plan
from cotenant.format.infer_json import Output
from cotenant.live.serve.figures import ModelFigures
from cotenant.live.serve.model import Runnable
from cotenant.live.serve.work import Flow, Outcome

REFUSED_AS: Final = {
    Refusal.UNKNOWN_MODEL: "not-found",
    Refusal.NOT_READY: "unavailable",
    Refusal.QUEUE_FULL: "exhausted",
    Refusal.TOO_LATE: "late",
    Refusal.OVER_SHARE: "exhausted",
    Refusal.DRAINING: "unavailable",
    Refusal.TOO_MANY_ROWS: "invalid",
}
"""The kind of error that a sender is told."""
_LOOKS_LIMIT: Final = 4096
_numbers: Final = itertools.count(1)


class Looks:
    """A number for what the rows of a model's requests look like; never one number for two looks."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        """None was seen."""
        self._known: dict[tuple[tuple[int, ...], ...], int] = {}

    def number(self, shapes: tuple[tuple[int, ...], ...]) -> int:
        """Of rows of these shapes."""
        look = self._known.get(shapes)
        if look is None:
            if len(self._known) >= _LOOKS_LIMIT:
                self._known.clear()  # numbers are not given again, so that what is forgotten only shares no run
            look = self._known[shapes] = next(_numbers)
        return look


class Reply(Protocol):
    """Where the answer to one request goes."""

    streams: bool
    """Whether it takes any number of answers."""

    def done(self, request: InferRequest, spec: ModelSpec, outputs: list[Output]) -> None:
        """The answer; of a decoupled model, one of several."""
        ...

    def failed(self, error: InferError) -> None:
        """There is no answer, and this is why."""
        ...

    def over(self) -> None:
        """A decoupled model has given all its answers."""
        ...


class Served(NamedTuple):
    """A model with what a request for it needs."""

    model: Runnable
    plan: Plan
    figures: ModelFigures
    looks: Looks


class Pending:
    """A request that fits its model; without a reply once nobody waits for it."""

    __slots__ = (
        *("admitted", "arrived", "checked", "figures", "flow", "model", "number", "outcome"),
        *("patience_ns", "reply", "request", "size_bytes", "started"),
    )

    def __init__(
        self, request: InferRequest, model: Runnable, checked: Checked, figures: ModelFigures, reply: Reply
    ) -> None:
        """Not started."""
        self.request = request
        self.model = model
        self.checked = checked
        self.figures = figures
        self.reply: Reply | None = reply
        self.number = 0
        self.size_bytes = 0
        self.patience_ns: Duration = 0
        """Within which it is to be answered; zero: nobody said."""
        self.admitted = False
        self.flow: Flow | None = None
        self.outcome: Outcome | None = None
        """Of its run, once that is over."""
        self.arrived: Instant = 0
        self.started: Instant = 0
