"""Client connections of the load generator: one request at a time per HTTP connection, many calls per gRPC connection.

Sockets never block: data that a socket does not accept is buffered. A broken connection fails the requests that it
carried, and the next request opens another one.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from cotenant.errors import ConfigError
from cotenant.serve.load.request import InferenceRequest, http_request
from cotenant.serve.model.goodput import RequestOutcome
from cotenant.serve.protocol.grpc.client import GrpcClient, call_head, length_prefixed
from cotenant.serve.protocol.grpc.status import DEADLINE_EXCEEDED, NAMES, OK, RESOURCE_EXHAUSTED, UNAVAILABLE
from cotenant.serve.protocol.http1.response import ResponseError, ResponseReader
from cotenant.serve.protocol.http2.frames import Http2Error

_READ_BYTES: Final = 1 << 18
_READ: Final = select.EPOLLIN
_BOTH: Final = select.EPOLLIN | select.EPOLLOUT
_HTTP_REFUSED: Final = (429, 503)
_GRPC_REFUSED: Final = (RESOURCE_EXHAUSTED, UNAVAILABLE, DEADLINE_EXCEEDED)
BROKEN: Final = "broken connection"
_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
GRPC_CONNECTIONS: Final = 4


class Endpoint(msgspec.Struct, frozen=True):
    """Address and protocol of a server."""

    kind: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Return HOST:PORT as requests name it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def endpoint_of(url: str) -> Endpoint:
    """Parse http://HOST:PORT or grpc://HOST:PORT; without a scheme the protocol is HTTP."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "http", url
    host, colon, port = rest.rstrip("/").rpartition(":")
    if scheme not in ("http", "grpc") or not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 0xFFFF:
        raise ConfigError("URL", url, "write http://HOST:PORT or grpc://HOST:PORT")
    return Endpoint(scheme, host.strip("[]"), int(port))


def message_of(request: InferenceRequest, endpoint: Endpoint) -> bytes:
    """Encode a request: the whole HTTP request, or the gRPC message."""
    if endpoint.kind == "http":
        return http_request(request, endpoint.authority)
    from cotenant.serve.load.request_proto import grpc_request  # noqa: PLC0415  protobuf is an optional package

    return length_prefixed(grpc_request(request))


class CompletedRequest(NamedTuple):
    """The outcome of one request."""

    ticket: int
    outcome: RequestOutcome
    status: str


class ConnectionPool(Protocol):
    """All connections to one server."""

    def begin(self, ticket: int, message_index: int) -> bool:
        """Send a message; return False if no connection is free."""
        ...

    def poll(self) -> Iterable[tuple[int, int]]:
        """Return the channels that can be read or written, without waiting."""
        ...

    def handle(self, fd: int, mask: int) -> list[CompletedRequest]:
        """Read and write without blocking; return the completed requests."""
        ...

    def abandon(self, ticket: int) -> None:
        """Stop waiting for a request."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when `poll` has a result."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def open_connections(endpoint: Endpoint, messages: Sequence[bytes], connections: int) -> ConnectionPool:
    """Create the connections for the endpoint's protocol."""
    if endpoint.kind == "http":
        return _HttpPool(endpoint, messages, connections)
    return _GrpcPool(endpoint, messages, min(connections, GRPC_CONNECTIONS))


class _Connection:
    """A non-blocking socket."""

    __slots__ = ("_epoll", "_out", "fd", "socket")

    def __init__(self, endpoint: Endpoint, epoll: select.epoll) -> None:
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        new_socket = socket.socket(family, socket.SOCK_STREAM)
        new_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        new_socket.setblocking(False)
        # A failed connection attempt shows on the first read or write.
        new_socket.connect_ex((endpoint.host, endpoint.port))
        self.socket = new_socket
        self.fd = new_socket.fileno()
        self._out: list[bytes | memoryview] = []
        self._epoll = epoll
        epoll.register(self.fd, _READ)

    def write(self, data: bytes) -> None:
        """Send now, or when the socket is writable."""
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
        """Continue to send; the socket is writable."""
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
        """Return the available data; empty if the peer closed the connection."""
        return self.socket.recv(_READ_BYTES)

    def close(self) -> None:
        self._epoll.unregister(self.fd)
        self.socket.close()


class _HttpChannel(_Connection):
    __slots__ = ("reader", "ticket")

    def __init__(self, endpoint: Endpoint, epoll: select.epoll) -> None:
        super().__init__(endpoint, epoll)
        self.reader = ResponseReader()
        self.ticket = 0


class _HttpPool:
    """One request at a time on each connection."""

    def __init__(self, endpoint: Endpoint, messages: Sequence[bytes], limit: int) -> None:
        self._endpoint = endpoint
        self._messages = messages
        self._limit = limit
        self._epoll = select.epoll()
        self._channels: dict[int, _HttpChannel] = {}
        self._idle: list[_HttpChannel] = []
        self._channel_of: dict[int, _HttpChannel] = {}

    def begin(self, ticket: int, message_index: int) -> bool:
        while self._idle:
            channel = self._idle.pop()
            if self._send(channel, ticket, message_index):
                return True
        if len(self._channels) >= self._limit:
            return False
        channel = _HttpChannel(self._endpoint, self._epoll)
        self._channels[channel.fd] = channel
        return self._send(channel, ticket, message_index)

    def _send(self, channel: _HttpChannel, ticket: int, message_index: int) -> bool:
        try:
            channel.write(self._messages[message_index])
        except OSError:  # the server closed it while it was idle
            self._drop(channel)
            return False
        channel.ticket = ticket
        self._channel_of[ticket] = channel
        return True

    def poll(self) -> Iterable[tuple[int, int]]:
        return self._epoll.poll(0)

    def handle(self, fd: int, mask: int) -> list[CompletedRequest]:
        channel = self._channels.get(fd)
        if channel is None:
            return []
        try:
            if mask & select.EPOLLOUT:
                channel.flush()
            data = channel.read()
            response = channel.reader.feed(data) if data else None
        except BlockingIOError:
            return []
        except (OSError, ResponseError):
            data, response = b"", None
        if data and response is None:
            return []
        ticket = channel.ticket
        channel.ticket = 0
        self._channel_of.pop(ticket, None)
        head = response[0] if response else None
        if head is None or not head.keep_alive or not ticket:
            self._drop(channel)
        else:
            self._idle.append(channel)
        if not ticket:
            return []
        if head is None:
            return [CompletedRequest(ticket, RequestOutcome.FAILED, BROKEN)]
        if head.status // 100 == 2:
            return [CompletedRequest(ticket, RequestOutcome.ANSWERED, str(head.status))]
        refused = head.status in _HTTP_REFUSED
        return [
            CompletedRequest(ticket, RequestOutcome.REFUSED if refused else RequestOutcome.FAILED, str(head.status))
        ]

    def _drop(self, channel: _HttpChannel) -> None:
        del self._channels[channel.fd]
        if channel in self._idle:
            self._idle.remove(channel)
        channel.close()

    def abandon(self, ticket: int) -> None:
        channel = self._channel_of.pop(ticket, None)
        if channel is not None:
            self._drop(channel)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        for channel in list(self._channels.values()):
            self._drop(channel)
        self._epoll.close()


class _GrpcChannel(_Connection):
    __slots__ = ("client", "tickets")

    def __init__(self, endpoint: Endpoint, epoll: select.epoll) -> None:
        super().__init__(endpoint, epoll)
        self.client = GrpcClient()
        self.tickets: dict[int, int] = {}


class _GrpcPool:
    """Many concurrent calls on each connection, up to the server's limit."""

    def __init__(self, endpoint: Endpoint, messages: Sequence[bytes], connections: int) -> None:
        self._endpoint = endpoint
        self._messages = messages
        self._count = connections
        self._head = call_head(_INFER, endpoint.authority)
        self._epoll = select.epoll()
        self._channels: dict[int, _GrpcChannel] = {}
        self._channel_of: dict[int, tuple[_GrpcChannel, int]] = {}

    def begin(self, ticket: int, message_index: int) -> bool:
        while len(self._channels) < self._count:
            new_channel = _GrpcChannel(self._endpoint, self._epoll)
            self._channels[new_channel.fd] = new_channel
        free = [candidate for candidate in self._channels.values() if candidate.client.can_call]
        if not free:
            return False
        channel = min(free, key=lambda candidate: candidate.client.calls)
        stream = channel.client.call(self._head, self._messages[message_index])
        try:
            channel.write(channel.client.take())
        except OSError:
            channel.client.abandon(stream)
            return False  # the next poll reports it and drops the channel
        channel.tickets[stream] = ticket
        self._channel_of[ticket] = (channel, stream)
        return True

    def poll(self) -> Iterable[tuple[int, int]]:
        return self._epoll.poll(0)

    def handle(self, fd: int, mask: int) -> list[CompletedRequest]:
        channel = self._channels.get(fd)
        if channel is None:
            return []
        try:
            if mask & select.EPOLLOUT:
                channel.flush()
            data = channel.read()
            calls = channel.client.feed(data)
            if unsent := channel.client.take():
                channel.write(unsent)
        except BlockingIOError:
            return []
        except (OSError, Http2Error):
            data, calls = b"", []
        completed = []
        for stream, status, _ in calls:
            ticket = channel.tickets.pop(stream)
            del self._channel_of[ticket]
            outcome = RequestOutcome.ANSWERED if status == OK else RequestOutcome.FAILED
            if status in _GRPC_REFUSED:
                outcome = RequestOutcome.REFUSED
            completed.append(CompletedRequest(ticket, outcome, NAMES.get(status, str(status))))
        if not data or (channel.client.draining and not channel.tickets):
            for ticket in channel.tickets.values():
                del self._channel_of[ticket]
                completed.append(CompletedRequest(ticket, RequestOutcome.FAILED, BROKEN))
            self._drop(channel)
        return completed

    def _drop(self, channel: _GrpcChannel) -> None:
        del self._channels[channel.fd]
        channel.close()

    def abandon(self, ticket: int) -> None:
        carried = self._channel_of.pop(ticket, None)
        if carried is not None:
            channel, stream = carried
            del channel.tickets[stream]
            channel.client.abandon(stream)
            try:
                channel.write(channel.client.take())
            except OSError:
                return  # the next poll reports it

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        for channel in list(self._channels.values()):
            self._drop(channel)
        self._epoll.close()
