"""What is a cluster made of? Nodes with GPUs that offer what online work leaves, and offline jobs that want it."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import Duration, Instant
from cotenant.domain.use import TaskUse
from cotenant.domain.value import Value

GPUS_LIMIT: Final = 64
"""Of one node."""
ONLINE_LIMIT: Final = 32
"""Online tenants of one GPU that are told of."""
GANG_LIMIT: Final = 64
"""GPUs that one job may want; all of them on one node."""
ARGUMENTS_LIMIT: Final = 1024
TEXT_LIMIT: Final = 16 << 10
_LARGEST: Final = (1 << 63) - 1

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*\Z")]
Amount = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
Part = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_PPM)]
Label = Annotated[str, msgspec.Meta(max_length=128)]
"""Any few words, or none."""
Text = Annotated[str, msgspec.Meta(max_length=TEXT_LIMIT)]
Gang = Annotated[int, msgspec.Meta(ge=1, le=GANG_LIMIT)]
Priority = Annotated[int, msgspec.Meta(ge=-100, le=100)]
Weight = Annotated[int, msgspec.Meta(ge=1, le=1000)]
"""Of a user, in fairness."""


class GpuCondition(enum.Enum):
    """Of a GPU, as its node sees it."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    """Takes no new offline work; what is there stays."""
    OVERLIMIT = "overlimit"
    """Its node evicts offline work."""
    DISABLED = "disabled"


class OnlineUse(Value, frozen=True):
    """An online tenant of a GPU, as far as whoever comes beside it must know."""

    name: Name
    use: TaskUse = TaskUse()
    """Alone; `active_ppm` is its present load."""
    slo_ns: Amount = 0


class GpuReport(Value, frozen=True):
    """A GPU as its node reports it. What did not change since the last report is the same object, where it can be."""

    type: Name
    """Like "V100"; jobs may name the types that they can use."""
    memory_bytes: Amount
    """All of it."""
    free_bytes: Amount
    """What offline work may have, whoever has it now."""
    offer_ppm: Part
    """The part of the SMs that offline work may have; 0: none."""
    condition: GpuCondition = GpuCondition.HEALTHY
    online: Annotated[tuple[OnlineUse, ...], msgspec.Meta(max_length=ONLINE_LIMIT)] = ()


class JobSpec(Value, frozen=True):
    """What a user wants done, offline."""

    name: Name
    """Unique among the jobs that the cluster remembers."""
    user: Name
    work_ns: Amount = 0
    """How long it takes alone on whole GPUs; 0: not known."""
    use: TaskUse | None = None
    """What it does with a GPU alone; None: not known, so that a safe guess is made and then learned from."""
    profile: Label = ""
    """Jobs of the same profile are alike: what is learned of one holds for the others. Nothing: its own name."""
    memory_bytes: Amount = 0
    """On each of its GPUs."""
    gpus: Gang = 1
    """Of one node, all at once."""
    types: tuple[Name, ...] = ()
    """Of which one will do; none: any."""
    least_ppm: Part = 0
    """The part of the SMs below which it is not worth starting."""
    priority: Priority = 0
    """Higher goes first; it never takes a GPU away from a job that runs."""
    avoid: tuple[Name, ...] = ()
    """Online tenants with which it must not share a GPU, and groups of jobs with which it must not share a node."""
    group: Label = ""
    command: Annotated[tuple[Text, ...], msgspec.Meta(max_length=ARGUMENTS_LIMIT)] = ()
    environment: Annotated[tuple[tuple[Text, Text], ...], msgspec.Meta(max_length=ARGUMENTS_LIMIT)] = ()
    directory: Text = ""
    """Where it runs, and keeps what it needs to go on after an eviction."""
    retries: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    """Failures of its own that are forgiven; an eviction is none."""


class JobState(enum.Enum):
    """Where a job is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    """Its node was told and has not yet said that it runs."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Its node was told to end it; it keeps its GPUs until the node says that it is gone."""
    LOST = "lost"
    """Its node is silent: it may run still, so it is not started elsewhere before the node's lease has run out."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self._value_ in _OVER


_OVER: Final = frozenset({"done", "failed", "cancelled"})
"""By value: the hash of an enum's member is computed in Python, and this is asked at every turn of every job."""


class JobEnd(enum.Enum):
    """How an attempt at a job ended, as its node says."""

    DONE = "done"
    FAILED = "failed"
    """By its own fault: its program failed."""
    EVICTED = "evicted"
    """It was told to make room, and goes on later."""
    REFUSED = "refused"
    """The node could not start it now."""


class Attempt(Value, frozen=True):
    """One try at a job. Numbers grow over all jobs and are never used twice: nothing stale is mistaken for it."""

    job: Name
    number: Amount


class AttemptReport(Value, frozen=True):
    """What a node says of an attempt that is there, or that ended and of which the cluster has not yet taken note."""

    attempt: Attempt
    gpus: tuple[int, ...]
    progress_ppm: Part = 0
    """Of the whole job, as far as it is safe: an eviction now would lose nothing of it."""
    rate_ppm: Amount = 0
    """Its speed over its speed alone on a whole GPU, since the last report; 0: not known."""
    end: JobEnd | None = None
    detail: Annotated[str, msgspec.Meta(max_length=500)] = ""


class Quota(Value, frozen=True):
    """How much of the cluster's GPUs a user's jobs may hold at once, and what part is the user's in fairness."""

    user: Name
    gpus: Amount = _LARGEST
    weight: Weight = 1


class ClusterSettings(Value, frozen=True):
    """How a cluster is set up, as far as its decisions depend on it."""

    round_ns: Duration = 300_000_000_000
    lease_ns: Duration = 60_000_000_000
    """A node that has not been heard of for so long is silent: it ends its jobs by itself, within the grace."""
    grace_ns: Duration = 30_000_000_000
    """After the lease, until what ran there may be started elsewhere."""
    place: str = "match"
    """A name in policy.place.ROUNDS."""
    switch_ppm: int = 100_000
    """By how much of a whole GPU's speed a move must gain to be worth its cost."""
    fair: bool = False
    """Whether users who had less come first."""
    remember: int = 100_000
    """Jobs that are over, of which is still told."""
    waiting_limit: int = 1_000_000
    slowdown_limit_ppm: int = 200_000
    """A pair that is predicted to slow the online work by more is not safe."""
    moves_limit: int = 16
    """Jobs that run and are moved to where they gain, in one round."""


class JobTold(Value, frozen=True):
    """A job as `cotenant jobs` shows it."""

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
    """Why it waits, or how it ended."""


class NodeView(Value, frozen=True):
    """A node as `cotenant cluster nodes` shows it."""

    node: str
    epoch: int
    heard: Instant
    gpus: tuple[GpuReport, ...]
    jobs: tuple[str, ...]
    """On each of its GPUs; nothing: none."""
    is_drained: bool = False
    is_silent: bool = False


class ClusterCounts(Value, frozen=True):
    """How a cluster stands, in figures that cost nothing to ask for."""

    nodes: int
    silent: int
    gpus: int
    open: int
    """GPUs that would take a job now."""
    held: int
    """GPUs that a job has."""
    jobs: tuple[tuple[JobState, int], ...]
    """By state, of those that are remembered."""
    rounds: int
    placed: int
    """By all rounds so far."""
    discarded: int
    """Pairings that were planned and no longer held when they were to be committed."""
    moved: int
