"""What is known of a request between its arrival and its answer?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.serving import ModelSpec
from cotenant.format.infer import Checked, InferError, InferRequest, Plan
from cotenant.format.infer_json import Output
from cotenant.live.serve.figures import ModelFigures
from cotenant.live.serve.model import Runnable
from cotenant.live.serve.work import Outcome


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
    looks: dict[tuple[tuple[int, ...], ...], int]
    """What the rows of its requests look like, by number."""


class Pending:
    """A request that fits its model; without a reply once nobody waits for it."""

    __slots__ = (
        *("admitted", "arrived", "checked", "figures", "model", "number", "outcome"),
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
        self.outcome: Outcome | None = None
        """Of its run, once that is over."""
        self.arrived: Instant = 0
        self.started: Instant = 0


def size_of(arrays: Sequence[Any]) -> int:
    """What these tensors hold, in bytes."""
    size = 0
    for array in arrays:
        size += array.nbytes
    return size
