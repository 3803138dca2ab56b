"""Interface between the server's state machine and its scheduling policies."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from cotenant.serve.model.event import ModelSpec, QueuedRequest
from cotenant.serve.model.plan import ServePlan
from cotenant.units.instant import Duration, Instant
from cotenant.units.value import Value


class ModelQueue(Protocol):
    """A model's queued requests and active runs, as a policy sees them."""

    @property
    def key(self) -> int:
        """Number of the loaded instance of the model."""
        ...

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        ...

    @property
    def waiting(self) -> Sequence[QueuedRequest]:
        """Queued requests by priority, then deadline (requests without one last), then arrival."""
        ...

    @property
    def rows(self) -> int:
        """Number of queued rows."""
        ...

    @property
    def running(self) -> int:
        """Number of active runs."""
        ...

    @property
    def rate(self) -> float:
        """Recent arrival rate in rows per second."""
        ...

    @property
    def requested_rows(self) -> Mapping[int, int]:
        """Total rows of all requests received so far, by priority, whether admitted or not."""
        ...

    @property
    def widths(self) -> Sequence[int]:
        """Numbers of units that its runs may have, ascending; never empty."""
        ...

    @property
    def knee_units(self) -> int:
        """Number of units beyond which runs hardly get faster; the spec's share if nothing was measured."""
        ...

    def expected_ns(self, rows: int, units: int) -> Duration:
        """Return the expected time of a run; zero if unknown."""
        ...

    def high_ns(self, rows: int, units: int) -> Duration:
        """Return the 99th percentile of such a run."""
        ...


class ActiveRun(NamedTuple):
    """A run that has not ended."""

    key: int
    rows: int
    units: int
    """Zero: the run is unshared and uses the whole device concurrently with other runs."""
    began: Instant
    expected_end: Instant


class View(NamedTuple):
    """Input of a policy's decision at one instant."""

    queues: Iterable[ModelQueue]
    """The queues that have requests."""
    free_units: int
    all_units: int
    free_at: Instant
    """Expected instant at which a unit is free; now, if one is."""
    now: Instant
    all_queues: Sequence[ModelQueue] = ()
    """All queues, including empty ones."""
    active_runs: Collection[ActiveRun] = ()
    """In the order of their start."""
    lag_ns: Duration = 0
    """High estimate of the delay between a run's end and its report; sending the answer takes about as long again."""


class StartRun(Value, frozen=True):
    """Start a run of the first requests of a queue on a number of units; zero units: unshared, on the whole device."""

    key: int
    requests: int
    rows: int
    units: int


class RejectQueued(Value, frozen=True):
    """Reject the first requests of a queue."""

    key: int
    requests: int
    is_late: bool = True
    """They would be late; otherwise a run without them answers more requests in time."""


class WaitUntil(Value, frozen=True):
    """Start nothing before this instant, unless an event occurs."""

    until: Instant


class RunReport(Value, frozen=True):
    """A finished run, as reported to the policy."""

    key: int
    model: str
    rows: int
    units: int
    began: Instant
    took_ns: Duration
    in_time: int
    """Requests that were answered by their deadline or had none."""
    late: int
    failed: bool


class Widths(enum.Enum):
    """Which numbers of units a policy gives its runs."""

    MEASURED = "measured"
    """The policy chooses among the widths at which the model was measured."""
    WHOLE = "whole"
    """Every run may use the whole device, alone or together with other runs."""
    DEFAULT = "default"
    """Every run has the model's default width."""


class ServePolicy(Protocol):
    """Decides which requests run when. It may keep state, but reads no clock and draws no random numbers."""

    widths: ClassVar[Widths]

    def next(self, view: View) -> StartRun | RejectQueued | WaitUntil | None:
        """Return the next decision; called again within the same event until it starts and rejects nothing."""
        ...

    def run_ended(self, run: RunReport, view: View) -> None:
        """Learn from a run that has ended."""
        ...

    def plan(self) -> ServePlan | None:
        """Return the current plan, or None if the policy does not plan."""
        ...


class RequestForecast(NamedTuple):
    """A policy's prediction for a request that is not admitted yet."""

    wait_ns: Duration
    """Predicted time from now until the response, in the order in which the policy will run its queues."""
    detail: str = ""
    """Reason to reject the request whatever its deadline: the device is overloaded and the model has used its share."""


@runtime_checkable
class Forecaster(Protocol):
    """A policy that can predict when a request would be answered."""

    def forecast(self, request: QueuedRequest, queue: ModelQueue, view: View) -> RequestForecast:
        """Predict the outcome of one more request in this queue."""
        ...


def assemble(queue: ModelQueue) -> tuple[int, int]:
    """Return how many requests from the front fit into one run, and their rows; all must have the same shapes."""
    waiting = queue.waiting
    head = waiting[0]
    limit = queue.spec.max_batch
    if not limit:
        return 1, head.rows
    rows = head.rows
    count = 1
    for request in waiting[1:limit]:
        if request.shapes != head.shapes or rows + request.rows > limit:
            break
        rows += request.rows
        count += 1
    return count, rows
