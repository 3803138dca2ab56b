"""What does a server of models know, hear and decide? Requests by number; tensors stay where they came in."""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.runtimes import RunTimes
from cotenant.domain.tensor import TensorSpec
from cotenant.domain.value import Value

DEFAULT_PRIORITY: Final = 0
"""The protocol's word for a request that names no priority; 1 is the highest there is."""


class ModelSpec(Value, frozen=True):
    """A model as the server treats it."""

    name: str
    version: str
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int = 0
    """Rows that may go into one run; zero: a request is a run, whatever its shapes."""
    preferred_batches: tuple[int, ...] = ()
    """Sizes at which a batch need not wait for more."""
    wait_ns: Duration = 0
    """How long a batch that is not full may wait for more rows."""
    share: int = 1
    """Units of a run where nothing says better: cores, or percent of a GPU."""
    instances: int = 0
    """Runs at once; zero: as many as the device allows."""
    slo_ns: Duration = 0
    """Within which a request is to be answered; zero: no objective."""
    priority: int = 1
    """Of requests that name none; 1 is the highest."""
    weight: int = 1
    """When there is not enough for all, the model's part."""
    queue_limit: int = 1024
    """Requests that may wait."""
    decoupled: bool = False
    """Whether a request may have any number of responses."""


class Arrived(Value, frozen=True, tag="arrived"):
    """A request that was read and found well-formed."""

    request: int
    model: str
    rows: int
    shapes: int
    """Requests of a model go into one run only where this agrees: what their rows look like."""
    priority: int = DEFAULT_PRIORITY
    timeout_ns: Duration = 0
    """After which its sender has no use for an answer; zero: it did not say."""


class Cancelled(Value, frozen=True, tag="cancelled"):
    """Nobody waits for this request any more."""

    request: int


class Finished(Value, frozen=True, tag="finished"):
    """A run has ended, well or not; its requests are answered by whoever ran it."""

    run: int
    took_ns: Duration
    failed: bool = False


class ModelReady(Value, frozen=True, tag="model-ready"):
    """A model can be run from now on; one of that name that was there before gives way to it."""

    spec: ModelSpec
    key: int
    """Which loading of the name this is: runs name it, so that those begun earlier end on what they began with."""
    times: RunTimes | None = None
    """What its runs were measured to take, if they were."""


class ModelLeaving(Value, frozen=True, tag="model-leaving"):
    """No more requests for this model; those that wait are still answered."""

    model: str


class Draining(Value, frozen=True, tag="draining"):
    """No more requests at all; those that wait are still answered."""


class Tick(Value, frozen=True, tag="tick"):
    """The instant has come at which the machine wished to be woken."""


ServerEvent: TypeAlias = Arrived | Cancelled | Finished | ModelReady | ModelLeaving | Draining | Tick


class Refusal(enum.Enum):
    """Why a request is not taken, or not answered."""

    UNKNOWN_MODEL = "unknown-model"
    NOT_READY = "not-ready"
    QUEUE_FULL = "queue-full"
    TOO_LATE = "too-late"
    OVER_SHARE = "over-share"
    DRAINING = "draining"
    TOO_MANY_ROWS = "too-many-rows"


class TurnAway(Value, frozen=True, tag="turn-away"):
    """Tell the sender no, and when to try again."""

    cause: int
    request: int
    why: Refusal
    detail: str
    retry_after_ns: Duration = 0


class Run(Value, frozen=True, tag="run"):
    """Run these requests of one model together, on so many units of the device."""

    cause: int
    run: int
    model: str
    key: int
    requests: tuple[int, ...]
    rows: int
    units: int
    """Zero: unshared, on the whole device beside whatever else runs."""
    cores: tuple[int, ...]
    """Which, where a unit is a core; of a GPU, and of an unshared run, none."""
    after: int = 0
    """The run that has the first of these cores still, and after which this one begins; zero: it begins at once."""


class Release(Value, frozen=True, tag="release"):
    """Nothing refers to this loading of a model any more: let go of it."""

    cause: int
    model: str
    key: int


class Drained(Value, frozen=True, tag="drained"):
    """All is answered that was taken."""

    cause: int


ServerAction: TypeAlias = TurnAway | Run | Release | Drained


class Waiting(Value, frozen=True):
    """A request in its queue."""

    request: int
    rows: int
    shapes: int
    priority: int
    since: Instant
    deadline: Instant
    """By which it must be answered; `NEVER` (negative): none."""
