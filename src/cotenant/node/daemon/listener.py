"""The node's two Unix sockets. A malformed, oversized, slow or hostile peer loses its own connection and nothing else.

Everybody may connect to tenant.sock, to join and to see its own tenants. Operators may do everything on operator.sock.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import socket
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from cotenant.errors import PeerError
from cotenant.gate.grant import Grant
from cotenant.gate.rules import GateRules
from cotenant.node import wire
from cotenant.node.daemon.attaching import NEEDS_GRANT, Attaching, NodeServices, Replies
from cotenant.node.daemon.connection import PeerConnection, close_descriptor
from cotenant.node.daemon.proc import pod_of
from cotenant.node.daemon.rate_limit import Rate
from cotenant.node.daemon.request_events import command_event, parent_event
from cotenant.node.daemon.views import restrict_activity, restrict_list
from cotenant.node.model.action import SignalKind
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import Event, PeerLost, TenantJoined, TenantResumed
from cotenant.node.model.peer import PeerIdentity
from cotenant.node.model.tenant import Tenant, TenantSpec
from cotenant.node.peer import identify
from cotenant.node.ports import ProcessPage, TenantKey
from cotenant.runner.live_loop import READ, WRITE, LiveLoop
from cotenant.runner.ports import Clock
from cotenant.units.instant import SECOND_NS, Instant

PATIENCE_NS: Final = 5 * SECOND_NS
"""Time that a peer has to complete a frame, or to send a request before it is a tenant."""
OPERATORS_LIMIT: Final = 32
"""Connections of operators, which do not count towards the limit of the others."""
IDLE_LIMIT: Final = 64
"""Connections of one user that belong to no tenant."""
REQUEST_BURST: Final = 1000
"""Requests that a user may send at once after a pause; a user that sends more waits, and is not refused."""
REQUEST_INTERVAL_NS: Final = SECOND_NS // 200
"""The interval at which further requests of a user are handled."""
_UNSENT_LIMIT_BYTES: Final = wire.ANSWER_LIMIT_BYTES
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NOT_OPERATOR: Final = (
    "only operators may do this: the user that runs the node, and those that its config names under [operators]; "
    "a process in a container never is one"
)
_NO_TENANT: Final = "this process belongs to no tenant; run the program with: cotenant run -- COMMAND"


class ListeningSockets(NamedTuple):
    """The listening sockets of a node."""

    tenant: socket.socket
    operator: socket.socket


def _check_version(request: wire.Request) -> None:
    if error := wire.version_error(getattr(request, "version", wire.VERSION), is_hook=isinstance(request, wire.Attach)):
        raise PeerError(error)


class LiveListener:
    """Turns requests of peers into events, and decisions of the state machine into answers."""

    def __init__(
        self,
        loop: LiveLoop[Event],
        clock: Clock,
        sockets: ListeningSockets,
        services: NodeServices,
        limit: int,
        *,
        identify_peer: Callable[[socket.socket], PeerIdentity] = identify,
        burst: int = REQUEST_BURST,
    ) -> None:
        """Serve on these listening sockets; `limit` bounds the connections, apart from those of operators.

        `burst` is the number of requests that a user may send at once.
        """
        self.service: Callable[[wire.ServiceRequest], wire.Answer] | None = None
        """Answers requests about the daemon, given whether the peer runs as the node's user."""
        self.on_violation: Callable[[int], None] = lambda _: None
        """Receives the user of a peer that lost its connection because it broke the protocol."""
        self.on_defect: Callable[[Exception], None] = lambda _: None
        """Receives the exception of a request that the node failed to handle; only the peer loses its connection."""
        self._loop = loop
        self._clock = clock
        self._sockets = sockets
        self._services = services
        self._limit = limit
        self._sequence = 0
        self._unwatched: list[socket.socket] = []  # listening sockets while no descriptor is free
        self._peers: dict[int, PeerConnection] = {}
        # In the order in which they were set, which is also the order of the instants.
        self._deadlines: dict[int, Instant] = {}
        self._throttled: dict[int, Instant] = {}
        self._rates = Rate(burst, REQUEST_INTERVAL_NS)
        self._identify = identify_peer
        replies = Replies(
            loop.post,
            self._send,
            self._refuse,
            self._drop,
            self._next_number,
            clock.now,
            self._peers.values,
            self._objection,
        )
        self._attaching = Attaching(services, replies)
        services.processes.listen(self)
        for listening in sockets:
            listening.setblocking(False)
            loop.watch(listening.fileno(), READ, functools.partial(self._accept, listening))
        loop.add_timer(self)

    # -- decisions of the state machine ------------------------------------------------------------------------------

    def welcome(self, peer: int, tenant: str, grant: Grant, handles: tuple[int, ...]) -> None:
        """Send a peer its grant; the descriptors go to the processes of its program when they attach."""
        del handles
        if self._attaching.has(peer):
            self._attaching.welcome(peer, grant)
            return
        connection = self._peers.get(peer)
        if connection is None:
            self._loop.post(PeerLost(peer))
            return
        connection.tenant = True
        connection.joins = False
        self._deadlines.pop(peer, None)
        key = (grant.slot, grant.generation)
        self._services.processes.supervise(key, connection.identity)
        environment = self._attaching.environment(tenant, grant, is_self_joined=False)
        self._send(connection, wire.Welcome(wire.VERSION, tenant, grant, environment))

    def refuse(self, peer: int, reject: Reject) -> None:
        """Send a refusal with its reason."""
        if self._attaching.has(peer):
            self._attaching.refuse(peer, reject)
        elif connection := self._peers.get(peer):
            self._refuse(connection, reject)

    def farewell(self, peer: int, ending: str) -> None:
        """Notify a peer that its slot is free; it is an ordinary peer again."""
        if connection := self._peers.get(peer):
            connection.tenant = False
            self._set_deadline(connection)
            self._send(connection, wire.SlotReleased(ending))

    def released(self, slot: int, generation: int) -> None:
        """Forget the processes of a tenant, and close their connections."""
        tenant = (slot, generation)
        self._attaching.released(tenant)
        for connection in list(self._peers.values()):
            if connection.attached is not None and connection.attached.tenant == tenant:
                connection.attached = None
                self._forget(connection)

    def confirm(self, peer: int, tenants: tuple[str, ...], rules: GateRules) -> None:
        """Confirm a command."""
        if connection := self._peers.get(peer):
            self._send(connection, wire.Confirmation(list(tenants), rules))

    def signal(self, peer: int, kind: SignalKind, why: str, *, may_restart: bool) -> None:
        """Request that a tenant asks its program to end, or kills it; a tenant without a parent is signalled."""
        if self._attaching.has(peer):
            self._attaching.signal(peer, kind)
        elif connection := self._peers.get(peer):
            self._send(connection, wire.Signal(kind, why, may_restart))

    def suspend(self, peer: int, why: str) -> None:
        """Request that a tenant moves its program's device memory to the host."""
        if self._attaching.has(peer):
            self._attaching.suspend(peer)
        elif connection := self._peers.get(peer):
            self._send(connection, wire.Suspend(why))

    def restore(self, peer: int) -> None:
        """Request that a tenant moves its program's memory back."""
        if connection := self._peers.get(peer):
            self._send(connection, wire.Restore())

    # -- reports of the registry of processes ------------------------------------------------------------------------

    def page_added(self, page: ProcessPage) -> None:
        """Push a new process's pages to the other processes of its device."""
        for connection in list(self._peers.values()):
            place = connection.attached
            if place is not None and place.gpu == page.gpu and place.index != page.index:
                connection.pages[page.index] = None
                self._flush(connection)

    def last_process_left(self, tenant: TenantKey) -> None:
        """Release a tenant that joined by itself."""
        self._attaching.last_process_left(tenant)

    # -- time --------------------------------------------------------------------------------------------------

    def next_wakeup(self) -> Instant | None:
        """Return the earliest instant at which a peer's deadline or its wait for its allowance ends."""
        deadlines = (next(iter(self._deadlines.values()), None), self._attaching.pods.next_wakeup())
        return min((at for at in (*deadlines, *self._throttled.values()) if at is not None), default=None)

    def wake(self, now: Instant) -> None:
        """Close the connections whose deadline has passed, and read again from peers that waited."""
        for number in [number for number, deadline in self._deadlines.items() if now >= deadline]:
            self._drop(self._peers[number], "no complete request arrived in time")
        self._attaching.refuse_unanswered(now)
        for number in [number for number, allowed in self._throttled.items() if now >= allowed]:
            self._throttled.pop(number, None)
            if connection := self._peers.get(number):
                connection.is_throttled = False
                if not self._is_served(connection):
                    self._set_deadline(connection)
                self._handle_requests(connection)

    def replace_sockets(self, sockets: ListeningSockets) -> None:
        """Accept connections on other sockets, because the path of a present one was deleted."""
        for listening in self._sockets:
            if listening not in self._unwatched:
                self._loop.forget(listening.fileno())
            listening.close()
        self._unwatched.clear()
        self._sockets = sockets
        for listening in sockets:
            listening.setblocking(False)
            self._loop.watch(listening.fileno(), READ, functools.partial(self._accept, listening))

    def close(self) -> None:
        """Close every connection without a message: tenants treat it as a node that will restart."""
        for peer in list(self._peers.values()):
            self._forget(peer)
        for listening in self._sockets:
            if listening not in self._unwatched:
                self._loop.forget(listening.fileno())
            listening.close()

    # -- peers -------------------------------------------------------------------------------------------------

    def _next_number(self) -> int:
        self._sequence += 1
        return self._sequence

    def _accept(self, listening: socket.socket, mask: int) -> None:
        del mask
        if listening not in self._sockets:  # replaced since the loop saw the connection
            return
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            if not self._drop_oldest(self._peers.values()):
                # The new connection stays in the backlog until a descriptor is free.
                self._loop.forget(listening.fileno())
                self._unwatched.append(listening)
            return
        connection.setblocking(False)
        is_operator_socket = listening is self._sockets.operator
        peer = PeerConnection(
            connection, self._next_number(), self._identify(connection), on_operator_socket=is_operator_socket
        )
        peer.is_operator = is_operator_socket and self._services.access.is_operator(peer.identity)
        excess = self._make_room(peer)
        if excess:
            self._drop(peer, excess)
            return
        self._peers[peer.number] = peer
        self._set_deadline(peer)
        self._watch(peer)

    def _make_room(self, new: PeerConnection) -> str:
        """Close idle connections if there are too many; return why the new one cannot be kept, or an empty text."""
        alike = [peer for peer in self._peers.values() if peer.is_operator == new.is_operator]
        limit = OPERATORS_LIMIT if new.is_operator else self._limit
        own = [peer for peer in alike if peer.identity.account == new.identity.account]
        if not new.is_operator and sum(peer.is_idle for peer in own) >= IDLE_LIMIT:
            self._drop_oldest(own)
        if len(alike) >= limit and not self._drop_oldest(alike):
            return "too many connections, all of them tenants"
        is_own_user = self._services.access.is_own_user(new.identity)
        if not is_own_user and not new.is_operator and 4 * len(own) >= 3 * limit and not self._drop_oldest(own):
            return "too many connections of this user"
        return ""

    def _drop_oldest(self, peers: Iterable[PeerConnection]) -> bool:
        """Close the oldest connection that is no tenant; honest clients send their request at once."""
        oldest = next((peer for peer in peers if peer.is_idle), None)
        if oldest is not None:
            self._drop(oldest, "too many connections")
        return oldest is not None

    def _ready(self, peer: PeerConnection, mask: int) -> None:
        if mask & WRITE:
            self._flush(peer)
        if mask & READ and peer.number in self._peers:
            self._receive(peer)
        self._handle_requests(peer)

    def _receive(self, peer: PeerConnection) -> None:
        try:
            is_open = peer.receive()
        except PeerError as error:
            self._violation(peer, str(error))
            return
        if not is_open:
            self._lose(peer)
        elif self._is_served(peer) and not peer.frames.partial:
            self._deadlines.pop(peer.number, None)
        elif peer.requests or peer.number not in self._deadlines:
            self._set_deadline(peer)

    @staticmethod
    def _is_served(peer: PeerConnection) -> bool:
        """Return whether a peer may stay silent, because it is a tenant or waits to become one."""
        return not peer.is_idle

    def _set_deadline(self, peer: PeerConnection) -> None:
        self._deadlines.pop(peer.number, None)
        self._deadlines[peer.number] = self._clock.now() + PATIENCE_NS

    def _handle_requests(self, peer: PeerConnection) -> None:
        """Handle requests one by one; stop while the peer does not read its answers or its user sent too many."""
        while peer.requests and not peer.unsent and peer.number in self._peers and not peer.is_throttled:
            if not peer.is_operator:
                wait_ns = self._rates.wait_ns(peer.identity.account, self._clock.now())
                if wait_ns:
                    self._throttle(peer, wait_ns)
                    return
            payload, descriptor = peer.requests.popleft()
            try:
                self._handle(peer, wire.decode_request(payload), descriptor)
            except PeerError as error:
                if descriptor is not None:
                    close_descriptor(descriptor)
                self._violation(peer, str(error))
            except Exception as error:
                if self._loop.has_failed:  # the state may be incomplete; the next node reads it from the journal
                    raise
                self.on_defect(error)
                self._drop(peer, "the node failed to handle this message; its log has the error")
        self._watch(peer)

    def _throttle(self, peer: PeerConnection, wait_ns: int) -> None:
        """Read nothing from a peer for a while."""
        peer.is_throttled = True
        self._throttled[peer.number] = self._clock.now() + wait_ns
        self._deadlines.pop(peer.number, None)
        self._watch(peer)

    def _handle(self, peer: PeerConnection, request: wire.Request, descriptor: int | None) -> None:
        _check_version(request)
        if isinstance(request, wire.Attach):
            self._handle_attach(peer, request, descriptor)
            return
        if descriptor is not None:
            raise PeerError("only an attach carries a descriptor")
        is_allowed = peer.is_operator or not (peer.on_operator_socket or isinstance(request, wire.OperatorRequest))
        if not is_allowed:
            self._refuse(peer, Reject(Reason.NOT_ALLOWED, _NOT_OPERATOR))
            return
        match request:
            case wire.IssueToken(spec=spec, valid_ns=valid_ns):
                self._handle_issue(peer, spec, valid_ns)
            case wire.IssuePodToken() | wire.RevokePodToken() | wire.AnswerPod():
                self._send(peer, self._attaching.answer_operator(request))
            case wire.ListTenants():
                self._send(peer, self._visible_list(peer))
            case wire.GetSnapshot():
                self._send(peer, self._visible_activity(peer))
            case wire.GetStatus() | wire.Reload():
                self._handle_service(peer, request)
            case wire.OwnGrant():
                self._handle_own_grant(peer)
            case (
                wire.Pause()
                | wire.SetPriority()
                | wire.SetShare()
                | wire.SetObjective()
                | wire.SetRules()
                | wire.EvictTenants()
                | wire.AnnounceDisruption()
            ):
                self._loop.post(command_event(peer, request))
            case _:
                self._handle_tenant(peer, request)

    def _handle_service(self, peer: PeerConnection, request: wire.ServiceRequest) -> None:
        """Answer a request about the daemon."""
        if self.service is None:
            raise PeerError("this node does not answer requests about the daemon")
        self._send(peer, self.service(request))

    def _handle_tenant(self, peer: PeerConnection, request: wire.Join | wire.Resume | wire.ParentReport) -> None:
        """Handle a message of a tenant's parent."""
        match request:
            case wire.Join(spec=spec):
                self._handle_join(peer, spec)
            case wire.Resume(slot=slot, generation=generation):
                identity = peer.identity
                self._loop.post(TenantResumed(peer.number, identity.pid, identity.uid, slot, generation))
            case wire.Leave() | wire.Quit() | wire.SuspendResult() | wire.RestoreResult() | wire.RestartReport():
                if peer.tenant or peer.joins:  # a stranger's report would only fill the journal
                    self._loop.post(parent_event(peer.number, request))

    def _handle_join(self, peer: PeerConnection, spec: TenantSpec) -> None:
        """Post a join that the user's limits allow; a peer has no deadline while it waits for the decision."""
        if peer.attached is not None or peer.awaits_tenant:
            raise PeerError("a process of a tenant cannot join")
        is_ungranted = self._services.do_pods_need_grant and bool(pod_of(peer.identity.cgroup))
        objection = self._objection(peer.identity, spec)
        if is_ungranted or spec.pod:
            objection = Reject(Reason.NOT_ALLOWED, NEEDS_GRANT)
        if objection is not None:
            self._refuse(peer, objection)
            return
        self._services.on_join(spec)
        peer.joins = not peer.tenant
        peer.spec = spec
        self._loop.post(TenantJoined(peer.number, peer.identity.pid, peer.identity.uid, spec))
        if peer.joins:
            self._deadlines.pop(peer.number, None)

    def _handle_attach(self, peer: PeerConnection, message: wire.Attach, descriptor: int | None) -> None:
        if descriptor is None:
            raise PeerError("an attach needs the descriptor of the process's pages")
        if not peer.is_idle:
            raise PeerError("this connection is a tenant's already")
        if peer.on_operator_socket:
            raise PeerError("a process attaches at tenant.sock")
        self._attaching.handle(peer, message, descriptor)
        if peer.attached is not None or peer.awaits_tenant:
            self._deadlines.pop(peer.number, None)

    def _handle_own_grant(self, peer: PeerConnection) -> None:
        own = self._attaching.own_tenants(peer.identity)
        tenants = {_key_of(view.tenant): view.tenant for view in self._services.tenants()}
        tenant = next((tenants[key] for key in own if key in tenants), None)
        if tenant is None:
            self._refuse(peer, Reject(Reason.UNKNOWN_TENANT, _NO_TENANT))
        else:
            self._send(peer, wire.OwnGrantAnswer(tenant.name, tenant.grant))

    def _handle_issue(self, peer: PeerConnection, spec: TenantSpec, valid_ns: int) -> None:
        now = self._clock.now()
        token = self._services.tokens.issue(spec, now + valid_ns, now)
        if token is None:
            self._refuse(peer, Reject(Reason.QUEUE_FULL, "too many tokens are unused; wait until some have expired"))
        else:
            self._send(peer, wire.Token(token))

    def _objection(self, identity: PeerIdentity, spec: TenantSpec) -> Reject | None:
        """Return why the limits of a user forbid a join; undecided joins of the user count."""
        present = [view.tenant.spec for view in self._services.tenants() if view.tenant.uid == identity.uid]
        joining = [peer for peer in self._peers.values() if peer.joins and peer.identity.uid == identity.uid]
        present += [peer.spec for peer in joining if peer.spec is not None]
        present += self._attaching.pending_specs(identity.uid)
        return self._services.access.objection(identity, spec, present)

    # -- what a peer may see -----------------------------------------------------------------------------------------

    def _visible_list(self, peer: PeerConnection) -> wire.TenantList:
        full = self._services.tenant_list()
        if peer.is_operator:
            return msgspec.structs.replace(full, waiting_pods=self._attaching.pods.uids())
        own = self._own_keys(peer, (view.tenant for view in full.tenants))
        departed = () if peer.identity.is_foreign else (departure.tenant for departure in full.departed)
        return restrict_list(full, own, self._own_keys(peer, departed))

    def _visible_activity(self, peer: PeerConnection) -> wire.Activity:
        full = self._services.activity()
        if peer.is_operator:
            return full
        return restrict_activity(full, self._own_keys(peer, (view.tenant for view in self._services.tenants())))

    def _own_keys(self, peer: PeerConnection, tenants: Iterable[Tenant]) -> set[TenantKey]:
        """Return those tenants that a peer may see: its user's, or inside a container only its own."""
        if peer.identity.is_foreign:
            own = set(self._attaching.own_tenants(peer.identity))
            return {_key_of(tenant) for tenant in tenants if _key_of(tenant) in own}
        return {_key_of(tenant) for tenant in tenants if tenant.uid == peer.identity.uid}

    # -- sending -----------------------------------------------------------------------------------------------------

    def _refuse(self, peer: PeerConnection, reject: Reject) -> None:
        if peer.joins:
            peer.joins = False
        if peer.is_idle and peer.number in self._peers:
            self._set_deadline(peer)
        self._send(peer, wire.Refusal(reject))

    def _send(self, peer: PeerConnection, message: wire.Answer, descriptors: tuple[int, ...] = ()) -> None:
        if peer.number not in self._peers:
            return
        try:
            peer.queue(wire.encode(message), descriptors)
        except OSError:  # no descriptor is free
            self._lose(peer)
            return
        if peer.unsent_bytes > _UNSENT_LIMIT_BYTES:
            self._lose(peer)
            return
        self._flush(peer)

    def _flush(self, peer: PeerConnection) -> None:
        """Send what the peer takes: its answers, and then the pages of other processes."""
        try:
            while peer.unsent or self._next_page(peer):
                peer.sent(self._send_part(peer, *peer.unsent[0]))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._lose(peer)
            return
        # While answers wait, nothing more is read from this peer: its own socket buffer fills up.
        peer.blocked = bool(peer.unsent)
        self._watch(peer)

    def _next_page(self, peer: PeerConnection) -> bool:
        """Queue the next page of another process, unless that process has left; return whether there was one."""
        while peer.pages and peer.attached is not None:
            index = next(iter(peer.pages))
            page = self._services.processes.page(peer.attached.gpu, index)
            if page is not None:
                peer.queue(wire.encode(wire.Page(page.index, page.generation, page.epoch)), (page.descriptor,))
            del peer.pages[index]
            if page is not None:
                return True
        return False

    def _send_part(self, peer: PeerConnection, data: memoryview, descriptors: tuple[int, ...]) -> int:
        if not descriptors:
            return peer.socket.send(data)
        try:
            return socket.send_fds(peer.socket, [data], [*descriptors])
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
        # Too many descriptors are in flight: the processes that do not read theirs are the cause.
        for other in list(self._peers.values()):
            if other.blocked and other.attached is not None and other is not peer:
                self._lose(other)
        return socket.send_fds(peer.socket, [data], [*descriptors])

    def _watch(self, peer: PeerConnection) -> None:
        """Watch a socket for what its connection waits for."""
        if peer.number not in self._peers:
            return
        interest = WRITE if peer.blocked else 0 if peer.is_throttled else READ
        if interest == peer.watched:
            return
        if interest:
            self._loop.watch(peer.socket.fileno(), interest, functools.partial(self._ready, peer))
        else:
            self._loop.forget(peer.socket.fileno())
        peer.watched = interest

    # -- ends of connections -----------------------------------------------------------------------------------------

    def _violation(self, peer: PeerConnection, why: str) -> None:
        self.on_violation(peer.identity.uid)
        self._drop(peer, why)

    def _drop(self, peer: PeerConnection, why: str) -> None:
        with contextlib.suppress(OSError):
            peer.socket.send(wire.encode(wire.ProtocolViolation(why)))
        self._lose(peer)

    def _lose(self, peer: PeerConnection) -> None:
        self._forget(peer)
        if peer.tenant or peer.joins:
            peer.tenant = peer.joins = False
            self._loop.post(PeerLost(peer.number))
        self._attaching.lose(peer)

    def _forget(self, peer: PeerConnection) -> None:
        if self._peers.pop(peer.number, None) is not None:
            self._deadlines.pop(peer.number, None)
            self._throttled.pop(peer.number, None)
            if peer.watched:
                self._loop.forget(peer.socket.fileno())
            while self._unwatched:
                listening = self._unwatched.pop()
                self._loop.watch(listening.fileno(), READ, functools.partial(self._accept, listening))
            peer.close()
        elif peer.socket.fileno() >= 0:
            peer.close()


def _key_of(tenant: Tenant) -> TenantKey:
    return tenant.grant.slot, tenant.grant.generation
