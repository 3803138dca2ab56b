"""A simulated listener whose peers are functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from cotenant.gate.grant import Grant
from cotenant.gate.rules import GateRules
from cotenant.node.model.action import SignalKind
from cotenant.node.model.admission import Reject
from cotenant.node.wire import Push, Restore, Signal, Suspend

PeerMessage: TypeAlias = Grant | Reject | str | tuple[str, ...] | Push
"""A message to a peer: its grant, a refusal, its ending, the tenants of its command, or a request to act."""
ReceiveMessage: TypeAlias = Callable[[PeerMessage], None]


class SimListener:
    """Connections by number; each peer is a function that receives messages."""

    __slots__ = ("_peers", "_sequence")

    def __init__(self) -> None:
        """Begin without connections."""
        self._peers: dict[int, ReceiveMessage] = {}
        self._sequence = 0

    def connect(self, receive: ReceiveMessage) -> int:
        """Add a connection; its number is never reused."""
        self._sequence += 1
        self._peers[self._sequence] = receive
        return self._sequence

    def disconnect(self, peer: int) -> None:
        """Close a connection from the peer's side."""
        self._peers.pop(peer, None)

    def disconnect_all(self) -> list[int]:
        """Close all connections, as when the daemon dies; return them in the order of connection."""
        peers = list(self._peers)
        self._peers.clear()
        return peers

    def welcome(self, peer: int, tenant: str, grant: Grant, handles: tuple[int, ...]) -> None:
        """Send a peer its grant."""
        del tenant, handles
        if receive := self._peers.get(peer):
            receive(grant)

    def refuse(self, peer: int, reject: Reject) -> None:
        """Send a peer a refusal."""
        if receive := self._peers.get(peer):
            receive(reject)

    def farewell(self, peer: int, ending: str) -> None:
        """Notify a peer that its slot is free."""
        if receive := self._peers.get(peer):
            receive(ending)

    def released(self, slot: int, generation: int) -> None:
        """Do nothing: simulated tenants have no processes of their own."""

    def confirm(self, peer: int, tenants: tuple[str, ...], rules: GateRules) -> None:
        """Notify a peer for which tenants its command was carried out."""
        del rules
        if receive := self._peers.get(peer):
            receive(tenants)

    def signal(self, peer: int, kind: SignalKind, why: str, *, may_restart: bool) -> None:
        """Ask a tenant's parent to end its program with a signal, or to kill it."""
        if receive := self._peers.get(peer):
            receive(Signal(kind, why, may_restart))

    def suspend(self, peer: int, why: str) -> None:
        """Ask a tenant's parent to move its program's device memory to the host."""
        if receive := self._peers.get(peer):
            receive(Suspend(why))

    def restore(self, peer: int) -> None:
        """Ask a tenant's parent to move its program's memory back."""
        if receive := self._peers.get(peer):
            receive(Restore())
