"""Nodes, GPUs, jobs and attempts of a cluster, and its settings."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from cotenant.predict.usage import TaskUse
from cotenant.units.instant import Duration, Instant
from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value

GPUS_LIMIT: Final = 64
"""GPUs of one node."""
PLACES_LIMIT: Final = 64
"""Offline jobs that may share one GPU."""
ONLINE_LIMIT: Final = 32
"""Online tenants that a report names for one GPU."""
GANG_LIMIT: Final = 64
"""GPUs that one job may request; all of them are on one node."""
_LARGEST: Final = (1 << 63) - 1

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*\Z")]
Amount = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
Part = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_PPM)]
Label = Annotated[str, msgspec.Meta(max_length=128)]
"""Free text, possibly empty."""
Places = Annotated[int, msgspec.Meta(ge=1, le=PLACES_LIMIT)]
Gang = Annotated[int, msgspec.Meta(ge=1, le=GANG_LIMIT)]
GangSize = Annotated[int, msgspec.Meta(ge=0, le=1000)]
QueuePriority = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""Priority of a waiting job: any 32-bit number, as the value of a PriorityClass of Kubernetes."""


class GpuCondition(enum.Enum):
    """Condition of a GPU, as its node reports it."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    """The GPU accepts no new offline work; offline work that runs there stays."""
    OVERLIMIT = "overlimit"
    """The node evicts offline work from the GPU."""
    DISABLED = "disabled"
    UNREPORTED = "of a silent node"
    """The node sent no report for too long; a report never has this value."""


class OnlineUse(Value, frozen=True):
    """An online tenant of a GPU, as far as the speed of a co-running job depends on it."""

    name: Name
    use: TaskUse = TaskUse()
    """Use of the GPU when alone; `active_ppm` is the present load."""
    slo_ns: Amount = 0


class GpuReport(Value, frozen=True):
    """A GPU as its node reports it.

    A GPU that did not change since the last report is the same object where possible.
    """

    type: Name
    """Model of the GPU, such as "V100"; jobs may name the types that they can use."""
    memory_bytes: Amount
    """Total memory."""
    free_bytes: Amount
    """Memory that offline work may use, including what it uses now."""
    offer_ppm: Part
    """Part of the SMs that offline work may use; 0: none."""
    condition: GpuCondition = GpuCondition.HEALTHY
    online: Annotated[tuple[OnlineUse, ...], msgspec.Meta(max_length=ONLINE_LIMIT)] = ()
    places: Places = 1
    """Offline jobs that may share the GPU."""


class JobSpec(Value, frozen=True):
    """An offline job, as its user submitted it."""

    name: Name
    """Unique among the jobs that the cluster remembers."""
    user: Name
    use: TaskUse | None = None
    """Use of a GPU when alone; None: unknown, so the worst case is assumed until speeds were measured."""
    profile: Label = ""
    """Jobs with the same profile behave alike: what is learned of one applies to the others. Empty: the job's own
    name."""
    memory_bytes: Amount = 0
    """Memory on each of its GPUs."""
    gpus: Gang = 1
    """GPUs of one node, allocated together."""
    types: tuple[Name, ...] = ()
    """GPU types that the job can use; empty: any."""
    min_share_ppm: Part = 0
    """The job is not started on a GPU that offers a smaller part of its SMs."""
    priority: QueuePriority = 0
    """Higher goes first; a job is never preempted by a job of higher priority."""
    avoid: tuple[Name, ...] = ()
    """Online tenants with which it must not share a GPU, and groups of jobs with which it must not share a node."""
    group: Label = ""
    retries: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    """Failures of its program that are retried; an eviction does not count as a failure."""
    gang: Label = ""
    """Jobs with the same gang are started together, on any nodes, or not at all; empty: none."""
    gang_size: GangSize = 0
    """Jobs of the gang that must exist before any of them is started."""
    pool: Label = ""
    """Set of nodes (`PoolSet`) to which the job is restricted; empty: any node."""


class JobState(enum.Enum):
    """Phase in the life of a job."""

    WAITING = "waiting"
    STARTING = "starting"
    """The node was ordered to start it and has not reported it yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    """The node was ordered to end it; the job keeps its GPUs until the node reports the end."""
    LOST = "lost"
    """The node is silent. The job may still run, so it is not started elsewhere before the node's lease and grace
    end."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        """Return whether the state is final."""
        return self._value_ in _OVER


_OVER: Final = frozenset({"done", "failed", "cancelled"})
"""Compared by value: hashing an enum member runs Python code, and this is evaluated for every job in every turn."""


class JobEnd(enum.Enum):
    """How an attempt at a job ended, as its node reports it."""

    DONE = "done"
    FAILED = "failed"
    """The job's program failed."""
    EVICTED = "evicted"
    """The job was stopped to free its GPU, and continues later."""
    REFUSED = "refused"
    """The node could not start it now."""


class Attempt(Value, frozen=True):
    """One attempt at a job. Numbers grow over all jobs and are never reused, so a stale message cannot match."""

    job: Name
    number: Amount


class AttemptReport(Value, frozen=True):
    """State of an attempt on a node, or its end."""

    attempt: Attempt
    gpus: tuple[int, ...]
    progress_ppm: Part = 0
    """Progress of the whole job that an eviction would not lose."""
    rate_ppm: Amount = 0
    """Speed since the last report, relative to the speed alone on a whole GPU; 0: unknown."""
    end: JobEnd | None = None
    detail: Annotated[str, msgspec.Meta(max_length=500)] = ""


class ClusterSettings(Value, frozen=True):
    """Settings on which the decisions of a cluster depend."""

    round_ns: Duration = 300_000_000_000
    lease_ns: Duration = 60_000_000_000
    """A node that sent no report for this long is silent, and ends its jobs by itself within the grace."""
    grace_ns: Duration = 30_000_000_000
    """Time after the lease before the jobs of a silent node may be started elsewhere."""
    place: str = "match"
    """A name in `cotenant.cluster.policy.ROUNDS`."""
    switch_ppm: int = 100_000
    """Gain in speed, as a part of a whole GPU, that a move must exceed."""
    fair: bool = False
    """Whether users who received less GPU time go first."""
    remember: int = 100_000
    """Finished jobs that the controller remembers."""
    slowdown_limit_ppm: int = 200_000
    """A pair that is predicted to slow online work by more than this is unsafe."""
    moves_limit: int = 16
    """Running jobs that one round may move to a faster GPU."""


class JobReport(Value, frozen=True):
    """A job in the state machine, with the reason for its state."""

    spec: JobSpec
    state: JobState
    submitted: Instant
    attempt: int = 0
    node: str = ""
    gpus: tuple[int, ...] = ()
    progress_ppm: int = 0
    started: Instant = 0
    ended: Instant = 0
    failures: int = 0
    evictions: int = 0
    why: str = ""
    """Why the job waits, or how it ended."""


class ClusterCounts(Value, frozen=True):
    """Counts that describe the state of a cluster and cost nothing to compute."""

    nodes: int
    silent: int
    gpus: int
    open: int
    """GPUs that can take a job now."""
    held: int
    """GPUs allocated to a job."""
    jobs: tuple[tuple[JobState, int], ...]
    """Remembered jobs by state."""
    rounds: int
    placed: int
    """Jobs placed by all rounds."""
    discarded: int
    """Planned pairings that were no longer valid when they were to be committed."""
    moved: int
