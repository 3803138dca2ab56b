"""What does a cluster do about what it is told? Nodes report, users submit, and rounds decide who is started where.

An attempt at a job is started only when the one before it is known to have ended: its node said so, or does not name it
though it was told of it, or started anew without it, or was silent for so long that it has ended it by itself. What is
where is in floor, who waits in jobs, how attempts begin and end in state, what nodes say in nodes, and who is started
in rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from cotenant.domain.cluster import ClusterCounts, JobState, JobTold, NodeView
from cotenant.domain.clusters import (
    ClusterAction,
    ClusterEvent,
    ClusterRestored,
    ClusterStarted,
    ClusterWoke,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeGone,
    NodeKept,
    NodeTold,
    QuotaSet,
)
from cotenant.domain.instant import NEVER, SECOND_NS, Instant
from cotenant.domain.plan import Reason
from cotenant.machine.cluster_floor import Node
from cotenant.machine.cluster_invariants import check
from cotenant.machine.cluster_jobs import Job, restored
from cotenant.machine.cluster_nodes import Nodes
from cotenant.machine.cluster_rounds import hold_round
from cotenant.machine.cluster_state import ClusterState
from cotenant.machine.cluster_why import Reasons
from cotenant.machine.cluster_worth import Worth

_FIRST_ROUND_NS: Final = 2 * SECOND_NS
"""After a start, so that nodes have come back before it is decided who goes where."""


class ClusterMachine(ClusterState):
    """Events in, actions out. Everything it knows came from `handle`."""

    def __init__(self) -> None:
        """Know nothing; the first event says how the cluster is set up."""
        super().__init__()
        nodes = self._nodes = Nodes(self)
        self._handlers: dict[type, Any] = {
            NodeTold: nodes.told,
            ClusterWoke: self._woke,
            JobSubmitted: self._submitted,
            JobCancelled: self._cancelled,
            NodeGone: nodes.gone,
            NodeDrained: nodes.drained,
            QuotaSet: self._quota,
            ClusterStarted: self._started,
            ClusterRestored: self._restored,
        }

    def handle(self, event: ClusterEvent, *, now: Instant) -> list[ClusterAction]:
        """Take one event in; the answer is what must be done, in this order."""
        self.turn += 1
        actions: list[ClusterAction] = self._handlers[type(event)](event, now)
        return actions

    def redo(self, event: ClusterEvent, recorded: Sequence[ClusterAction], *, now: Instant) -> list[ClusterAction]:
        """Take in an event that is on record, deciding in rounds as was decided then.

        So a brain goes on from its journal whatever a round would make of it today: predictions may come out another
        way by a hair on other processors, and policies change with versions.
        """
        self.recorded = recorded
        try:
            return self.handle(event, now=now)
        finally:
            self.recorded = None

    def next_wakeup(self) -> Instant | None:
        """The next round, or the first instant at which somebody may have been silent for too long."""
        due = [instant for instant in (self.next_round, self.lease_due) if instant != NEVER]
        return min(due) if due else None

    # -- what people see -------------------------------------------------------------------------------------------

    def jobs(self) -> Iterator[JobTold]:
        """Every job that is remembered, in the order in which they came."""
        reasons = Reasons(self)
        return (self._tell(job, reasons) for job in self.roster.jobs.values())

    def job(self, name: str, reasons: Reasons | None = None) -> JobTold | None:
        """One of them; who asks for many between two turns looks for the reasons once."""
        job = self.roster.jobs.get(name)
        return None if job is None else self._tell(job, reasons or Reasons(self))

    def _tell(self, job: Job, reasons: Reasons) -> JobTold:
        return job.told(reasons.waits(job) if job.state is JobState.WAITING else "")

    def nodes(self) -> Iterator[NodeView]:
        """Every node, in the order in which they came."""
        for node in self.floor.nodes.values():
            names = tuple(node.busy[gpu].spec.name if gpu in node.busy else "" for gpu in range(len(node.gpus)))
            yield NodeView(node.name, node.epoch, node.heard, node.gpus, names, node.is_drained, node.is_silent)

    def counts(self) -> ClusterCounts:
        """How it stands."""
        return ClusterCounts(
            len(self.floor.nodes),
            self.silent,
            len(self.floor),
            self.floor.open.count(1),
            sum(self.roster.users.held.values()),
            tuple(self.roster.counts.items()),
            self.rounds,
            self.placed,
            self.discarded,
            self.moved,
        )

    def check(self) -> None:
        """Raise `InvariantError` with the story if any promise of this machine is broken."""
        check(self)

    # -- the whole of it -------------------------------------------------------------------------------------------

    def snapshot(self) -> ClusterRestored:
        """The whole state as the event that restores it."""
        roster, floor = self.roster, self.floor
        alive = [job for job in roster.jobs.values() if not job.state.is_over]
        return ClusterRestored(
            self.settings,
            tuple(
                NodeKept(node.name, node.epoch, node.heard, node.gpus, node.is_drained, node.is_silent, node.strays)
                for node in floor.nodes.values()
            ),
            tuple(job.keep() for job in (*roster.over.values(), *alive)),
            tuple(roster.users.quotas.values()),
            self.next_round,
            self.worth.predictor.learned(),
            tuple(sorted(roster.users.used.items())),
            self.next_attempt,
            self.last_round,
            self.rounds,
            (self.placed, self.discarded, self.moved),
            roster.users.at,
            floor.priced(),
            self.no_round_before,
        )

    def _restored(self, event: ClusterRestored, now: Instant) -> list[ClusterAction]:
        self.empty()
        self.settings = event.settings
        self.worth = Worth(event.learned)
        self.next_attempt, self.next_round, self.last_round = event.next_attempt, event.next_round, event.last_round
        self.rounds, self.no_round_before = event.rounds, event.no_round_before
        self.placed, self.discarded, self.moved = event.figures
        users, floor = self.roster.users, self.floor
        users.quotas = {quota.user: quota for quota in event.quotas}
        users.used, users.at = dict(event.used), event.accounted
        for kept in event.nodes:
            node = Node(kept.node, kept.epoch, kept.gpus, kept.heard)
            node.is_drained, node.is_silent, node.strays = kept.is_drained, kept.is_silent, kept.strays
            self.silent += kept.is_silent
            floor.join(node)
        for number, kept_job in enumerate(event.jobs):
            job = restored(kept_job, number, floor.nodes)
            self.roster.add(job)
            if job.kept_on is not None:
                for gpu in job.kept:
                    job.kept_on.busy[gpu] = job
        self.roster.next_number = len(event.jobs)
        for job in sorted(self.roster.jobs.values(), key=lambda job: job.attempt):  # as they were started
            if job.node is not None:
                self.seat(job, job.node)
        for node in floor.nodes.values():
            floor.refresh(node)
        floor.is_stale = True
        floor.settle()
        for place, price in event.prices:
            floor.prices[floor.kind[place]] = price
        self.lease_due = now if floor.nodes else NEVER
        return []

    def _started(self, event: ClusterStarted, now: Instant) -> list[ClusterAction]:
        """Nobody could reach the brain while it was not there: every lease begins anew.

        A node holds to the lease that it was given, so one that is shorter from now on does not end before that.
        Prices begin anew too: a brain that did again what is on record has none.
        """
        before, self.settings = self.settings, event.settings
        longer_ns = before.lease_ns + before.grace_ns - event.settings.lease_ns - event.settings.grace_ns
        for node in self.floor.nodes.values():
            node.heard = max(node.heard, now + max(0, longer_ns))
        self.floor.forget_prices()
        self.roster.users.at = now
        self.lease_due = now + event.settings.lease_ns if self.floor.nodes else NEVER
        self.next_round = max(now + min(event.settings.round_ns, _FIRST_ROUND_NS), self.no_round_before)
        self.last_round = NEVER
        return []

    def _woke(self, event: ClusterWoke, now: Instant) -> list[ClusterAction]:
        del event
        actions: list[ClusterAction] = []
        if self.lease_due != NEVER and now >= self.lease_due:
            actions = self._nodes.check_leases(now)
        if self.next_round == NEVER or now < self.next_round:
            return actions
        self.next_round = now + self.settings.round_ns
        self.last_round = now
        actions += hold_round(self, now)
        self.rounds += 1
        return actions

    # -- users -----------------------------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted, now: Instant) -> list[ClusterAction]:
        spec, roster = event.spec, self.roster
        known = roster.jobs.get(spec.name)
        if known is not None:
            if known.spec == spec:
                return self.answer(event.peer)
            return self.refuse(event.peer, Reason.NAME_TAKEN, f"another job is called {spec.name!r}; choose a name")
        if roster.waiting >= self.settings.waiting_limit:
            detail = f"{roster.waiting} jobs wait already, which is the limit; try again when some have been started"
            return self.refuse(event.peer, Reason.QUEUE_FULL, detail)
        if not roster.has_room_for(spec):
            detail = "the commands and environments of all jobs take too much; put yours into files, or try again later"
            return self.refuse(event.peer, Reason.QUEUE_FULL, detail)
        roster.submit(spec, now)
        self.stirred(now)
        return self.answer(event.peer)

    def _cancelled(self, event: JobCancelled, now: Instant) -> list[ClusterAction]:
        job = self.roster.jobs.get(event.job)
        if job is None:
            return self.refuse(event.peer, Reason.UNKNOWN_JOB, f"no job is called {event.job!r}")
        if job.state.is_over:
            if job.state is JobState.CANCELLED:
                return self.answer(event.peer)
            return self.refuse(event.peer, Reason.OVER, f"{event.job!r} is {job.state.value} already")
        job.is_cancelled = True
        actions: list[ClusterAction] = []
        if job.state is JobState.WAITING:
            self.over(job, JobState.CANCELLED, "cancelled", now)
        else:
            self.let_go(job)
            actions = self.stop(job, "cancelled", now)
        return [*actions, *self.answer(event.peer)]

    def _quota(self, event: QuotaSet, now: Instant) -> list[ClusterAction]:
        """Who holds more than it may from now on keeps it."""
        self.roster.users.quotas[event.quota.user] = event.quota
        self.stirred(now)
        return self.answer(event.peer)
