"""What can a cluster be told, and what does it do? Facts come in from nodes and users; decisions go out to them."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cotenant.domain.cluster import (
    GPUS_LIMIT,
    Amount,
    Attempt,
    AttemptReport,
    ClusterSettings,
    GpuReport,
    JobSpec,
    JobTold,
    Name,
    Quota,
)
from cotenant.domain.instant import NEVER, Instant
from cotenant.domain.plan import Reject
from cotenant.domain.value import Value

Gpus = Annotated[tuple[GpuReport, ...], msgspec.Meta(max_length=GPUS_LIMIT)]

# -- what it is told -------------------------------------------------------------------------------------------------


class ClusterStarted(Value, frozen=True, tag="cluster-started"):
    """The brain runs, for the first time or again. All nodes have their whole lease from now on."""

    settings: ClusterSettings
    version: str
    unix_ns: int


class NodeTold(Value, frozen=True, tag="node-told"):
    """A node's whole report: its GPUs and every attempt it knows of. The first one of an epoch is how it joins.

    A node that starts anew has a higher epoch, and what it does not name any more has ended there.
    """

    node: Name
    epoch: int
    gpus: Gpus
    attempts: tuple[AttemptReport, ...] = ()
    seen: Amount = 0
    """The highest attempt that it was told of in this epoch, whatever it was told: what is not above that and is not
    named is not there, and never will be."""


class NodeGone(Value, frozen=True, tag="node-gone"):
    """A node leaves for good: it has ended all that ran there."""

    node: Name


class NodeDrained(Value, frozen=True, tag="node-drained"):
    """An operator wants a node's jobs elsewhere, and nothing new on it; or takes that back."""

    node: Name
    on: bool
    peer: int = 0


class JobSubmitted(Value, frozen=True, tag="job-submitted"):
    """A user brings a job. The same again is the same job: a client that lost the answer may ask twice."""

    spec: JobSpec
    peer: int = 0


class JobCancelled(Value, frozen=True, tag="job-cancelled"):
    """A user wants a job no more."""

    job: Name
    peer: int = 0


class QuotaSet(Value, frozen=True, tag="quota-set"):
    """An operator says how much a user may have."""

    quota: Quota
    peer: int = 0


class ClusterWoke(Value, frozen=True, tag="cluster-woke"):
    """The instant has come that was asked for."""


# -- what it does ----------------------------------------------------------------------------------------------------


class StartJob(Value, frozen=True, tag="start-job"):
    """Tell a node to run an attempt on these of its GPUs, from where the job was."""

    node: str
    attempt: Attempt
    gpus: tuple[int, ...]
    share_ppm: int
    spec: JobSpec
    progress_ppm: int = 0
    epoch: int = 0
    """Of the node for which it is meant: a node of another epoch lets it be."""


class StopJob(Value, frozen=True, tag="stop-job"):
    """Tell a node to end an attempt in good order."""

    node: str
    attempt: Attempt
    why: str
    kept_on: str = ""
    """Where the job goes on, if that is why it ends; on record for a brain that starts again."""
    kept: tuple[int, ...] = ()


class AckEnd(Value, frozen=True, tag="ack-end"):
    """Tell a node that the end of an attempt was taken note of: it need not report it again."""

    node: str
    attempt: Attempt


class Answer(Value, frozen=True, tag="answer"):
    """Tell whoever asked that it is so, or why not."""

    peer: int
    reject: Reject | None = None


ClusterAction: TypeAlias = StartJob | StopJob | AckEnd | Answer


class NodeKept(Value, frozen=True):
    """A node in a snapshot."""

    node: str
    epoch: int
    heard: Instant
    gpus: Gpus
    is_drained: bool = False
    is_silent: bool = False
    strays: tuple[int, ...] = ()
    """GPUs on which something runs that the cluster does not want there."""


class JobKept(Value, frozen=True):
    """A job in a snapshot."""

    told: JobTold
    since: Instant = 0
    """In its present state."""
    after: Instant = 0
    """Not to be started before."""
    is_known: bool = False
    """Its node has said that the attempt is there."""
    is_cancelled: bool = False
    stop: str = ""
    """Why it is to end where it is; nothing: it is not."""
    kept: tuple[int, ...] = ()
    """GPUs of `kept_on` that are held for it, while it ends where it was in order to go there."""
    kept_on: str = ""
    rate_ppm: int = 0
    """Its speed from which was last learned."""
    pushed_out: Amount = 0
    """Times in a row that its node made it leave, soon after it came."""


class ClusterRestored(Value, frozen=True, tag="cluster-restored"):
    """The state at the head of a new journal segment: replaces all that was known."""

    settings: ClusterSettings
    nodes: tuple[NodeKept, ...]
    jobs: tuple[JobKept, ...]
    quotas: tuple[Quota, ...]
    next_round: Instant
    learned: tuple[tuple[str, str, int, int], ...] = ()
    """Of a job's profile beside online work: what the speeds that were seen say of the predictor's error."""
    used: tuple[tuple[str, float], ...] = ()
    """GPU time that users had, for fairness."""
    next_attempt: int = 1
    last_round: Instant = NEVER
    rounds: int = 0
    figures: tuple[int, int, int] = (0, 0, 0)
    """Placed, discarded and moved by all rounds so far."""
    accounted: Instant = 0
    """Up to when `used` counts."""
    prices: tuple[tuple[int, float], ...] = ()
    """From the last round, of the kind of which this GPU is, counted over all nodes: from there the next begins."""
    no_round_before: Instant = 0
    """Of a cluster that has lost a part of its record: until then something may run of which it does not know."""


ClusterEvent: TypeAlias = (
    ClusterStarted
    | ClusterRestored
    | NodeTold
    | NodeGone
    | NodeDrained
    | JobSubmitted
    | JobCancelled
    | QuotaSet
    | ClusterWoke
)
