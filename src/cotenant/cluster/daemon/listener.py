"""The controller's TLS listener. A malformed, oversized, slow or hostile peer loses only its own connection.

The certificate identifies a peer. A peer without one may only request one; a node may report only as itself; users may
submit, list, and cancel their own jobs; operators may do everything else.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Final

from cotenant.cluster import wire
from cotenant.cluster.daemon.admin_service import AdminService, Rows
from cotenant.cluster.daemon.channel import Channel
from cotenant.cluster.daemon.identity import Holder, holder_of
from cotenant.cluster.model.event import (
    AckEnd,
    Answer,
    ClusterEvent,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeGone,
    QuotaSet,
    StartJob,
    StopJob,
)
from cotenant.cluster.wire import Role
from cotenant.errors import PeerError
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.wire import Frames
from cotenant.runner.live_loop import READ, LiveLoop
from cotenant.runner.ports import Clock
from cotenant.units.instant import SECOND_NS, Instant

PATIENCE_NS: Final = 10 * SECOND_NS
"""How long a handshake may take, and how long a peer that is no node may say nothing complete."""
NODE_PATIENCE_NS: Final = 60 * SECOND_NS
"""The same for a node: it reports every few seconds, and one that does not is reached no more."""
STRANGERS: Final = 64
"""Connections without a certificate, or before it is known; the oldest gives way."""
PER_USER: Final = 16
"""Connections of one user; the oldest gives way."""
BACKLOG: Final = 256
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_KEEPALIVE: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class _Peer:
    """One connection."""

    __slots__ = ("channel", "holder", "jobs", "nodes", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.channel: Channel | None = None
        self.holder: Holder | None = None  # None too until the handshake is done
        self.jobs: Rows = iter(())  # the rest of a list that was begun
        self.nodes: Iterator[wire.NodeLine] = iter(())

    @property
    def is_node(self) -> bool:
        return self.holder is not None and self.holder.role is Role.NODE


class ControllerListener:
    """Accepts connections, turns requests into events, and sends the orders and answers of the state machine."""

    def __init__(
        self,
        loop: LiveLoop[ClusterEvent],
        clock: Clock,
        listener: socket.socket,
        context: ssl.SSLContext,
        admin: AdminService,
        most: int,
        say: Callable[[str], None],
    ) -> None:
        """Serve on this listening socket; `most` bounds the connections."""
        self._loop, self._clock, self._listener, self._context = loop, clock, listener, context
        self._admin, self._most, self._say = admin, most, say
        self._sequence = 0
        self._deaf_until: Instant | None = None
        self._peers: dict[int, _Peer] = {}
        self._nodes: dict[str, _Peer] = {}  # by name, their one present connection
        self._owing: dict[bool, dict[int, Instant]] = {False: {}, True: {}}  # of nodes and of others, in their order
        self.refused = 0
        loop.watch(listener.fileno(), READ, self._accept)
        loop.add_timer(self)

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._peers)

    def is_connected(self, node: str) -> bool:
        """Whether there is a connection of this node."""
        return node in self._nodes

    # -- what the machine decided --------------------------------------------------------------------------------

    def start(self, order: StartJob) -> None:
        """Tell a node to run an attempt."""
        self._order(order)

    def stop(self, order: StopJob) -> None:
        """Tell a node to end an attempt."""
        self._order(order)

    def acknowledge(self, order: AckEnd) -> None:
        """Tell a node that an end was taken note of."""
        self._order(order)

    def answer(self, answer: Answer) -> None:
        """Tell the peer that asked."""
        if peer := self._peers.get(answer.peer):
            self._send(peer, wire.Success() if answer.reject is None else wire.Refusal(answer.reject))

    def _order(self, order: StartJob | StopJob | AckEnd) -> None:
        """Nothing is kept for a node that is away: the machine repeats itself when it reports."""
        if peer := self._nodes.get(order.node):
            self._send(peer, wire.NodeOrder(order))

    # -- time ----------------------------------------------------------------------------------------------------

    def next_wakeup(self) -> Instant | None:
        """The first deadline of a peer that owes us something, or when to listen again."""
        due = [next(iter(owing.values())) for owing in self._owing.values() if owing]
        if self._deaf_until is not None:
            due.append(self._deaf_until)
        return min(due, default=None)

    def wake(self, now: Instant) -> None:
        """Close the connections whose patience has run out."""
        for owing in self._owing.values():
            for number in [number for number, deadline in owing.items() if now >= deadline]:
                self._forget(self._peers[number])
        if self._deaf_until is not None and now >= self._deaf_until:
            self._deaf_until = None
            self._loop.watch(self._listener.fileno(), READ, self._accept)

    def close(self) -> None:
        """Close every connection without a word: nodes take it as a controller that will come back."""
        for peer in list(self._peers.values()):
            self._forget(peer)
        if self._deaf_until is None:
            self._loop.forget(self._listener.fileno())
        self._listener.close()

    # -- peers ---------------------------------------------------------------------------------------------------

    def _accept(self, mask: int) -> None:
        del mask
        has_room = self._make_room()
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:  # the newcomer stays in the backlog until a descriptor may be free
                self._loop.forget(self._listener.fileno())
                self._deaf_until = self._clock.now() + SECOND_NS
            return
        if not has_room:
            self.refused += 1
            connection.close()
            return
        connection.setblocking(False)
        try:
            for level, option, value in _KEEPALIVE:
                connection.setsockopt(level, option, value)
            secured = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except OSError:
            connection.close()
            return
        self._sequence += 1
        peer = _Peer(self._sequence)
        self._peers[peer.number] = peer
        self._owe(peer)
        peer.channel = Channel(
            self._loop,
            secured,
            lambda: self._opened(peer),
            lambda payload: self._hear(peer, payload),
            lambda error: self._lost(peer, error),
            lambda error: wire.encode(self._wrong(peer, str(error))),
        )

    def _make_room(self) -> bool:
        """Strangers give way to newcomers first, then users: a node keeps its place."""
        strangers = [peer for peer in self._peers.values() if peer.holder is None]
        if len(strangers) >= STRANGERS:
            self._forget(strangers[0])
        elif len(self._peers) >= self._most:
            others = strangers or [peer for peer in self._peers.values() if not peer.is_node]
            if not others:
                return False
            self._forget(others[0])
        return True

    def _opened(self, peer: _Peer) -> Frames:
        """Identify the peer after the handshake."""
        assert peer.channel is not None
        holder = holder_of(peer.channel.socket)
        if holder is None:
            return wire.frames_from(None)
        if holder.role is Role.CONTROLLER:
            raise PeerError("the certificate of a controller is no client's")
        if not self._admin.is_welcome(holder):
            raise PeerError(f"the certificate of {holder} was revoked; if that was not meant, ask for a new join token")
        peer.holder = holder
        if peer.is_node:
            if before := self._nodes.get(holder.name):
                self._forget(before)
            self._nodes[holder.name] = peer
        else:
            own = [other for other in self._peers.values() if other.holder is not None and _same(other.holder, holder)]
            if len(own) > PER_USER:
                self._forget(own[0])
        self._owe(peer)
        return wire.frames_from(holder.role)

    def _owe(self, peer: _Peer) -> None:
        """From now on, it has to say something complete."""
        for owing in self._owing.values():
            owing.pop(peer.number, None)
        patience_ns = NODE_PATIENCE_NS if peer.is_node else PATIENCE_NS
        self._owing[peer.is_node][peer.number] = self._clock.now() + patience_ns

    def _hear(self, peer: _Peer, payload: bytes) -> None:
        request = wire.decode_request(payload, None if peer.holder is None else peer.holder.role)
        self._owe(peer)
        if peer.holder is None:
            self._hear_stranger(peer, request)
        elif peer.is_node:
            self._hear_node(peer, peer.holder, request)
        else:
            self._hear_user(peer, peer.holder, request)

    def _hear_stranger(self, peer: _Peer, request: wire.Request) -> None:
        if isinstance(request, wire.Enrol):
            answer = self._admin.enrol(request)
            if isinstance(answer, wire.EnrolledIdentity):
                self._say(f"node {request.name} joined by token")
            self._send(peer, answer)
        else:
            self._send(peer, self._admin.authority())

    def _hear_node(self, peer: _Peer, holder: Holder, request: wire.Request) -> None:
        match request:
            case wire.ReportNode(sequence=sequence, report=report):
                if report.node != holder.name:
                    raise PeerError(f"the certificate is node {holder.name!r}'s, the report says {report.node!r}")
                self._loop.post(report)
                if not self._admin.is_taken_note_of(report):  # its lease must run out: it is somebody else by now
                    raise PeerError(f"node {holder.name!r} has started anew since; is its identity used twice?")
                self._send(peer, wire.GrantLease(sequence, *self._admin.lease_times()))
            case wire.Renew(request=asked):
                self._send(peer, self._admin.renew(holder, asked))

    def _hear_user(self, peer: _Peer, holder: Holder, request: wire.Request) -> None:
        match request:
            case wire.Submit(spec=spec):
                if holder.role is not Role.OPERATOR and spec.user != holder.name:
                    self._refuse(peer, f"you are user {holder.name!r} and cannot submit for {spec.user!r}")
                    return
                self._loop.post(JobSubmitted(spec, peer.number))
            case wire.Cancel(job=job):
                if not self._admin.may_cancel(holder, job):
                    self._refuse(peer, f"job {job!r} is another user's, who alone may cancel it (or an operator)")
                    return
                self._loop.post(JobCancelled(job, peer.number))
            case wire.ListJobs():
                if not request.more:
                    peer.jobs = self._admin.jobs(request, holder)
                self._send(peer, self._admin.page_of_jobs(peer.jobs))
            case wire.ListNodes(more=more):
                if not more:
                    peer.nodes = self._admin.nodes(self.is_connected)
                self._send(peer, self._admin.page_of_nodes(peer.nodes))
            case wire.Renew(request=asked):
                self._send(peer, self._admin.renew(holder, asked))
            case _:
                self._hear_operator(peer, request)

    def _hear_operator(self, peer: _Peer, request: wire.Request) -> None:
        match request:
            case wire.MakeToken():
                self._send(peer, self._admin.token(request))
            case wire.Issue():
                self._send(peer, self._admin.issue(request))
            case wire.Revoke():
                answer = self._admin.revoke(request)
                if isinstance(answer, wire.Success):
                    self._say(f"the certificates of {request.role.value} {request.name} are revoked")
                    self._turn_out(request.role, request.name)
                self._send(peer, answer)
            case wire.Forget(node=node):
                if refused := self._admin.why_not_forget(node):
                    self._send(peer, wire.Refusal(refused))
                    return
                self._loop.post(NodeGone(node))
                self._send(peer, wire.Success())
            case wire.Drain(node=node, on=on):
                self._loop.post(NodeDrained(node, on, peer.number))
            case wire.SetQuota(quota=quota):
                self._loop.post(QuotaSet(quota, peer.number))

    def _turn_out(self, role: Role, name: str) -> None:
        """A peer that is here by a certificate that counts no more is so no longer."""
        for peer in list(self._peers.values()):
            if peer.holder is not None and (peer.holder.role, peer.holder.name) == (role, name):
                assert peer.channel is not None
                peer.channel.finish(wire.encode(wire.ProtocolFault(f"the certificate of {peer.holder} was revoked")))
                if self._nodes.get(name) is peer:
                    del self._nodes[name]

    def _refuse(self, peer: _Peer, detail: str) -> None:
        self.refused += 1
        self._send(peer, wire.Refusal(Reject(Reason.NOT_YOURS, detail)))

    def _wrong(self, peer: _Peer, why: str) -> wire.ProtocolFault:
        self.refused += 1
        if peer.holder is not None:  # of strangers there may be any number, who can say anything
            self._say(f"hung up on {peer.holder}: {why}")
        return wire.ProtocolFault(why)

    def _send(self, peer: _Peer, message: wire.Answer) -> None:
        if peer.channel is not None:
            peer.channel.send(wire.encode(message))

    def _lost(self, peer: _Peer, error: OSError | PeerError) -> None:
        del error  # a peer that goes away is no news; that a node is silent, the machine sees by itself
        self._forget(peer)

    def _forget(self, peer: _Peer) -> None:
        if self._peers.pop(peer.number, None) is None:
            return
        for owing in self._owing.values():
            owing.pop(peer.number, None)
        if peer.holder is not None and self._nodes.get(peer.holder.name) is peer:
            del self._nodes[peer.holder.name]
        if peer.channel is not None:
            with contextlib.suppress(OSError):
                peer.channel.close()


def _same(one: Holder, other: Holder) -> bool:
    return (one.role, one.name) == (other.role, other.name)
