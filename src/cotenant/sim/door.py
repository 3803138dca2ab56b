"""The way to peers that are only numbers: who listens hears, who is gone does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from cotenant.domain.action import SignalKind
from cotenant.domain.gate import GateRules
from cotenant.domain.plan import Reject
from cotenant.domain.tenant import Terms
from cotenant.format.wire import Push, Restore, Signal, Suspend

Heard: TypeAlias = Terms | Reject | str | tuple[str, ...] | Push
"""What a peer hears: its terms, a refusal, how it ended, whom its wish was carried out for, or what it is to do."""
Hearing: TypeAlias = Callable[[Heard], None]


class SimDoor:
    """Connections by number; a peer is a function that hears."""

    __slots__ = ("_peers", "_sequence")

    def __init__(self) -> None:
        """Nobody is connected."""
        self._peers: dict[int, Hearing] = {}
        self._sequence = 0

    def connect(self, hear: Hearing) -> int:
        """A new connection; its number is never used again."""
        self._sequence += 1
        self._peers[self._sequence] = hear
        return self._sequence

    def disconnect(self, peer: int) -> None:
        """The peer is gone."""
        self._peers.pop(peer, None)

    def disconnect_all(self) -> list[int]:
        """The node's end died: all connections at once, in the order they were made."""
        peers = list(self._peers)
        self._peers.clear()
        return peers

    def welcome(self, peer: int, tenant: str, terms: Terms, handles: tuple[int, ...]) -> None:
        """Tell a peer its terms."""
        del tenant, handles
        if hear := self._peers.get(peer):
            hear(terms)

    def refuse(self, peer: int, reject: Reject) -> None:
        """Tell a peer why not."""
        if hear := self._peers.get(peer):
            hear(reject)

    def farewell(self, peer: int, ending: str) -> None:
        """Tell a peer that its slot is free."""
        if hear := self._peers.get(peer):
            hear(ending)

    def confirm(self, peer: int, tenants: tuple[str, ...], rules: GateRules) -> None:
        """Tell a peer for whom its wish was carried out."""
        del rules
        if hear := self._peers.get(peer):
            hear(tenants)

    def signal(self, peer: int, kind: SignalKind, why: str, *, again: bool) -> None:
        """Tell a tenant to ask its program to end, or to end it."""
        if hear := self._peers.get(peer):
            hear(Signal(kind, why, again))

    def suspend(self, peer: int, why: str) -> None:
        """Tell a tenant to move its program's device memory to the host."""
        if hear := self._peers.get(peer):
            hear(Suspend(why))

    def restore(self, peer: int) -> None:
        """Tell a tenant to move its program's memory back."""
        if hear := self._peers.get(peer):
            hear(Restore())
