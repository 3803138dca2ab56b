"""The node's Unix socket. A malformed, oversized, slow or hostile peer loses its own connection and nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from cotenant.domain.action import SignalKind
from cotenant.domain.event import (
    Event,
    EvictAsked,
    ObjectiveChanged,
    PeerLost,
    PriorityChanged,
    QuitAsked,
    RulesChanged,
    ShareChanged,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantRestored,
    TenantResumed,
    TenantsPaused,
    TenantSuspended,
)
from cotenant.domain.gate import GateRules
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.domain.plan import Reject
from cotenant.domain.tenant import TenantSpec, Terms
from cotenant.errors import PeerError
from cotenant.format import wire
from cotenant.live.loop import READ, WRITE, LiveLoop
from cotenant.port import Clock

PATIENCE_NS: Final = 5 * SECOND_NS
"""How long a peer may take for a frame it began, or to say anything before it is a tenant."""
_READ_BYTES: Final = 4096
_UNSENT_LIMIT_BYTES: Final = wire.ANSWER_LIMIT_BYTES
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CREDENTIALS: Final = struct.Struct("3i")


class _Peer:
    """One connection."""

    __slots__ = (
        *("blocked", "frames", "is_owner", "joins", "number", "pid", "requests", "socket", "tenant", "uid", "unsent"),
        "unsent_bytes",
    )

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number
        self.frames = wire.Frames()
        self.requests: deque[bytes] = deque()
        self.unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self.unsent_bytes = 0
        self.tenant = False
        self.joins = False  # whether it asked to be a tenant and was not answered yet: others may have to make room
        self.blocked = False  # whether answers wait for the peer to read
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, self.uid, _ = _CREDENTIALS.unpack(raw)
        self.is_owner = self.uid == os.geteuid()  # whether the node itself is this user's


def _wished_by(peer: _Peer, wish: wire.Wish) -> Event:
    """What somebody wants changed while the node runs; who that is, is the kernel's word."""
    who = (peer.number, peer.uid, peer.is_owner)
    match wish:
        case wire.Pause(names=names, all_offline=all_offline, paused=paused):
            return TenantsPaused(*who, tuple(names), all_offline, paused)
        case wire.SetPriority(name=name, priority=priority):
            return PriorityChanged(*who, name, priority)
        case wire.SetShare(name=name, share_ppm=share_ppm, limit=limit):
            return ShareChanged(*who, name, share_ppm, limit)
        case wire.SetObjective(name=name, slo_ns=slo_ns):
            return ObjectiveChanged(*who, name, slo_ns)
        case wire.SetRules(change=change):
            return RulesChanged(peer.number, peer.is_owner, change)
        case wire.EvictTenants(names=names, grace_ns=grace_ns):
            return EvictAsked(*who, tuple(names), grace_ns)


def _said_by_parent(peer: int, said: wire.Quit | wire.Suspended | wire.Restored | wire.Restarted) -> Event:
    """What a tenant's parent tells of its program; from anybody else the machine takes no notice of it."""
    match said:
        case wire.Quit(grace_ns=grace_ns):
            return QuitAsked(peer, grace_ns)
        case wire.Suspended(ok=ok, detail=detail):
            return TenantSuspended(peer, ok, detail)
        case wire.Restored(ok=ok, detail=detail):
            return TenantRestored(peer, ok, detail)
        case wire.Restarted(ending=ending, restarts=restarts):
            return TenantRestarted(peer, ending, restarts)


class LiveDoor:
    """Accepts, reads, answers. What peers say becomes events; what the machine decides becomes answers."""

    def __init__(
        self,
        loop: LiveLoop,
        clock: Clock,
        listener: socket.socket,
        roll: Callable[[], wire.Tenants],
        most: int,
        foresee: Callable[[TenantSpec], None] | None = None,
        environment: Callable[[Terms], dict[str, str]] | None = None,
    ) -> None:
        """Serve on this listening socket; `roll` answers who is here, `most` bounds the connections.

        `foresee` sees what a newcomer wants before the machine does; `environment` says what its program needs to know.
        """
        self._foresee = foresee
        self._environment = environment
        self._loop = loop
        self._clock = clock
        self._listener = listener
        self._roll = roll
        self._most = most
        self._sequence = 0
        self._deaf = False  # whether we stopped accepting for want of descriptors
        self._peers: dict[int, _Peer] = {}
        self._owing: dict[int, Instant] = {}  # deadlines in the order they were set, which is also their own order
        listener.setblocking(False)
        loop.watch(listener.fileno(), READ, self._accept)
        loop.add_timed(self)

    # -- what the machine decided ------------------------------------------------------------------------------

    def welcome(self, peer: int, tenant: str, terms: Terms, handles: tuple[int, ...]) -> None:
        """Tell a peer its terms and pass the page and its device's gate along."""
        found = self._peers.get(peer)
        if found is None:
            self._loop.post(PeerLost(peer))
            return
        found.tenant = True
        found.joins = False
        self._owing.pop(peer, None)
        environment = {} if self._environment is None else self._environment(terms)
        self._send(found, wire.Welcome(wire.VERSION, tenant, terms, environment), handles)

    def refuse(self, peer: int, reject: Reject) -> None:
        """Tell a peer why not."""
        if found := self._peers.get(peer):
            if found.joins:
                found.joins = False
                self._owe(found)
            self._send(found, wire.Refused(reject))

    def farewell(self, peer: int, ending: str) -> None:
        """Tell a peer that its slot is free; it is an ordinary peer again."""
        if found := self._peers.get(peer):
            found.tenant = False
            self._owe(found)
            self._send(found, wire.Farewell(ending))

    def confirm(self, peer: int, tenants: tuple[str, ...], rules: GateRules) -> None:
        """Tell a peer that it is as it wished."""
        if found := self._peers.get(peer):
            self._send(found, wire.Confirmed(list(tenants), rules))

    def signal(self, peer: int, kind: SignalKind, why: str, *, again: bool) -> None:
        """Tell a tenant to ask its program to end, or to end it."""
        if found := self._peers.get(peer):
            self._send(found, wire.Signal(kind, why, again))

    def suspend(self, peer: int, why: str) -> None:
        """Tell a tenant to move its program's device memory to the host."""
        if found := self._peers.get(peer):
            self._send(found, wire.Suspend(why))

    def restore(self, peer: int) -> None:
        """Tell a tenant to move its program's memory back."""
        if found := self._peers.get(peer):
            self._send(found, wire.Restore())

    # -- time --------------------------------------------------------------------------------------------------

    def next_wakeup(self) -> Instant | None:
        """The first deadline of a peer that owes us something."""
        return next(iter(self._owing.values()), None)

    def wake(self, now: Instant) -> None:
        """Close the connections whose patience has run out."""
        for number in [number for number, deadline in self._owing.items() if now >= deadline]:
            self._drop(self._peers[number], "nothing complete came for too long")

    def close(self) -> None:
        """Close every connection without a word: tenants take it as a node that will come back."""
        for peer in list(self._peers.values()):
            self._forget(peer)
        if not self._deaf:
            self._loop.forget(self._listener.fileno())
        self._listener.close()

    # -- peers -------------------------------------------------------------------------------------------------

    def _accept(self, mask: int) -> None:
        del mask
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            if not self._make_room():  # the newcomer stays in the backlog until a descriptor is free
                self._loop.forget(self._listener.fileno())
                self._deaf = True
            return
        connection.setblocking(False)
        self._sequence += 1
        peer = _Peer(connection, self._sequence)
        if len(self._peers) >= self._most and not self._make_room():
            self._drop(peer, "too many connections, all of them tenants")
            return
        self._peers[peer.number] = peer
        self._owe(peer)
        self._loop.watch(connection.fileno(), READ, lambda ready: self._ready(peer, ready))

    def _make_room(self) -> bool:
        """The oldest connection that is no tenant goes: whoever means well speaks at once. A tenant keeps its place."""
        oldest = next((peer for peer in self._peers.values() if not peer.tenant and not peer.joins), None)
        if oldest is not None:
            self._drop(oldest, "too many connections")
        return oldest is not None

    def _ready(self, peer: _Peer, mask: int) -> None:
        if mask & WRITE:
            self._flush(peer)
        if mask & READ and peer.number in self._peers:
            self._receive(peer)
        self._answer(peer)

    def _receive(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._lose(peer)
            return
        try:
            peer.requests.extend(peer.frames.feed(data))
        except PeerError as error:
            self._drop(peer, str(error))
            return
        if (peer.tenant or peer.joins) and not peer.frames.partial:
            self._owing.pop(peer.number, None)
        elif peer.requests or peer.number not in self._owing:
            self._owe(peer)

    def _owe(self, peer: _Peer) -> None:
        self._owing.pop(peer.number, None)
        self._owing[peer.number] = self._clock.now() + PATIENCE_NS

    def _answer(self, peer: _Peer) -> None:
        """Take requests one by one; a peer that does not read its answers is not listened to."""
        while peer.requests and not peer.unsent and peer.number in self._peers:
            try:
                self._take(peer, wire.decode_request(peer.requests.popleft()))
            except PeerError as error:
                self._drop(peer, str(error))

    def _take(self, peer: _Peer, request: wire.Request) -> None:
        version = getattr(request, "version", wire.VERSION)
        if version != wire.VERSION:
            raise PeerError(f"this node speaks version {wire.VERSION} of the protocol, not {version}")
        match request:
            case wire.Join(spec=spec):
                self._take_join(peer, spec)
            case wire.Resume(slot=slot, generation=generation):
                self._loop.post(TenantResumed(peer.number, peer.pid, peer.uid, slot, generation))
            case wire.Leave(ending=ending):
                self._loop.post(TenantLeft(peer.number, ending))
            case wire.List():
                self._send(peer, self._roll())
            case wire.Quit() | wire.Suspended() | wire.Restored() | wire.Restarted():
                self._loop.post(_said_by_parent(peer.number, request))
            case _:
                self._loop.post(_wished_by(peer, request))

    def _take_join(self, peer: _Peer, spec: TenantSpec) -> None:
        """While others make room for it, it owes us nothing."""
        if self._foresee is not None:
            self._foresee(spec)
        peer.joins = not peer.tenant
        self._loop.post(TenantJoined(peer.number, peer.pid, peer.uid, spec))
        if peer.joins:
            self._owing.pop(peer.number, None)

    def _send(self, peer: _Peer, message: wire.Answer, descriptors: tuple[int, ...] = ()) -> None:
        data = wire.encode(message)
        peer.unsent.append((memoryview(data), descriptors))
        peer.unsent_bytes += len(data)
        if peer.unsent_bytes > _UNSENT_LIMIT_BYTES:
            self._lose(peer)
            return
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.unsent:
                data, descriptors = peer.unsent[0]
                connection = peer.socket
                sent = socket.send_fds(connection, [data], [*descriptors]) if descriptors else connection.send(data)
                peer.unsent_bytes -= sent
                if sent < len(data):
                    peer.unsent[0] = (data[sent:], ())  # descriptors travel with the first byte
                else:
                    peer.unsent.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._lose(peer)
            return
        # While answers wait, nothing more is read from this peer: its own socket buffer pushes back.
        if peer.blocked != bool(peer.unsent):
            peer.blocked = bool(peer.unsent)
            interest = WRITE if peer.blocked else READ
            self._loop.watch(peer.socket.fileno(), interest, lambda ready: self._ready(peer, ready))

    def _drop(self, peer: _Peer, why: str) -> None:
        with contextlib.suppress(OSError):
            peer.socket.send(wire.encode(wire.Wrong(why)))
        self._lose(peer)

    def _lose(self, peer: _Peer) -> None:
        self._forget(peer)
        if peer.tenant or peer.joins:
            peer.tenant = peer.joins = False
            self._loop.post(PeerLost(peer.number))

    def _forget(self, peer: _Peer) -> None:
        if self._peers.pop(peer.number, None) is not None:
            self._owing.pop(peer.number, None)
            self._loop.forget(peer.socket.fileno())
            if self._deaf:
                self._deaf = False
                self._loop.watch(self._listener.fileno(), READ, self._accept)
        peer.socket.close()
