"""Over which connections do the requests of a load go? As many as are under way at once over HTTP, a few over gRPC.

Sockets never block: what a socket does not take at once waits in its channel. A connection that breaks fails the
requests that it carried, and the next request opens another.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from cotenant.domain.goodput import Verdict
from cotenant.errors import ConfigError
from cotenant.format.asking import Asked, http_request
from cotenant.format.grpc_client import GrpcCaller, call_head, enveloped
from cotenant.format.grpc_words import DEADLINE_EXCEEDED, NAMES, OK, RESOURCE_EXHAUSTED, UNAVAILABLE
from cotenant.format.http2 import Http2Error
from cotenant.format.http_answer import AnswerError, AnswerReader

_READ_BYTES: Final = 1 << 18
_READ: Final = select.EPOLLIN
_BOTH: Final = select.EPOLLIN | select.EPOLLOUT
_HTTP_REFUSED: Final = (429, 503)
_GRPC_REFUSED: Final = (RESOURCE_EXHAUSTED, UNAVAILABLE, DEADLINE_EXCEEDED)
BROKEN: Final = "broken connection"
_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
GRPC_CONNECTIONS: Final = 4


class Endpoint(msgspec.Struct, frozen=True):
    """Where a server listens, and what it speaks there."""

    kind: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """As requests name it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def endpoint_of(url: str) -> Endpoint:
    """http://HOST:PORT or grpc://HOST:PORT; without a scheme it is HTTP."""
    scheme, found, rest = url.partition("://")
    if not found:
        scheme, rest = "http", url
    host, colon, port = rest.rstrip("/").rpartition(":")
    if scheme not in ("http", "grpc") or not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 0xFFFF:
        raise ConfigError("URL", url, "write http://HOST:PORT or grpc://HOST:PORT")
    return Endpoint(scheme, host.strip("[]"), int(port))


def message_of(asked: Asked, endpoint: Endpoint) -> bytes:
    """What is sent for a request, over HTTP all of it, over gRPC its one message."""
    if endpoint.kind == "http":
        return http_request(asked, endpoint.authority)
    from cotenant.format.asking_proto import grpc_request  # noqa: PLC0415  protobuf is an optional package

    return enveloped(grpc_request(asked))


class Ended(NamedTuple):
    """A request is over."""

    ticket: int
    verdict: Verdict
    status: str


class Wire(Protocol):
    """All connections to one server."""

    def begin(self, ticket: int, place: int) -> bool:
        """Send the message at this place; False: no connection has room."""
        ...

    def poll(self) -> Iterable[tuple[int, int]]:
        """Channels that can be read or written, at once."""
        ...

    def handle(self, fd: int, mask: int) -> list[Ended]:
        """Read and write what can be."""
        ...

    def abandon(self, ticket: int) -> None:
        """Nobody waits for this request any more."""
        ...

    def fileno(self) -> int:
        """What becomes readable once anything can be done."""
        ...

    def close(self) -> None:
        """End all connections."""
        ...


def open_wire(endpoint: Endpoint, messages: Sequence[bytes], connections: int) -> Wire:
    """Of the kind that the endpoint speaks."""
    if endpoint.kind == "http":
        return _HttpWire(endpoint, messages, connections)
    return _GrpcWire(endpoint, messages, min(connections, GRPC_CONNECTIONS))


class _Link:
    """A socket that never blocks."""

    __slots__ = ("_epoll", "_out", "fd", "socket")

    def __init__(self, endpoint: Endpoint, epoll: select.epoll) -> None:
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setblocking(False)
        made.connect_ex((endpoint.host, endpoint.port))  # how that ended shows when it is written to or read from
        self.socket = made
        self.fd = made.fileno()
        self._out: list[bytes | memoryview] = []
        self._epoll = epoll
        epoll.register(self.fd, _READ)

    def write(self, data: bytes) -> None:
        """Send now, or as soon as the socket takes it."""
        if self._out:
            self._out.append(data)
            return
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._out.append(memoryview(data)[sent:])
            self._epoll.modify(self.fd, _BOTH)

    def flush(self) -> None:
        """It takes more now."""
        while self._out:
            try:
                sent = self.socket.send(self._out[0])
            except BlockingIOError:
                return
            if sent < len(self._out[0]):
                self._out[0] = memoryview(self._out[0])[sent:]
                return
            del self._out[0]
        self._epoll.modify(self.fd, _READ)

    def read(self) -> bytes:
        """What there is; empty: the other end has closed it."""
        return self.socket.recv(_READ_BYTES)

    def close(self) -> None:
        self._epoll.unregister(self.fd)
        self.socket.close()


class _HttpChannel(_Link):
    __slots__ = ("reader", "ticket")

    def __init__(self, endpoint: Endpoint, epoll: select.epoll) -> None:
        super().__init__(endpoint, epoll)
        self.reader = AnswerReader()
        self.ticket = 0


class _HttpWire:
    """One request at a time on each connection."""

    def __init__(self, endpoint: Endpoint, messages: Sequence[bytes], limit: int) -> None:
        self._endpoint = endpoint
        self._messages = messages
        self._limit = limit
        self._epoll = select.epoll()
        self._channels: dict[int, _HttpChannel] = {}
        self._idle: list[_HttpChannel] = []
        self._carries: dict[int, _HttpChannel] = {}

    def begin(self, ticket: int, place: int) -> bool:
        while self._idle:
            channel = self._idle.pop()
            if self._try(channel, ticket, place):
                return True
        if len(self._channels) >= self._limit:
            return False
        channel = _HttpChannel(self._endpoint, self._epoll)
        self._channels[channel.fd] = channel
        return self._try(channel, ticket, place)

    def _try(self, channel: _HttpChannel, ticket: int, place: int) -> bool:
        try:
            channel.write(self._messages[place])
        except OSError:  # it was closed while nothing was under way
            self._drop(channel)
            return False
        channel.ticket = ticket
        self._carries[ticket] = channel
        return True

    def poll(self) -> Iterable[tuple[int, int]]:
        return self._epoll.poll(0)

    def handle(self, fd: int, mask: int) -> list[Ended]:
        channel = self._channels.get(fd)
        if channel is None:
            return []
        try:
            if mask & select.EPOLLOUT:
                channel.flush()
            data = channel.read()
            found = channel.reader.feed(data) if data else None
        except BlockingIOError:
            return []
        except (OSError, AnswerError):
            data, found = b"", None
        if data and found is None:
            return []
        ticket = channel.ticket
        channel.ticket = 0
        self._carries.pop(ticket, None)
        head = found[0] if found else None
        if head is None or not head.keep_alive or not ticket:
            self._drop(channel)
        else:
            self._idle.append(channel)
        if not ticket:
            return []
        if head is None:
            return [Ended(ticket, Verdict.FAILED, BROKEN)]
        if head.status // 100 == 2:
            return [Ended(ticket, Verdict.ANSWERED, str(head.status))]
        refused = head.status in _HTTP_REFUSED
        return [Ended(ticket, Verdict.REFUSED if refused else Verdict.FAILED, str(head.status))]

    def _drop(self, channel: _HttpChannel) -> None:
        del self._channels[channel.fd]
        if channel in self._idle:
            self._idle.remove(channel)
        channel.close()

    def abandon(self, ticket: int) -> None:
        channel = self._carries.pop(ticket, None)
        if channel is not None:
            self._drop(channel)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        for channel in list(self._channels.values()):
            self._drop(channel)
        self._epoll.close()


class _GrpcChannel(_Link):
    __slots__ = ("caller", "tickets")

    def __init__(self, endpoint: Endpoint, epoll: select.epoll) -> None:
        super().__init__(endpoint, epoll)
        self.caller = GrpcCaller()
        self.tickets: dict[int, int] = {}


class _GrpcWire:
    """Any number of calls on each connection, as far as the server takes them."""

    def __init__(self, endpoint: Endpoint, messages: Sequence[bytes], connections: int) -> None:
        self._endpoint = endpoint
        self._messages = messages
        self._count = connections
        self._head = call_head(_INFER, endpoint.authority)
        self._epoll = select.epoll()
        self._channels: dict[int, _GrpcChannel] = {}
        self._carries: dict[int, tuple[_GrpcChannel, int]] = {}

    def begin(self, ticket: int, place: int) -> bool:
        while len(self._channels) < self._count:
            made = _GrpcChannel(self._endpoint, self._epoll)
            self._channels[made.fd] = made
        free = [one for one in self._channels.values() if one.caller.has_room]
        if not free:
            return False
        channel = min(free, key=lambda one: one.caller.calls)
        stream = channel.caller.call(self._head, self._messages[place])
        try:
            channel.write(channel.caller.take())
        except OSError:
            channel.caller.abandon(stream)
            return False  # whoever polls next hears of it and drops the channel
        channel.tickets[stream] = ticket
        self._carries[ticket] = (channel, stream)
        return True

    def poll(self) -> Iterable[tuple[int, int]]:
        return self._epoll.poll(0)

    def handle(self, fd: int, mask: int) -> list[Ended]:
        channel = self._channels.get(fd)
        if channel is None:
            return []
        try:
            if mask & select.EPOLLOUT:
                channel.flush()
            data = channel.read()
            calls = channel.caller.feed(data)
            if more := channel.caller.take():
                channel.write(more)
        except BlockingIOError:
            return []
        except (OSError, Http2Error):
            data, calls = b"", []
        ended = []
        for stream, status, _ in calls:
            ticket = channel.tickets.pop(stream)
            del self._carries[ticket]
            verdict = Verdict.ANSWERED if status == OK else Verdict.FAILED
            if status in _GRPC_REFUSED:
                verdict = Verdict.REFUSED
            ended.append(Ended(ticket, verdict, NAMES.get(status, str(status))))
        if not data or (channel.caller.leaving and not channel.tickets):
            for ticket in channel.tickets.values():
                del self._carries[ticket]
                ended.append(Ended(ticket, Verdict.FAILED, BROKEN))
            self._drop(channel)
        return ended

    def _drop(self, channel: _GrpcChannel) -> None:
        del self._channels[channel.fd]
        channel.close()

    def abandon(self, ticket: int) -> None:
        carried = self._carries.pop(ticket, None)
        if carried is not None:
            channel, stream = carried
            del channel.tickets[stream]
            channel.caller.abandon(stream)
            try:
                channel.write(channel.caller.take())
            except OSError:
                return  # whoever polls next hears of it

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        for channel in list(self._channels.values()):
            self._drop(channel)
        self._epoll.close()
