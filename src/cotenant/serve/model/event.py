"""Events, actions and model description of the server's state machine.

Requests are identified by numbers; their tensors stay in the front end.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

from cotenant.serve.model.run_times import RunTimes
from cotenant.serve.model.tensor import TensorSpec
from cotenant.units.instant import Duration, Instant
from cotenant.units.value import Value

DEFAULT_PRIORITY: Final = 0
"""Priority of a request that names none, as in the protocol; 1 is the highest priority."""


class ModelSpec(Value, frozen=True):
    """A model as the server schedules it."""

    name: str
    version: str
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int = 0
    """Maximum rows of a run; zero: each request is a run of its own, with any shape."""
    preferred_batches: tuple[int, ...] = ()
    """Batch sizes that need not wait for more rows."""
    wait_ns: Duration = 0
    """Maximum time that an incomplete batch waits for more rows."""
    share: int = 1
    """Default number of units of a run: cores, or percent of a GPU."""
    instances: int = 0
    """Maximum concurrent runs; zero: as many as the device allows."""
    slo_ns: Duration = 0
    """Latency objective of a request; zero: none."""
    priority: int = 1
    """Priority of requests that name none; 1 is the highest."""
    weight: int = 1
    """Weight of the model when the device is overloaded."""
    queue_limit: int = 1024
    """Maximum number of queued requests."""
    decoupled: bool = False
    """Whether a request may have any number of responses."""


class RequestArrived(Value, frozen=True, tag="request-arrived"):
    """A valid request was received."""

    request: int
    model: str
    rows: int
    shapes: int
    """Number of the shapes of its rows; only requests with the same number can share a run."""
    priority: int = DEFAULT_PRIORITY
    timeout_ns: Duration = 0
    """Time after which the client has no use for a response; zero: not given."""


class RequestCancelled(Value, frozen=True, tag="request-cancelled"):
    """The client no longer waits for this request."""

    request: int


class RunFinished(Value, frozen=True, tag="run-finished"):
    """A run has ended; the runtime answers its requests."""

    run: int
    took_ns: Duration
    failed: bool = False


class ModelReady(Value, frozen=True, tag="model-ready"):
    """A model can be run; it replaces a loaded model of the same name."""

    spec: ModelSpec
    key: int
    """Number of this loaded instance; runs name it, so that runs in progress end on the instance they started on."""
    times: RunTimes | None = None
    """Measured run times, if the model has a profile."""


class ModelWithdrawn(Value, frozen=True, tag="model-withdrawn"):
    """The model accepts no more requests; queued requests are still answered."""

    model: str


class DrainRequested(Value, frozen=True, tag="drain-requested"):
    """The server accepts no more requests; queued requests are still answered."""


class Tick(Value, frozen=True, tag="tick"):
    """The instant that `next_wakeup` returned has come."""


ServerEvent: TypeAlias = (
    RequestArrived | RequestCancelled | RunFinished | ModelReady | ModelWithdrawn | DrainRequested | Tick
)


class RejectReason(enum.Enum):
    """Why a request is rejected."""

    UNKNOWN_MODEL = "unknown-model"
    NOT_READY = "not-ready"
    QUEUE_FULL = "queue-full"
    TOO_LATE = "too-late"
    OVER_SHARE = "over-share"
    DRAINING = "draining"
    TOO_MANY_ROWS = "too-many-rows"


class RejectRequest(Value, frozen=True, tag="reject-request"):
    """Reject a request, and say when to try again."""

    cause: int
    request: int
    why: RejectReason
    detail: str
    retry_after_ns: Duration = 0


class Run(Value, frozen=True, tag="run"):
    """Run these requests of one model together on a number of units."""

    cause: int
    run: int
    model: str
    key: int
    requests: tuple[int, ...]
    rows: int
    units: int
    """Zero: unshared; the run uses the whole device concurrently with other runs."""
    cores: tuple[int, ...]
    """The cores, if a unit is a core; empty for a GPU and for an unshared run."""
    after: int = 0
    """The run that occupies the first of these cores; this one starts when that one ends. Zero: start now."""


class ReleaseModel(Value, frozen=True, tag="release-model"):
    """Release a loaded instance of a model that nothing refers to."""

    cause: int
    model: str
    key: int


class ReportDrained(Value, frozen=True, tag="report-drained"):
    """Report that every admitted request was answered."""

    cause: int


ServerAction: TypeAlias = RejectRequest | Run | ReleaseModel | ReportDrained


class QueuedRequest(Value, frozen=True):
    """A request in a model's queue."""

    request: int
    rows: int
    shapes: int
    priority: int
    since: Instant
    deadline: Instant
    """Instant by which the request must be answered; `NEVER` (negative): none."""
