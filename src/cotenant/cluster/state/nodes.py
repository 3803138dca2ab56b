"""Node reports, drains, departures and leases.

A report is the complete state of a node. It is compared with the wanted state, and the difference is sent as orders
after every report until there is none, so that a lost message does no harm.
"""

from __future__ import annotations

from typing import Final

from cotenant.cluster.model.cluster import AttemptReport, JobEnd, JobState
from cotenant.cluster.model.event import ClusterAction, NodeDrained, NodeGone, NodeReport, StopJob
from cotenant.cluster.state.attempts import ClusterState
from cotenant.cluster.state.inventory import Node
from cotenant.cluster.state.jobs import Job
from cotenant.units.instant import NEVER, SECOND_NS, Instant

_FORGOTTEN_NS: Final = 24 * 3600 * SECOND_NS
"""A silent node without jobs is forgotten after this long; a drained one only when it leaves or reports."""
_NUMBERS_LOST: Final = 1 << 32
"""More attempt numbers than a controller can have issued and lost."""


class Nodes:
    """Handlers of the events that concern nodes."""

    def __init__(self, state: ClusterState) -> None:
        """Bind the handlers to the state of a cluster."""
        self._state = state

    def reported(self, event: NodeReport, now: Instant) -> list[ClusterAction]:
        """Handle the report of a node."""
        state = self._state
        node = state.inventory.nodes.get(event.node)
        actions: list[ClusterAction] = []
        if node is None:
            node = self._join(event, now)
        elif event.epoch != node.epoch:
            if event.epoch < node.epoch and (node.attempts or not node.is_silent):
                return []  # sent before the node restarted
            actions = self._renew(node, event, now)
        node.last_report = max(
            node.last_report, now
        )  # a longer lease that the node was given earlier stays valid until it ends
        if node.is_silent:
            self._returned(node, now)
        if event.gpus is not node.gpus and state.inventory.update(node, event.gpus):
            state.request_early_round(now)
        if event.attempts or node.attempts or node.strays:
            return [*actions, *self._compare(node, event, now)]
        return actions

    def gone(self, event: NodeGone, now: Instant) -> list[ClusterAction]:
        """Handle the departure of a node, which has ended its attempts."""
        state = self._state
        node = state.inventory.nodes.get(event.node)
        if node is None:
            return []
        self._release_reservations(node)
        node.is_drained = True  # keeps jobs that end here from being started here again
        state.inventory.refresh(node)
        actions: list[ClusterAction] = []
        for job in list(node.attempts.values()):
            actions += state.end(job, JobEnd.EVICTED, "its node left", now)
        self._forget([node])
        return actions

    def drained(self, event: NodeDrained, now: Instant) -> list[ClusterAction]:
        """Drain a node, or end its draining."""
        state = self._state
        node = state.inventory.nodes.get(event.node)
        if node is None:
            return []
        actions: list[ClusterAction] = []
        if node.is_drained != event.on:
            node.is_drained = event.on
            self._release_reservations(node)
            if event.on and not event.keeps_jobs:
                for job in node.attempts.values():
                    actions += state.stop(job, "its node is drained", now)
            if state.inventory.refresh(node):
                state.request_early_round(now)
        return actions

    def check_leases(self, now: Instant) -> list[ClusterAction]:
        """Handle ended leases, and compute when the next lease may end."""
        state = self._state
        lease_ns, grace_ns = state.settings.lease_ns, state.settings.grace_ns
        actions: list[ClusterAction] = []
        state.lease_due = now + lease_ns
        forgotten: list[Node] = []
        for node in state.inventory.nodes.values():
            lease_end = node.last_report + lease_ns
            if now >= lease_end and not node.is_silent:
                self._silent(node, now)
            if node.is_silent:
                lease_end += grace_ns
                if now >= lease_end:
                    for job in list(node.attempts.values()):
                        actions += state.end(job, JobEnd.EVICTED, "its node was silent for too long", now)
                if not node.attempts:
                    if now >= lease_end + _FORGOTTEN_NS and not node.busy and not node.is_drained:
                        forgotten.append(node)
                    continue
            state.lease_due = min(state.lease_due, lease_end)
        if forgotten:
            self._forget(forgotten)
        return actions

    # -- one node ---------------------------------------------------------------------------------------------------

    def _join(self, event: NodeReport, now: Instant) -> Node:
        state = self._state
        node = Node(event.node, event.epoch, event.gpus, now)
        state.inventory.join(node)
        if state.lease_due == NEVER:
            state.lease_due = now + state.settings.lease_ns
        state.request_early_round(now)
        return node

    def _renew(self, node: Node, event: NodeReport, now: Instant) -> list[ClusterAction]:
        """Handle the restart of a node: attempts that it does not name have ended."""
        node.epoch = event.epoch
        named = {report.attempt.number for report in event.attempts}
        actions: list[ClusterAction] = []
        for number, job in list(node.attempts.items()):
            if number not in named:
                actions += self._state.end(job, JobEnd.EVICTED, "its node restarted", now)
        return actions

    def _silent(self, node: Node, now: Instant) -> None:
        state = self._state
        node.is_silent = True
        state.silent += 1
        state.inventory.refresh(node)
        for job in node.attempts.values():
            state.job_table.move(job, JobState.LOST, now)

    def _returned(self, node: Node, now: Instant) -> None:
        """Handle the first report after a silence.

        Attempts that the node kept running within its lease and grace stay.
        """
        state = self._state
        node.is_silent = False
        state.silent -= 1
        for job in node.attempts.values():
            state.job_table.move(job, _state_there(job), now)
        if state.inventory.refresh(node):
            state.request_early_round(now)

    def _forget(self, nodes: list[Node]) -> None:
        state = self._state
        state.silent -= sum(node.is_silent for node in nodes)
        state.inventory.leave(nodes)
        if not state.inventory.nodes:
            state.lease_due = NEVER

    def _release_reservations(self, node: Node) -> None:
        holders = [job for jobs in node.busy.values() for job in jobs]
        for job in {job.number: job for job in holders if job.reserved_on is node}.values():
            self._state.release_reservation(job)

    # -- reported and wanted attempts -------------------------------------------------------------------------------

    def _compare(self, node: Node, event: NodeReport, now: Instant) -> list[ClusterAction]:
        state = self._state
        wanted, turn = node.attempts, state.turn
        actions: list[ClusterAction] = []
        strays: list[int] = []
        missing = len(wanted)
        for report in event.attempts:
            job = wanted.get(report.attempt.number)
            if job is None or job.spec.name != report.attempt.job:
                actions += self._unwanted(node, report, strays)
            elif job.named != turn:
                job.named = turn
                missing -= 1
                job.progress_ppm = max(job.progress_ppm, report.progress_ppm)
                if report.end is not None:
                    actions += state.end(job, report.end, report.detail, now, is_reported=True)
                elif not job.is_known:
                    actions += self._first_reported(job, node, now)
                elif job.stop:
                    actions.append(state.order_stop(job, node))
                elif report.rate_ppm:
                    state.learn(job, node, report.rate_ppm)
        if missing:
            actions += self._missing(node, event, now)
        if strays or node.strays:
            self._set_strays(node, tuple(sorted(set(strays))), now)
        return actions

    def _first_reported(self, job: Job, node: Node, now: Instant) -> list[ClusterAction]:
        """Record that a started attempt was reported for the first time."""
        job.is_known = True
        if job.stop:
            return [self._state.order_stop(job, node)]
        self._state.job_table.move(job, JobState.RUNNING, now)
        if self._state.inventory.refresh(node):  # others may share its GPU
            self._state.request_early_round(now)
        return []

    def _unwanted(self, node: Node, report: AttemptReport, strays: list[int]) -> list[ClusterAction]:
        state = self._state
        # A number that was not issued yet comes from a controller that lost its state, and is never issued
        # again. The limit keeps a node that invents numbers from exhausting them.
        if report.attempt.number < state.next_attempt + _NUMBERS_LOST:
            state.next_attempt = max(state.next_attempt, report.attempt.number + 1)
        if report.end is not None:
            return []
        strays += report.gpus
        return [StopJob(node.name, report.attempt, "it is not wanted here")]

    def _missing(self, node: Node, event: NodeReport, now: Instant) -> list[ClusterAction]:
        """Handle wanted attempts that the report does not name."""
        state = self._state
        actions: list[ClusterAction] = []
        for number, job in list(node.attempts.items()):
            if job.named == state.turn:
                continue
            if event.highest_attempt >= number:
                actions += state.end(job, JobEnd.EVICTED, "its node no longer has it", now)
            elif job.stop:
                actions.append(state.order_stop(job, node))
            else:
                actions.append(state.order(job, node))
        return actions

    def _set_strays(self, node: Node, strays: tuple[int, ...], now: Instant) -> None:
        if strays != node.strays:
            node.strays = strays
            if self._state.inventory.refresh(node):
                self._state.request_early_round(now)


def _state_there(job: Job) -> JobState:
    """Return the state of a job on a node that reports."""
    if job.stop:
        return JobState.STOPPING
    return JobState.RUNNING if job.is_known else JobState.STARTING
