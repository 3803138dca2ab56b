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

from cotenant.errors import PeerError
from cotenant.gate.grant import Grant
from cotenant.gate.rules import GateRules
from cotenant.node import wire
from cotenant.node.model.action import SignalKind
from cotenant.node.model.admission import Reject
from cotenant.node.model.event import (
    Event,
    EvictionRequested,
    ObjectiveChanged,
    PeerLost,
    PriorityChanged,
    QuitRequested,
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
from cotenant.node.model.tenant import TenantSpec
from cotenant.runner.live_loop import READ, WRITE, LiveLoop
from cotenant.runner.ports import Clock
from cotenant.units.instant import SECOND_NS, Instant

PATIENCE_NS: Final = 5 * SECOND_NS
"""Time that a peer has to complete a frame, or to send a request before it is a tenant."""
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
        self.joins = False  # whether its join is unanswered: the node may have to evict tenants first
        self.blocked = False  # whether unsent answers wait until the peer reads
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, self.uid, _ = _CREDENTIALS.unpack(raw)
        self.is_owner = self.uid == os.geteuid()  # whether the peer runs as the user of the node


def _command_event(peer: _Peer, command: wire.Command) -> Event:
    """Return the event of a command; its user id comes from the kernel (SO_PEERCRED)."""
    origin = (peer.number, peer.uid, peer.is_owner)
    match command:
        case wire.Pause(names=names, all_offline=all_offline, paused=paused):
            return TenantsPaused(*origin, tuple(names), all_offline, paused)
        case wire.SetPriority(name=name, priority=priority):
            return PriorityChanged(*origin, name, priority)
        case wire.SetShare(name=name, share_ppm=share_ppm, limit=limit):
            return ShareChanged(*origin, name, share_ppm, limit)
        case wire.SetObjective(name=name, slo_ns=slo_ns):
            return ObjectiveChanged(*origin, name, slo_ns)
        case wire.SetRules(change=change):
            return RulesChanged(peer.number, peer.is_owner, change)
        case wire.EvictTenants(names=names, grace_ns=grace_ns):
            return EvictionRequested(*origin, tuple(names), grace_ns)


def _parent_event(
    peer: int, message: wire.Quit | wire.SuspendResult | wire.RestoreResult | wire.RestartReport
) -> Event:
    """Return the event of a message from a tenant's parent; the state machine ignores it from other peers."""
    match message:
        case wire.Quit(grace_ns=grace_ns):
            return QuitRequested(peer, grace_ns)
        case wire.SuspendResult(ok=ok, detail=detail):
            return TenantSuspended(peer, ok, detail)
        case wire.RestoreResult(ok=ok, detail=detail):
            return TenantRestored(peer, ok, detail)
        case wire.RestartReport(ending=ending, restarts=restarts):
            return TenantRestarted(peer, ending, restarts)


class LiveListener:
    """Turns requests of peers into events, and decisions of the state machine into answers."""

    def __init__(
        self,
        loop: LiveLoop[Event],
        clock: Clock,
        listener: socket.socket,
        tenant_list: Callable[[], wire.TenantList],
        limit: int,
        on_join: Callable[[TenantSpec], None] | None = None,
        environment: Callable[[Grant], dict[str, str]] | None = None,
    ) -> None:
        """Serve on this listening socket; `tenant_list` returns the tenants, `limit` bounds the connections.

        `on_join` receives the spec of a join before the state machine; `environment` returns variables for its program.
        """
        self._on_join = on_join
        self._environment = environment
        self._loop = loop
        self._clock = clock
        self._listener = listener
        self._list_tenants = tenant_list
        self._limit = limit
        self._sequence = 0
        self._is_full = False  # whether accepting is stopped because no descriptor is free
        self._peers: dict[int, _Peer] = {}
        self._deadlines: dict[
            int, Instant
        ] = {}  # in the order in which they were set, which is also the order of the instants
        listener.setblocking(False)
        loop.watch(listener.fileno(), READ, self._accept)
        loop.add_timer(self)

    # -- decisions of the state machine ------------------------------------------------------------------------------

    def welcome(self, peer: int, tenant: str, grant: Grant, handles: tuple[int, ...]) -> None:
        """Send a peer its grant with the descriptors of its page and of its device's gate."""
        connection = self._peers.get(peer)
        if connection is None:
            self._loop.post(PeerLost(peer))
            return
        connection.tenant = True
        connection.joins = False
        self._deadlines.pop(peer, None)
        environment = {} if self._environment is None else self._environment(grant)
        self._send(connection, wire.Welcome(wire.VERSION, tenant, grant, environment), handles)

    def refuse(self, peer: int, reject: Reject) -> None:
        """Send a refusal with its reason."""
        if connection := self._peers.get(peer):
            if connection.joins:
                connection.joins = False
                self._set_deadline(connection)
            self._send(connection, wire.Refusal(reject))

    def farewell(self, peer: int, ending: str) -> None:
        """Notify a peer that its slot is free; it is an ordinary peer again."""
        if connection := self._peers.get(peer):
            connection.tenant = False
            self._set_deadline(connection)
            self._send(connection, wire.SlotReleased(ending))

    def confirm(self, peer: int, tenants: tuple[str, ...], rules: GateRules) -> None:
        """Confirm a command."""
        if connection := self._peers.get(peer):
            self._send(connection, wire.Confirmation(list(tenants), rules))

    def signal(self, peer: int, kind: SignalKind, why: str, *, may_restart: bool) -> None:
        """Request that a tenant asks its program to end, or kills it."""
        if connection := self._peers.get(peer):
            self._send(connection, wire.Signal(kind, why, may_restart))

    def suspend(self, peer: int, why: str) -> None:
        """Request that a tenant moves its program's device memory to the host."""
        if connection := self._peers.get(peer):
            self._send(connection, wire.Suspend(why))

    def restore(self, peer: int) -> None:
        """Request that a tenant moves its program's memory back."""
        if connection := self._peers.get(peer):
            self._send(connection, wire.Restore())

    # -- time --------------------------------------------------------------------------------------------------

    def next_wakeup(self) -> Instant | None:
        """Return the earliest deadline of a peer."""
        return next(iter(self._deadlines.values()), None)

    def wake(self, now: Instant) -> None:
        """Close the connections whose deadline has passed."""
        for number in [number for number, deadline in self._deadlines.items() if now >= deadline]:
            self._drop(self._peers[number], "no complete request arrived in time")

    def close(self) -> None:
        """Close every connection without a message: tenants treat it as a node that will restart."""
        for peer in list(self._peers.values()):
            self._forget(peer)
        if not self._is_full:
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
            if not self._drop_oldest():  # the new connection stays in the backlog until a descriptor is free
                self._loop.forget(self._listener.fileno())
                self._is_full = True
            return
        connection.setblocking(False)
        self._sequence += 1
        peer = _Peer(connection, self._sequence)
        if len(self._peers) >= self._limit and not self._drop_oldest():
            self._drop(peer, "too many connections, all of them tenants")
            return
        self._peers[peer.number] = peer
        self._set_deadline(peer)
        self._loop.watch(connection.fileno(), READ, lambda ready: self._ready(peer, ready))

    def _drop_oldest(self) -> bool:
        """Close the oldest connection that is no tenant; honest clients send their request at once."""
        oldest = next((peer for peer in self._peers.values() if not peer.tenant and not peer.joins), None)
        if oldest is not None:
            self._drop(oldest, "too many connections")
        return oldest is not None

    def _ready(self, peer: _Peer, mask: int) -> None:
        if mask & WRITE:
            self._flush(peer)
        if mask & READ and peer.number in self._peers:
            self._receive(peer)
        self._handle_requests(peer)

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
            self._deadlines.pop(peer.number, None)
        elif peer.requests or peer.number not in self._deadlines:
            self._set_deadline(peer)

    def _set_deadline(self, peer: _Peer) -> None:
        self._deadlines.pop(peer.number, None)
        self._deadlines[peer.number] = self._clock.now() + PATIENCE_NS

    def _handle_requests(self, peer: _Peer) -> None:
        """Handle requests one by one; stop while the peer does not read its answers."""
        while peer.requests and not peer.unsent and peer.number in self._peers:
            try:
                self._handle(peer, wire.decode_request(peer.requests.popleft()))
            except PeerError as error:
                self._drop(peer, str(error))

    def _handle(self, peer: _Peer, request: wire.Request) -> None:
        version = getattr(request, "version", wire.VERSION)
        if version != wire.VERSION:
            raise PeerError(f"this node speaks version {wire.VERSION} of the protocol, not {version}")
        match request:
            case wire.Join(spec=spec):
                self._handle_join(peer, spec)
            case wire.Resume(slot=slot, generation=generation):
                self._loop.post(TenantResumed(peer.number, peer.pid, peer.uid, slot, generation))
            case wire.Leave(ending=ending):
                self._loop.post(TenantLeft(peer.number, ending))
            case wire.ListTenants():
                self._send(peer, self._list_tenants())
            case wire.Quit() | wire.SuspendResult() | wire.RestoreResult() | wire.RestartReport():
                self._loop.post(_parent_event(peer.number, request))
            case _:
                self._loop.post(_command_event(peer, request))

    def _handle_join(self, peer: _Peer, spec: TenantSpec) -> None:
        """Post a join; a peer has no deadline while it waits for the decision."""
        if self._on_join is not None:
            self._on_join(spec)
        peer.joins = not peer.tenant
        self._loop.post(TenantJoined(peer.number, peer.pid, peer.uid, spec))
        if peer.joins:
            self._deadlines.pop(peer.number, None)

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
        # While answers wait, nothing more is read from this peer: its own socket buffer fills up.
        if peer.blocked != bool(peer.unsent):
            peer.blocked = bool(peer.unsent)
            interest = WRITE if peer.blocked else READ
            self._loop.watch(peer.socket.fileno(), interest, lambda ready: self._ready(peer, ready))

    def _drop(self, peer: _Peer, why: str) -> None:
        with contextlib.suppress(OSError):
            peer.socket.send(wire.encode(wire.ProtocolViolation(why)))
        self._lose(peer)

    def _lose(self, peer: _Peer) -> None:
        self._forget(peer)
        if peer.tenant or peer.joins:
            peer.tenant = peer.joins = False
            self._loop.post(PeerLost(peer.number))

    def _forget(self, peer: _Peer) -> None:
        if self._peers.pop(peer.number, None) is not None:
            self._deadlines.pop(peer.number, None)
            self._loop.forget(peer.socket.fileno())
            if self._is_full:
                self._is_full = False
                self._loop.watch(self._listener.fileno(), READ, self._accept)
        peer.socket.close()
