"""What does a cluster make of what its nodes say, and of their silence?

A report is a node's whole truth. It is compared with what is wanted there, and the difference is sent, again with every
report until there is none: nothing is lost with a message.
"""

from __future__ import annotations

from typing import Final

from cotenant.domain.cluster import AttemptReport, JobEnd, JobState
from cotenant.domain.clusters import AckEnd, ClusterAction, NodeDrained, NodeGone, NodeTold, StopJob
from cotenant.domain.instant import NEVER, SECOND_NS, Instant
from cotenant.domain.plan import Reason
from cotenant.machine.cluster_floor import Node
from cotenant.machine.cluster_jobs import Job
from cotenant.machine.cluster_state import ClusterState

_FORGOTTEN_NS: Final = 24 * 3600 * SECOND_NS
"""For so long a node that has nothing is remembered in its silence; one that is drained, until it leaves or speaks."""
_NUMBERS_LOST: Final = 1 << 32
"""More attempts than a brain can have given out and forgotten."""


class Nodes:
    """Reports, leaves, drains and leases."""

    def __init__(self, state: ClusterState) -> None:
        """Speak for this cluster."""
        self._state = state

    def told(self, event: NodeTold, now: Instant) -> list[ClusterAction]:
        """A node reports."""
        state = self._state
        node = state.floor.nodes.get(event.node)
        actions: list[ClusterAction] = []
        if node is None:
            node = self._join(event, now)
        elif event.epoch != node.epoch:
            if event.epoch < node.epoch and (node.attempts or not node.is_silent):
                return []  # on its way since before the node started anew
            actions = self._renew(node, event, now)
        node.heard = max(node.heard, now)  # a longer lease that it was given before holds until it has run out
        if node.is_silent:
            self._returned(node, now)
        if event.gpus is not node.gpus and state.floor.tell(node, event.gpus):
            state.stirred(now)
        if event.attempts or node.attempts or node.strays:
            return [*actions, *self._compare(node, event, now)]
        return actions

    def gone(self, event: NodeGone, now: Instant) -> list[ClusterAction]:
        """A node leaves, having ended what was there."""
        state = self._state
        node = state.floor.nodes.get(event.node)
        if node is None:
            return []
        self._keep_nothing(node)
        node.is_drained = True  # nothing that ends here goes on here
        state.floor.refresh(node)
        actions: list[ClusterAction] = []
        for job in list(node.attempts.values()):
            actions += state.end(job, JobEnd.EVICTED, "its node left", now)
        self._forget([node])
        return actions

    def drained(self, event: NodeDrained, now: Instant) -> list[ClusterAction]:
        """An operator wants a node's jobs elsewhere, or takes that back."""
        state = self._state
        node = state.floor.nodes.get(event.node)
        if node is None:
            return state.refuse(event.peer, Reason.UNKNOWN_NODE, f"no node is called {event.node!r}")
        actions: list[ClusterAction] = []
        if node.is_drained != event.on:
            node.is_drained = event.on
            self._keep_nothing(node)
            if event.on:
                for job in node.attempts.values():
                    actions += state.stop(job, "its node is drained", now)
            if state.floor.refresh(node):
                state.stirred(now)
        return [*actions, *state.answer(event.peer)]

    def check_leases(self, now: Instant) -> list[ClusterAction]:
        """Who was silent for too long, and when that may happen next."""
        state = self._state
        lease_ns, grace_ns = state.settings.lease_ns, state.settings.grace_ns
        actions: list[ClusterAction] = []
        state.lease_due = now + lease_ns
        forgotten: list[Node] = []
        for node in state.floor.nodes.values():
            until = node.heard + lease_ns
            if now >= until and not node.is_silent:
                self._silent(node, now)
            if node.is_silent:
                until += grace_ns
                if now >= until:
                    for job in list(node.attempts.values()):
                        actions += state.end(job, JobEnd.EVICTED, "its node was silent for too long", now)
                if not node.attempts:
                    if now >= until + _FORGOTTEN_NS and not node.busy and not node.is_drained:
                        forgotten.append(node)
                    continue
            state.lease_due = min(state.lease_due, until)
        if forgotten:
            self._forget(forgotten)
        return actions

    # -- one node --------------------------------------------------------------------------------------------------

    def _join(self, event: NodeTold, now: Instant) -> Node:
        state = self._state
        node = Node(event.node, event.epoch, event.gpus, now)
        state.floor.join(node)
        if state.lease_due == NEVER:
            state.lease_due = now + state.settings.lease_ns
        state.stirred(now)
        return node

    def _renew(self, node: Node, event: NodeTold, now: Instant) -> list[ClusterAction]:
        """The node started anew: what it does not name has ended."""
        node.epoch = event.epoch
        named = {report.attempt.number for report in event.attempts}
        actions: list[ClusterAction] = []
        for number, job in list(node.attempts.items()):
            if number not in named:
                actions += self._state.end(job, JobEnd.EVICTED, "its node started anew", now)
        return actions

    def _silent(self, node: Node, now: Instant) -> None:
        state = self._state
        node.is_silent = True
        state.silent += 1
        state.floor.refresh(node)
        for job in node.attempts.values():
            state.roster.move(job, JobState.LOST, now)

    def _returned(self, node: Node, now: Instant) -> None:
        """A silent node speaks again. What it has kept running, within the time that it had, it keeps."""
        state = self._state
        node.is_silent = False
        state.silent -= 1
        for job in node.attempts.values():
            state.roster.move(job, _state_there(job), now)
        if state.floor.refresh(node):
            state.stirred(now)

    def _forget(self, nodes: list[Node]) -> None:
        state = self._state
        state.silent -= sum(node.is_silent for node in nodes)
        state.floor.leave(nodes)
        if not state.floor.nodes:
            state.lease_due = NEVER

    def _keep_nothing(self, node: Node) -> None:
        for job in {job.number: job for job in node.busy.values() if job.kept_on is node}.values():
            self._state.let_go(job)

    # -- what is there, and what is wanted -------------------------------------------------------------------------

    def _compare(self, node: Node, event: NodeTold, now: Instant) -> list[ClusterAction]:
        state = self._state
        wanted, turn = node.attempts, state.turn
        actions: list[ClusterAction] = []
        strays: list[int] = []
        missing = len(wanted)
        for report in event.attempts:
            job = wanted.get(report.attempt.number)
            if job is None or job.spec.name != report.attempt.job:
                actions.append(self._unwanted(node, report, strays))
            elif job.named != turn:
                job.named = turn
                missing -= 1
                job.progress_ppm = max(job.progress_ppm, report.progress_ppm)
                if report.end is not None:
                    actions.append(AckEnd(node.name, report.attempt))
                    actions += state.end(job, report.end, report.detail, now, is_reported=True)
                elif not job.is_known:
                    actions += self._found(job, node, now)
                elif job.stop:
                    actions.append(state.order_stop(job, node))
                elif report.rate_ppm:
                    state.learn(job, node, report.rate_ppm)
        if missing:
            actions += self._missing(node, event, now)
        if strays or node.strays:
            self._set_strays(node, tuple(sorted(set(strays))), now)
        return actions

    def _found(self, job: Job, node: Node, now: Instant) -> list[ClusterAction]:
        """An attempt is there of which that was not yet known."""
        job.is_known = True
        if job.stop:
            return [self._state.order_stop(job, node)]
        self._state.roster.move(job, JobState.RUNNING, now)
        return []

    def _unwanted(self, node: Node, report: AttemptReport, strays: list[int]) -> ClusterAction:
        state = self._state
        # One that was not given out yet is of a brain that has lost what it knew: it is never given out again. A node
        # that makes numbers up must not use them up.
        if report.attempt.number < state.next_attempt + _NUMBERS_LOST:
            state.next_attempt = max(state.next_attempt, report.attempt.number + 1)
        if report.end is not None:
            return AckEnd(node.name, report.attempt)
        strays += report.gpus
        return StopJob(node.name, report.attempt, "it is not wanted here")

    def _missing(self, node: Node, event: NodeTold, now: Instant) -> list[ClusterAction]:
        """What is wanted there and was not named."""
        state = self._state
        actions: list[ClusterAction] = []
        for number, job in list(node.attempts.items()):
            if job.named == state.turn:
                continue
            if event.seen >= number:
                actions += state.end(job, JobEnd.EVICTED, "its node does not know of it any more", now)
            elif job.stop:
                actions.append(state.order_stop(job, node))
            else:
                actions.append(state.order(job, node))
        return actions

    def _set_strays(self, node: Node, strays: tuple[int, ...], now: Instant) -> None:
        if strays != node.strays:
            node.strays = strays
            if self._state.floor.refresh(node):
                self._state.stirred(now)


def _state_there(job: Job) -> JobState:
    """Of a job on a node that speaks."""
    if job.stop:
        return JobState.STOPPING
    return JobState.RUNNING if job.is_known else JobState.STARTING
