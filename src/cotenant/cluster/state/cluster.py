"""State machine of the cluster controller: nodes report, users submit, and rounds place jobs on GPUs.

A new attempt at a job starts only when the previous one is known to have ended: its node reported the end, or does not
name the attempt although it received the order, or restarted without it, or was silent until its lease and grace ended.
The parts: `inventory` has nodes and GPUs, `jobs` the queue, `attempts` the start and end of attempts, `nodes` the
reports, and `rounds` the placement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from cotenant.cluster.model.cluster import ClusterCounts, JobReport, JobState
from cotenant.cluster.model.event import (
    ClusterAction,
    ClusterEvent,
    ClusterRestored,
    ClusterStarted,
    ClusterWoke,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeGone,
    NodeReport,
    NodeSnapshot,
    PoolSet,
)
from cotenant.cluster.state.attempts import ClusterState
from cotenant.cluster.state.invariants import check
from cotenant.cluster.state.inventory import Node
from cotenant.cluster.state.jobs import Job, restored
from cotenant.cluster.state.nodes import Nodes
from cotenant.cluster.state.pair_weights import PairWeights
from cotenant.cluster.state.reasons import Reasons
from cotenant.cluster.state.rounds import hold_round
from cotenant.units.instant import NEVER, SECOND_NS, Instant

_FIRST_ROUND_NS: Final = 2 * SECOND_NS
"""Delay of the first round after a start, in which nodes reconnect."""


class ClusterMachine(ClusterState):
    """Handles events and returns actions. All state comes from `handle`."""

    def __init__(self) -> None:
        """Begin without state; the first event contains the settings."""
        super().__init__()
        nodes = self._nodes = Nodes(self)
        self._handlers: dict[type, Any] = {
            NodeReport: nodes.reported,
            ClusterWoke: self._woke,
            JobSubmitted: self._submitted,
            JobCancelled: self._cancelled,
            NodeGone: nodes.gone,
            NodeDrained: nodes.drained,
            PoolSet: self._pool,
            ClusterStarted: self._started,
            ClusterRestored: self._restored,
        }

    def handle(self, event: ClusterEvent, *, now: Instant) -> list[ClusterAction]:
        """Handle one event and return the actions in order."""
        self.turn += 1
        actions: list[ClusterAction] = self._handlers[type(event)](event, now)
        return actions

    def next_wakeup(self) -> Instant | None:
        """Return the instant of the next round or of the next possible end of a lease; None: neither is due."""
        due = [instant for instant in (self.next_round, self.lease_due) if instant != NEVER]
        return min(due) if due else None

    # -- views for people -------------------------------------------------------------------------------------------

    def jobs(self) -> Iterator[JobReport]:
        """Return every remembered job in the order of submission."""
        reasons = Reasons(self)
        return (self._report(job, reasons) for job in self.job_table.jobs.values())

    def job(self, name: str, reasons: Reasons | None = None) -> JobReport | None:
        """Return one job; callers that ask for many between two turns pass the same `reasons`."""
        job = self.job_table.jobs.get(name)
        return None if job is None else self._report(job, reasons or Reasons(self))

    def _report(self, job: Job, reasons: Reasons) -> JobReport:
        return job.report(reasons.why_waiting(job) if job.state is JobState.WAITING else "")

    def counts(self) -> ClusterCounts:
        """Return counts of nodes, GPUs, jobs and rounds."""
        return ClusterCounts(
            len(self.inventory.nodes),
            self.silent,
            len(self.inventory),
            self.inventory.open.count(1),
            sum(self.job_table.users.held.values()),
            tuple(self.job_table.counts.items()),
            self.rounds,
            self.placed,
            self.discarded,
            self.moved,
        )

    def check(self) -> None:
        """Raise `InvariantError` if an invariant is violated."""
        check(self)

    # -- snapshot and restart ---------------------------------------------------------------------------------------

    def snapshot(self) -> ClusterRestored:
        """Return the whole state as the event that restores it."""
        job_table, inventory = self.job_table, self.inventory
        alive = [job for job in job_table.jobs.values() if not job.state.is_over]
        return ClusterRestored(
            self.settings,
            tuple(
                NodeSnapshot(
                    node.name, node.epoch, node.last_report, node.gpus, node.is_drained, node.is_silent, node.strays
                )
                for node in inventory.nodes.values()
            ),
            tuple(job.snapshot() for job in (*job_table.over.values(), *alive)),
            self.next_round,
            self.pair_weights.predictor.learned(),
            tuple(sorted(job_table.users.used.items())),
            self.next_attempt,
            self.last_round,
            self.rounds,
            (self.placed, self.discarded, self.moved),
            job_table.users.accounted_at,
            inventory.priced(),
            tuple((pool, tuple(sorted(nodes))) for pool, nodes in sorted(inventory.pools.items())),
        )

    def _restored(self, event: ClusterRestored, now: Instant) -> list[ClusterAction]:
        self.empty()
        self.settings = event.settings
        self.pair_weights = PairWeights(event.learned)
        self.next_attempt, self.next_round, self.last_round = event.next_attempt, event.next_round, event.last_round
        self.rounds = event.rounds
        self.placed, self.discarded, self.moved = event.round_counts
        users, inventory = self.job_table.users, self.inventory
        users.used, users.accounted_at = dict(event.used), event.accounted
        for pool, nodes in event.pools:
            inventory.set_pool(pool, nodes)
        for saved in event.nodes:
            node = Node(saved.node, saved.epoch, saved.gpus, saved.last_report)
            node.is_drained, node.is_silent, node.strays = saved.is_drained, saved.is_silent, saved.strays
            self.silent += saved.is_silent
            inventory.join(node)
        for number, saved_job in enumerate(event.jobs):
            job = restored(saved_job, number, inventory.nodes)
            self.job_table.add(job)
            if job.reserved_on is not None:
                for gpu in job.reserved:
                    job.reserved_on.hold(gpu, job)
        self.job_table.next_number = len(event.jobs)
        for job in sorted(self.job_table.jobs.values(), key=lambda job: job.attempt):  # in the order of their start
            if job.node is not None:
                self.occupy(job, job.node)
        for node in inventory.nodes.values():
            inventory.refresh(node)
        inventory.is_stale = True
        inventory.settle()
        for gpu, price in event.prices:
            inventory.prices[inventory.kind[gpu]] = price
        self.lease_due = now if inventory.nodes else NEVER
        return []

    def _started(self, event: ClusterStarted, now: Instant) -> list[ClusterAction]:
        """Start every lease anew, because no node could reach the controller while it was down.

        A node keeps the lease that it was given, so a shorter new lease does not end before the old one. Prices
        start anew as well: they depend on what the nodes reported before.
        """
        old_settings, self.settings = self.settings, event.settings
        longer_ns = old_settings.lease_ns + old_settings.grace_ns - event.settings.lease_ns - event.settings.grace_ns
        for node in self.inventory.nodes.values():
            node.last_report = max(node.last_report, now + max(0, longer_ns))
        self.inventory.forget_prices()
        self.job_table.users.accounted_at = now
        self.lease_due = now + event.settings.lease_ns if self.inventory.nodes else NEVER
        self.next_round = now + min(event.settings.round_ns, _FIRST_ROUND_NS)
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

    # -- users ------------------------------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted, now: Instant) -> list[ClusterAction]:
        if event.spec.name not in self.job_table.jobs:
            self.job_table.submit(event.spec, now)
            self.request_early_round(now)
        return []

    def _cancelled(self, event: JobCancelled, now: Instant) -> list[ClusterAction]:
        job = self.job_table.jobs.get(event.job)
        if job is None or job.state.is_over:
            return []
        job.is_cancelled = True
        if job.state is JobState.WAITING:
            self.over(job, JobState.CANCELLED, "cancelled", now)
            return []
        self.release_reservation(job)
        return self.stop(job, "cancelled", now)

    def _pool(self, event: PoolSet, now: Instant) -> list[ClusterAction]:
        self.inventory.set_pool(event.pool, event.nodes)
        self.request_early_round(now)
        return []
