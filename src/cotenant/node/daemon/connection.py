"""One connection of a peer: what it may do, what it sent, and what it has not read yet."""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from cotenant.errors import PeerError
from cotenant.node import wire
from cotenant.node.model.peer import PeerIdentity
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.peer import close_identity
from cotenant.node.ports import TenantKey

_READ_BYTES: Final = 4096
_DESCRIPTOR_BYTES: Final = array.array("i").itemsize
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_DESCRIPTOR_BYTES)
"""Room for one descriptor, and by alignment for a second one; the kernel closes the others."""
_ATTACHED_SEND_BYTES: Final = 16384
"""The send buffer of an attached process: it bounds the descriptors in flight to a process that does not read."""


class ReceivedFrame(NamedTuple):
    """A frame and the descriptor that came with it, if any."""

    payload: bytes
    descriptor: int | None


class AttachedAt(msgspec.Struct, frozen=True):
    """The place of an attached process."""

    tenant: TenantKey
    gpu: int
    index: int
    generation: int


class PeerConnection:
    """One connection."""

    __slots__ = (
        *("attached", "awaits_tenant", "blocked", "descriptor", "frames", "identity", "is_operator", "is_throttled"),
        *("joins", "number", "on_operator_socket", "pages", "requests", "socket", "spec", "tenant", "unsent"),
        *("unsent_bytes", "watched"),
    )

    def __init__(
        self, connection: socket.socket, number: int, identity: PeerIdentity, *, on_operator_socket: bool
    ) -> None:
        """Begin without a role; the listener decides whether the peer is an operator."""
        self.socket = connection
        self.number = number
        self.identity = identity
        self.on_operator_socket = on_operator_socket
        self.is_operator = False
        self.frames = wire.Frames()
        self.requests: deque[ReceivedFrame] = deque()
        self.unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self.unsent_bytes = 0
        self.pages: dict[int, None] = {}  # the indexes of process pages to send once everything else is sent
        self.tenant = False
        self.joins = False  # whether its join is unanswered: the node may have to evict tenants first
        self.spec: TenantSpec | None = None  # what it asked for, while its join is unanswered
        self.awaits_tenant = False  # whether its attach waits until a tenant has joined
        self.attached: AttachedAt | None = None
        self.blocked = False  # whether unsent answers wait until the peer reads
        self.is_throttled = False  # whether its user sent too many requests, so that nothing is read for a while
        self.descriptor: int | None = None  # of a frame that is not complete yet
        self.watched = 0  # the events for which the loop watches its socket

    @property
    def is_idle(self) -> bool:
        """Whether it is neither a tenant nor a process of one, nor about to become one."""
        return not (self.tenant or self.joins or self.awaits_tenant or self.attached is not None)

    def queue(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Queue a frame; it owns copies of the descriptors, because their owner may close them before it is sent."""
        copies: list[int] = []
        try:
            copies += map(os.dup, descriptors)
        except OSError:
            _close(copies)
            raise
        self.unsent.append((memoryview(data), tuple(copies)))
        self.unsent_bytes += len(data)

    def sent(self, size: int) -> None:
        """Record that this many bytes of the first frame, and with them its descriptors, were sent."""
        data, descriptors = self.unsent.popleft()
        self.unsent_bytes -= size
        _close(descriptors)
        if size < len(data):
            self.unsent.appendleft((data[size:], ()))

    def receive(self) -> bool:
        """Read what arrived; return whether the connection is still open.

        Raise `PeerError` for a frame of a wrong size, and for descriptors beyond one per frame; all are closed then.
        """
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(_READ_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        received = _descriptors_in(ancillary)
        is_awaited = self.descriptor is not None
        if received and (len(received) > 1 or is_awaited or flags & socket.MSG_CTRUNC):
            _close(received)
            raise PeerError("a frame carries at most one descriptor")
        if received:
            self.descriptor = received[0]
        if not data:
            return False
        payloads = self.frames.feed(data)
        # The kernel ends a read at the data that a descriptor came with: it belongs to the frame that was read last.
        taker = 0 if is_awaited else len(payloads) - 1 if received and not self.frames.partial else -1
        for number, payload in enumerate(payloads):
            self.requests.append(ReceivedFrame(payload, self.descriptor if number == taker else None))
            if number == taker:
                self.descriptor = None
        return True

    def limit_send_buffer(self) -> None:
        """Bound the messages in flight to an attached process."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ATTACHED_SEND_BYTES)

    def close(self) -> None:
        """Close the socket, everything that arrived with it, and what was not sent."""
        for _, descriptors in self.unsent:
            _close(descriptors)
        self.unsent.clear()
        _close([frame.descriptor for frame in self.requests if frame.descriptor is not None])
        _close([] if self.descriptor is None else [self.descriptor])
        self.requests.clear()
        self.descriptor = None
        self.socket.close()
        close_identity(self.identity)


def _descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    received = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_BYTES])
    return received.tolist()


def close_descriptor(descriptor: int) -> None:
    """Close a descriptor that a peer sent."""
    _close([descriptor])


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
