"""Connection of a node to the controller, with reconnection and a lease.

The lease is counted from when the last acknowledged report was sent. The controller counts from when it received that
report, which is later, so a node has always ended its jobs before the controller starts them elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from cotenant.cluster import wire
from cotenant.cluster.daemon.authority import make_request, validity_of
from cotenant.cluster.daemon.channel import Channel
from cotenant.cluster.daemon.identity import (
    Identity,
    check_controller,
    client_context,
    read_identity,
    why_not,
    write_identity,
)
from cotenant.cluster.model.event import AckEnd, NodeReport, StartJob, StopJob
from cotenant.errors import CotenantError, PeerError
from cotenant.node.policy.protect.backoff import delay_ns
from cotenant.node.wire import Frames
from cotenant.runner.address import split_address
from cotenant.runner.clock import unix_ns
from cotenant.runner.live_loop import WRITE, IoLoop
from cotenant.runner.ports import Clock
from cotenant.units.instant import SECOND_NS, Duration, Instant

PATIENCE_NS: Final = 10 * SECOND_NS
"""How long the controller may take for an answer; then another connection is tried."""
FIRST_WAIT_NS: Final = SECOND_NS // 4
LONGEST_WAIT_NS: Final = 15 * SECOND_NS
_UNDER_WAY: Final = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR)

Order: TypeAlias = StartJob | StopJob | AckEnd


class ControllerLink:
    """Connects at once, and again after each loss with an exponentially growing delay."""

    def __init__(
        self,
        loop: IoLoop,
        clock: Clock,
        identity: Identity,
        take: Callable[[Order], None],
        say: Callable[[str], None],
    ) -> None:
        """`take` is called in the loop for each order."""
        self._loop, self._clock, self._identity, self._take, self._say = loop, clock, identity, take, say
        # Nodes that lost the controller at the same instant do not come back at the same instant.
        self._rng = random.Random(f"{identity.name} {unix_ns()}")
        self._connecting: socket.socket | None = None
        self._channel: Channel | None = None
        self._failures = 0
        self._said = ""
        self._due: Instant | None = clock.now()  # when to try, or until when to be patient
        self._latest: NodeReport | None = None
        self._is_greeted = False  # whether the controller at the other end has shown that it is one
        self._sequence = 0
        self._sent: dict[int, Instant] = {}  # reports that were sent and not acknowledged
        self._is_closed = False
        self._new_key = ""  # while a renewal is under way
        self.leased_until: Instant | None = None
        self.lease_ns: Duration = 0
        self.grace_ns: Duration = 0
        loop.add_timer(self)

    @property
    def is_up(self) -> bool:
        """Whether the controller is at the other end."""
        return self._is_greeted

    def tell(self, report: NodeReport) -> None:
        """Report, now or as soon as the controller is there; of reports that wait, only the newest counts."""
        self._latest = report
        self._send()

    def close(self) -> None:
        """Hang up, and try no more."""
        self._is_closed = True
        self._hang_up()
        self._due = None

    def next_wakeup(self) -> Instant | None:
        """When to try again, or when patience ends."""
        return self._due

    def wake(self, now: Instant) -> None:
        """Try to connect; or give up on a controller that does not answer."""
        if self._connecting is None and self._channel is None:
            self._connect(now)
        else:
            self._fail("the controller does not answer")

    # -- the connection ------------------------------------------------------------------------------------------

    def _connect(self, now: Instant) -> None:
        self._due = now + PATIENCE_NS
        try:
            host, port = split_address(self._identity.controller, "controller")
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            # A name may have several addresses, of which not all lead there: each try takes the next.
            family, kind, protocol, _, address = found[self._failures % len(found)]
            connecting = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        except (OSError, CotenantError) as error:
            self._fail(getattr(error, "strerror", None) or str(error))
            return
        connecting.setblocking(False)
        self._connecting = connecting
        result = connecting.connect_ex(address)
        if result and result not in _UNDER_WAY:
            self._fail(os.strerror(result))
            return
        self._loop.watch(connecting.fileno(), WRITE, self._connected)

    def _connected(self, mask: int) -> None:
        del mask
        connecting = self._connecting
        assert connecting is not None
        problem = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            self._fail(os.strerror(problem))
            return
        self._loop.forget(connecting.fileno())
        self._connecting = None
        try:
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            fresh = read_identity(self._identity.path)  # somebody may have joined anew meanwhile
            self._identity = msgspec.structs.replace(fresh, controller=self._identity.controller)
            secured = client_context(self._identity).wrap_socket(connecting, do_handshake_on_connect=False)
        except (OSError, CotenantError) as error:
            connecting.close()
            self._fail(str(error))
            return
        self._channel = Channel(self._loop, secured, self._opened, self._hear, self._lost)

    def _opened(self) -> Frames:
        assert self._channel is not None
        check_controller(self._channel.socket)
        self._due = None
        self._is_greeted = True
        self._send()
        return wire.answer_frames()

    def _hear(self, payload: bytes) -> None:
        said = wire.decode_answer(payload)
        now = self._clock.now()
        match said:
            case wire.GrantLease(sequence=sequence, lease_ns=lease_ns, grace_ns=grace_ns):
                self._acknowledged(sequence, lease_ns, grace_ns)
            case wire.NodeOrder(action=action):
                self._take(action)
            case wire.EnrolledIdentity(certificate=certificate):
                self._renewed(certificate)
            case wire.Refusal(reject=reject):
                self._say(f"the controller refused: {reject.detail}")
            case wire.ProtocolFault(detail=detail):
                raise PeerError(f"the controller refuses to talk: {detail}")
            case _:
                raise PeerError(f"the controller said {type(said).__name__} to a node")
        if self._channel is not None:
            self._due = now + PATIENCE_NS if self._sent else None

    def _acknowledged(self, sequence: int, lease_ns: Duration, grace_ns: Duration) -> None:
        sent = self._sent.get(sequence)
        if sent is None:
            raise PeerError(f"the controller took note of report {sequence}, which was not sent")
        self._sent = {later: instant for later, instant in self._sent.items() if later > sequence}
        self.lease_ns, self.grace_ns = lease_ns, grace_ns
        self.leased_until = sent + lease_ns
        if self._failures:
            self._say(f"connected to the controller at {self._identity.controller}")
        self._failures, self._said = 0, ""

    def _send(self) -> None:
        """What is to be said, if the controller is there."""
        if self._channel is None or not self._is_greeted:
            return
        if self._latest is not None:
            now = self._clock.now()
            self._sequence += 1
            if not self._sent:
                self._due = now + PATIENCE_NS
            self._sent[self._sequence] = now
            self._channel.send(wire.encode(wire.ReportNode(wire.VERSION, self._sequence, self._latest)))
            self._renew()

    # -- a certificate that ends soon ----------------------------------------------------------------------------

    def _renew(self) -> None:
        if self._new_key or not self._identity.is_old(unix_ns()) or self._channel is None:
            return
        try:
            self._new_key, request = make_request()
        except CotenantError as error:
            self._say(f"the certificate in {self._identity.path} is not renewed: {error}")
            self._new_key = "none"
            return
        self._channel.send(wire.encode(wire.Renew(wire.VERSION, request)))

    def _renewed(self, certificate: str) -> None:
        """Counts from the next connection on; this one goes on."""
        key, self._new_key = self._new_key, ""
        if not key:
            raise PeerError("the controller sent a certificate that nobody asked for")
        from_ns, until_ns = validity_of(certificate)
        self._identity = msgspec.structs.replace(self._identity, from_ns=from_ns, until_ns=until_ns)
        write_identity(self._identity, key, certificate)

    # -- the end of a connection ---------------------------------------------------------------------------------

    def _lost(self, error: OSError | PeerError) -> None:
        why = str(error) if isinstance(error, PeerError) else why_not(error, unix_ns(), self._identity)
        self._fail(why)

    def _hang_up(self) -> None:
        if self._connecting is not None:
            with contextlib.suppress(KeyError):  # it may have failed before it was watched
                self._loop.forget(self._connecting.fileno())
            self._connecting.close()
            self._connecting = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._is_greeted = False
        self._sent.clear()
        self._new_key = ""

    def _fail(self, why: str) -> None:
        self._hang_up()
        if self._is_closed:
            return
        self._failures += 1
        wait_ns = delay_ns(self._failures, FIRST_WAIT_NS, LONGEST_WAIT_NS)
        self._due = self._clock.now() + int(wait_ns * self._rng.uniform(0.5, 1.0))
        if why != self._said:  # once, not at every try
            self._said = why
            self._say(f"no connection to the controller at {self._identity.controller}: {why}; trying again")
