"""Attaches that wait: until their tenant has joined, or until an operator has answered what their pod may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cotenant.node import wire
from cotenant.node.daemon.connection import PeerConnection
from cotenant.units.instant import SECOND_NS, Instant

ANSWER_NS: Final = 8 * SECOND_NS
"""How long a pod waits for an answer; the hook waits for 10 s."""
PODS_LIMIT: Final = 256
"""The largest number of pods that wait at once."""


class WaitingAttach(NamedTuple):
    """An attach that cannot be answered yet."""

    connection: PeerConnection
    message: wire.Attach
    descriptor: int


class WaitingPods:
    """Pods whose processes wait for an operator's answer, the one that waits longest first."""

    def __init__(self) -> None:
        """Begin without pods."""
        self._attaches: dict[str, list[WaitingAttach]] = {}
        self._until: dict[str, Instant] = {}

    def add(self, pod: str, attach: WaitingAttach, now: Instant) -> bool:
        """Let an attach wait for the answer about its pod; return False if too many pods wait."""
        if pod not in self._attaches and len(self._attaches) >= PODS_LIMIT:
            return False
        self._attaches.setdefault(pod, []).append(attach)
        self._until.setdefault(pod, now + ANSWER_NS)
        return True

    def uids(self) -> list[str]:
        """Return the uids of the pods."""
        return list(self._attaches)

    def take(self, pod: str) -> Sequence[WaitingAttach]:
        """Remove a pod and return its attaches."""
        self._until.pop(pod, None)
        return self._attaches.pop(pod, [])

    def remove(self, connection: PeerConnection) -> list[WaitingAttach]:
        """Remove and return the attaches of a connection that closed."""
        removed = []
        for pod, attaches in list(self._attaches.items()):
            removed += [attach for attach in attaches if attach.connection is connection]
            left = [attach for attach in attaches if attach.connection is not connection]
            if left:
                self._attaches[pod] = left
            else:
                self.take(pod)
        return removed

    def next_wakeup(self) -> Instant | None:
        """Return when the pod that waits longest has waited too long."""
        return next(iter(self._until.values()), None)

    def expired(self, now: Instant) -> list[str]:
        """Return the pods that have waited too long."""
        return [pod for pod, until_ns in self._until.items() if now >= until_ns]
