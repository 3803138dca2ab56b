"""GET /metrics, answered by the node's own loop. A slow, malformed or hostile client loses its own connection only.

Served by the loop rather than by a thread of its own: what is shown is of one instant between two turns, and a thread
that holds the interpreter would delay the loop by milliseconds at a time, whenever it liked. What a page costs is
bounded instead: it is made at most once per `FRESH_NS`, however many ask, and piece by piece, with other work of the
loop between two pieces. A request is one short head; nothing else is read, and a connection is answered once and
closed. There are at most `CONNECTIONS` of them, and the oldest gives way to a newcomer.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.live.address import joined
from cotenant.live.loop import READ, WRITE, ReadyLoop
from cotenant.port import Clock

CONNECTIONS: Final = 16
PATIENCE_NS: Final = 5 * SECOND_NS
"""How long a client may take for its request and for reading the answer, together."""
HEAD_LIMIT_BYTES: Final = 8192
FRESH_NS: Final = SECOND_NS
"""A page is shown again without being made anew for so long."""
_READ_BYTES: Final = 4096
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FINE: Final = "200 OK"
_PLAIN: Final = "text/plain; charset=utf-8"
_HINT: Final = b"cotenant: the figures are at /metrics\n"


MakePage: TypeAlias = Callable[[], Iterator[bytes]]


class _Client:
    """One connection."""

    __slots__ = ("deadline", "head", "is_watched", "socket", "unsent")

    def __init__(self, connection: socket.socket, deadline: Instant) -> None:
        self.socket = connection
        self.deadline = deadline
        self.head = b""
        self.is_watched = True
        self.unsent = memoryview(b"")


class MetricsDoor:
    """Accepts, reads a head, answers, closes."""

    def __init__(
        self, loop: ReadyLoop, clock: Clock, listener: socket.socket, page: Callable[[], Iterator[bytes]]
    ) -> None:
        """Serve on this listening socket what `page` makes, piece by piece."""
        self._loop = loop
        self._clock = clock
        self._listener = listener
        self._page = page
        self._made: tuple[Instant, bytes] | None = None
        self._making: tuple[Instant, Iterator[bytes], list[bytes]] | None = None
        self._awaiting: list[_Client] = []  # who gets what is being made
        self._clients: dict[int, _Client] = {}  # by descriptor, oldest first: deadlines are in the same order
        self._deaf_until: Instant | None = None  # we stopped accepting, for want of descriptors
        loop.watch(listener.fileno(), READ, self._accept)
        loop.add_timed(self)

    @property
    def address(self) -> str:
        """Where the figures are, as a URL."""
        return f"http://{joined(*self._listener.getsockname()[:2])}/metrics"

    def next_wakeup(self) -> Instant | None:
        """At once while a page is being made; else the deadline of the oldest connection, or when to listen again."""
        if self._making is not None:
            return 0
        return next((client.deadline for client in self._clients.values()), self._deaf_until)

    def wake(self, now: Instant) -> None:
        """Close the connections whose time has run out."""
        for client in [client for client in self._clients.values() if now >= client.deadline]:
            self._forget(client)
        if self._deaf_until is not None and now >= self._deaf_until:
            self._deaf_until = None
            self._loop.watch(self._listener.fileno(), READ, self._accept)
        if self._making is not None:
            self._make(*self._making)

    def close(self) -> None:
        """Hang up on everybody."""
        for client in list(self._clients.values()):
            self._forget(client)
        if self._deaf_until is None:
            self._loop.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self, mask: int) -> None:
        del mask
        if len(self._clients) >= CONNECTIONS:  # whoever means well is done within a moment
            self._forget(next(iter(self._clients.values())))
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if (
                error.errno in _EXHAUSTED
            ):  # the newcomer stays in the backlog; to be told of it again at once helps nobody
                self._loop.forget(self._listener.fileno())
                self._deaf_until = self._clock.now() + FRESH_NS
            return
        connection.setblocking(False)
        client = _Client(connection, self._clock.now() + PATIENCE_NS)
        self._clients[connection.fileno()] = client
        self._loop.watch(connection.fileno(), READ, lambda ready: self._ready(client, ready))

    def _ready(self, client: _Client, mask: int) -> None:
        if mask & WRITE:
            self._flush(client)
        elif mask & READ:
            self._read(client)

    def _read(self, client: _Client) -> None:
        try:
            data = client.socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._forget(client)
            return
        client.head += data
        if b"\r\n\r\n" in client.head or b"\n\n" in client.head:
            status, kind, body = self._reply(client.head)
            if status == _FINE and body is None:
                self._await_page(client)
            else:
                self._answer(client, status, kind, body or b"")
        elif len(client.head) > HEAD_LIMIT_BYTES:
            self._answer(client, "431 Request Header Fields Too Large", _PLAIN, b"")

    def _reply(self, head: bytes) -> tuple[str, str, bytes | None]:
        """Status, kind and body; None for the page, which may have to be made first."""
        words = head.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return "400 Bad Request", _PLAIN, b""
        if words[0] not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", _PLAIN, b""
        if words[1].split(b"?", 1)[0] != b"/metrics":
            return "404 Not Found", _PLAIN, _HINT
        return _FINE, CONTENT_TYPE_LATEST, b"" if words[0] == b"HEAD" else None

    def _await_page(self, client: _Client) -> None:
        now = self._clock.now()
        if self._made is not None and now < self._made[0] + FRESH_NS:
            self._answer(client, _FINE, CONTENT_TYPE_LATEST, self._made[1])
            return
        self._loop.forget(client.socket.fileno())  # whatever else it says is not read
        client.is_watched = False
        self._awaiting.append(client)
        if self._making is None:
            self._making = now, self._page(), []

    def _make(self, begun: Instant, page: Iterator[bytes], pieces: list[bytes]) -> None:
        piece = next(page, None)
        if piece is not None:
            pieces.append(piece)
            return
        self._making, self._made = None, (begun, b"".join(pieces))
        awaiting, self._awaiting = self._awaiting, []
        for client in awaiting:
            if client.socket.fileno() >= 0:  # one that gave way meanwhile is closed
                self._answer(client, _FINE, CONTENT_TYPE_LATEST, self._made[1])

    def _answer(self, client: _Client, status: str, kind: str, body: bytes) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        client.unsent = memoryview(head.encode() + body)
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        try:
            while client.unsent:
                client.unsent = client.unsent[client.socket.send(client.unsent) :]
        except (BlockingIOError, InterruptedError):
            self._loop.watch(client.socket.fileno(), WRITE, lambda ready: self._ready(client, ready))
            client.is_watched = True
            return
        except OSError:
            self._forget(client)
            return
        with contextlib.suppress(OSError):
            client.socket.shutdown(socket.SHUT_WR)  # an end that the client reads after the answer, not a reset before
        self._forget(client)

    def _forget(self, client: _Client) -> None:
        if self._clients.pop(client.socket.fileno(), None) is not None and client.is_watched:
            self._loop.forget(client.socket.fileno())
        client.socket.close()
