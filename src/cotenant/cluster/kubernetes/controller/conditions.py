"""Why pods wait, as a condition and an event of each pod, written seldom enough for thousands of waiting pods.

A pod gets its first condition when it has waited for some seconds, because most are placed before that. Afterwards the
condition is written when its reason changes, and when its text changed and the last writing is some minutes ago: the
text has numbers that change in every round. Each tick looks at a part of the pods, and only as many are written as the
rate of reports permits; nothing piles up in the queue.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import Response
from cotenant.cluster.kubernetes.controller.dispatcher import Dispatcher, Operation, Urgency
from cotenant.cluster.kubernetes.controller.manifests import create_event, set_condition
from cotenant.cluster.kubernetes.controller.mapping import instant_of
from cotenant.cluster.kubernetes.controller.objects import Pod
from cotenant.cluster.kubernetes.controller.starts import Phase, Starts
from cotenant.cluster.kubernetes.controller.view import ClusterView
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.cluster.state.reasons import Reasons
from cotenant.units.instant import SECOND_NS, Instant

PLACED: Final = "Placed"
INVALID: Final = "InvalidAnnotation"
WAITS: Final = "WaitsForRound"
_REASONS: Final = (
    ("no node has joined", "NoNode"),
    ("none of", "NoSuitableGpu"),
    ("no node has", "NoSuitableNode"),
    ("only ", "GangIncomplete"),
    ("it waits for a round in which its gang", "GangWaits"),
    ("it waits for one of the next rounds", WAITS),
    ("it waits for the controllers that remove its gate", "OtherGates"),
    ("its claim could not be", "NoClaim"),
    ("a claim ", "NoClaim"),
    ("the annotation ", INVALID),
)
"""How the sentences of `cotenant.cluster.state.reasons` begin, and the reason of the condition."""
_FIRST_NS: Final = 5 * SECOND_NS
_AGAIN_NS: Final = 300 * SECOND_NS
_LOOKED_AT: Final = 500
"""Pods that one tick looks at."""
_QUEUED: Final = 40
"""Reports in the queue beyond which a tick adds none."""


class WrittenReason(NamedTuple):
    """What was last written about a pod."""

    reason: str
    message: str
    instant: Instant


def reason_of(message: str) -> str:
    """Return the reason in CamelCase for a sentence about a waiting pod."""
    if message.startswith("none of") and "is open" in message.split(":", 1)[0]:
        return "NoOpenGpu"
    return next((reason for begin, reason in _REASONS if message.startswith(begin)), WAITS)


def capitalized(message: str) -> str:
    """Return a sentence that begins with a capital letter."""
    return message[:1].upper() + message[1:]


class Conditions:
    """Writes conditions and events."""

    def __init__(self, view: ClusterView, starts: Starts, machine: ClusterMachine, dispatcher: Dispatcher) -> None:
        self._view, self._starts, self._machine, self._dispatcher = view, starts, machine, dispatcher
        self._queue: deque[str] = deque()
        self._queued: set[str] = set()
        self._written: dict[str, WrittenReason] = {}
        self.unexplained = 0
        """Waiting pods that a tick found without a written reason."""

    def watch(self, uid: str) -> None:
        """Look at a pod from now on, until it is placed and that was written, or it is gone."""
        if uid not in self._queued:
            self._queued.add(uid)
            self._queue.append(uid)

    def tick(self, now: Instant) -> None:
        """Write what changed about a part of the pods."""
        reasons = Reasons(self._machine)
        for _ in range(min(len(self._queue), _LOOKED_AT)):
            if self._dispatcher.reports_waiting >= _QUEUED:
                return
            uid = self._queue.popleft()
            pod = self._view.pods.get(uid)
            if pod is None:
                self._queued.discard(uid)
                self._written.pop(uid, None)
            elif self._look_at(pod, reasons, now):
                self._queue.append(uid)
            else:
                self._queued.discard(uid)
                self._written.pop(uid, None)

    def _look_at(self, pod: Pod, reasons: Reasons, now: Instant) -> bool:
        """Write the condition of a pod if that is due; return whether to look at it again."""
        uid = pod.uid
        last = self._written.get(uid) or _found(pod, now)
        start = self._starts.by_uid.get(uid)
        if start is not None and start.phase is Phase.RELEASED:
            message = f"placed on node {start.node}, GPU {', '.join(start.pinned.uuids)}"
            if last is None or last.reason != PLACED:
                self._write(pod, WrittenReason(PLACED, message, now))
            return False
        message = self.message_of(uid, reasons)
        if not message:
            return pod.is_gated or not self._is_correct(pod, last, now)
        if last is None:
            self.unexplained += 1
            is_due = now >= (instant_of(pod.metadata.creation_timestamp) or 0) + _FIRST_NS
        else:
            is_other = reason_of(message) != last.reason or _history(message) != _history(last.message)
            is_due = is_other or (message != last.message and now >= last.instant + _AGAIN_NS)
        if is_due:
            self._write(pod, WrittenReason(reason_of(message), message, now))
        return True

    def _is_correct(self, pod: Pod, last: WrittenReason | None, now: Instant) -> bool:
        """Correct the condition of a pod that does not wait for a round; return whether nothing more is to be done."""
        if last is None or last.reason == PLACED:
            return True
        if self._view.claim_of(pod) is None:
            return False  # its claim is being created
        self._write(pod, WrittenReason(PLACED, "its claim exists, and kube-scheduler chooses the GPU", now))
        return True

    def message_of(self, uid: str, reasons: Reasons) -> str:
        """Return why a pod waits; empty: it does not."""
        if error := self._view.errors.get(uid) or self._view.gated_by_others.get(uid):
            return error
        spec = self._view.specs.get(uid)
        job = None if spec is None else self._machine.job(spec.name, reasons)
        return "" if job is None or job.state.value != "waiting" else job.why

    def _write(self, pod: Pod, written: WrittenReason) -> None:
        uid, text = pod.uid, capitalized(written.message)
        is_placed = written.reason == PLACED
        self._written[uid] = written
        condition = set_condition(
            pod, is_placed=is_placed, reason=written.reason, message=text, unix_time_ns=written.instant
        )
        event = create_event(pod, reason=written.reason, message=text, unix_time_ns=written.instant)
        for request in (condition, event):
            self._dispatcher.submit(Operation(Urgency.REPORT, request, _ignore, lambda: uid in self._view.pods))


def _history(message: str) -> str:
    """Return the part of a sentence about what happened before; its present part has changing numbers."""
    return message.partition("; before that: ")[2]


def _ignore(response: Response) -> None:
    """Drop the answer: a pod that is gone needs no reason, and the next change is written again."""
    del response


def _found(pod: Pod, now: Instant) -> WrittenReason | None:
    """Return what an earlier controller wrote."""
    for condition in pod.status.conditions:
        if condition.type == names.CONDITION_PLACED:
            message = condition.message[:1].lower() + condition.message[1:]
            return WrittenReason(condition.reason, message, now)
    return None
