"""Events that a cluster controller receives, and the actions that it decides."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cotenant.cluster.model.cluster import (
    GPUS_LIMIT,
    Amount,
    Attempt,
    AttemptReport,
    ClusterSettings,
    GpuReport,
    JobReport,
    JobSpec,
    Name,
)
from cotenant.units.instant import NEVER, Instant
from cotenant.units.value import Value

Gpus = Annotated[tuple[GpuReport, ...], msgspec.Meta(max_length=GPUS_LIMIT)]

# -- events ----------------------------------------------------------------------------------------------------------


class ClusterStarted(Value, frozen=True, tag="cluster-started"):
    """The controller starts, for the first time or again. Every node has its full lease from this instant."""

    settings: ClusterSettings


class NodeReport(Value, frozen=True, tag="node-report"):
    """Complete report of a node: its GPUs and every attempt it knows. A node joins with the first report of an epoch.

    A node that restarts has a higher epoch; an attempt that it no longer names has ended.
    """

    node: Name
    epoch: int
    gpus: Gpus
    attempts: tuple[AttemptReport, ...] = ()
    highest_attempt: Amount = 0
    """The highest attempt number of which the node received an order in this epoch. An attempt with a number that is
    not higher and that the report does not name is not on the node, and will never start there."""


class NodeGone(Value, frozen=True, tag="node-gone"):
    """A node leaves for good and has ended everything that ran there."""

    node: Name


class NodeDrained(Value, frozen=True, tag="node-drained"):
    """An operator drains a node (its jobs go elsewhere and it gets no new ones), or ends the draining."""

    node: Name
    on: bool
    keeps_jobs: bool = False
    """Whether the jobs of the node stay; it only gets no new ones."""


class JobSubmitted(Value, frozen=True, tag="job-submitted"):
    """A user submits a job. A job of a name that exists already is ignored."""

    spec: JobSpec


class JobCancelled(Value, frozen=True, tag="job-cancelled"):
    """A user cancels a job. A job that is unknown or has ended is ignored."""

    job: Name


class PoolSet(Value, frozen=True, tag="pool-set"):
    """The nodes of a pool. A pool without nodes is forgotten; jobs that name it wait."""

    pool: Name
    nodes: tuple[Name, ...]


class ClusterWoke(Value, frozen=True, tag="cluster-woke"):
    """The instant of the next requested wakeup has come."""


# -- actions ---------------------------------------------------------------------------------------------------------


class StartJob(Value, frozen=True, tag="start-job"):
    """Order a node to start an attempt on these GPUs, from the job's saved progress."""

    node: str
    attempt: Attempt
    gpus: tuple[int, ...]
    share_ppm: int
    spec: JobSpec
    progress_ppm: int = 0
    epoch: int = 0
    """Epoch of the node for which the order is meant; a node in another epoch ignores it."""


class StopJob(Value, frozen=True, tag="stop-job"):
    """Order a node to stop an attempt gracefully."""

    node: str
    attempt: Attempt
    why: str


ClusterAction: TypeAlias = StartJob | StopJob


# -- the whole state -------------------------------------------------------------------------------------------------


class NodeSnapshot(Value, frozen=True):
    """A node in a snapshot."""

    node: str
    epoch: int
    last_report: Instant
    gpus: Gpus
    is_drained: bool = False
    is_silent: bool = False
    strays: tuple[int, ...] = ()
    """GPUs on which attempts run that the controller does not want there."""


class JobSnapshot(Value, frozen=True):
    """A job in a snapshot."""

    report: JobReport
    since: Instant = 0
    """Start of the present state."""
    after: Instant = 0
    """The job is not started before this instant."""
    is_known: bool = False
    """Whether the node has reported the attempt."""
    is_cancelled: bool = False
    stop: str = ""
    """Why the attempt is to be stopped; empty: it is not."""
    reserved: tuple[int, ...] = ()
    """GPUs of `reserved_on` that are reserved for the job until it has ended where it runs."""
    reserved_on: str = ""
    rate_ppm: int = 0
    """Speed from which the predictor learned last."""
    pushed_out: Amount = 0
    """Consecutive evictions by its node soon after a start."""


class ClusterRestored(Value, frozen=True, tag="cluster-restored"):
    """The whole state, which replaces what was known: of a controller that starts again, or of a snapshot file."""

    settings: ClusterSettings
    nodes: tuple[NodeSnapshot, ...]
    jobs: tuple[JobSnapshot, ...]
    next_round: Instant
    learned: tuple[tuple[str, str, int, int], ...] = ()
    """Corrections of the predictor by job profile and co-running online work, from measured speeds."""
    used: tuple[tuple[str, float], ...] = ()
    """GPU time that users received, for fair sharing."""
    next_attempt: int = 1
    last_round: Instant = NEVER
    rounds: int = 0
    round_counts: tuple[int, int, int] = (0, 0, 0)
    """Placed, discarded and moved jobs of all rounds."""
    accounted: Instant = 0
    """Instant up to which `used` is accounted."""
    prices: tuple[tuple[int, float], ...] = ()
    """Prices of GPU kinds from the last round, each with the index of one GPU of the kind; the next round starts from
    them."""
    pools: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Nodes of each pool."""


ClusterEvent: TypeAlias = (
    ClusterStarted
    | ClusterRestored
    | NodeReport
    | NodeGone
    | NodeDrained
    | JobSubmitted
    | JobCancelled
    | PoolSet
    | ClusterWoke
)
