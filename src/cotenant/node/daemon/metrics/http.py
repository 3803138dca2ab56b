"""GET /metrics, answered by the node's own loop. A slow, malformed or hostile client loses its own connection only.

The loop serves it, not a thread: the values are of one instant between two turns, and a thread that holds the
interpreter could delay the loop by milliseconds. The cost of a page is bounded: it is rendered at most once per
`FRESH_NS` for all clients, family by family, with other work of the loop in between. A request is one short head;
nothing else is read, and a connection is answered once and closed. At most `CONNECTIONS` are open; a new one closes
the oldest.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cotenant.runner.address import join_address
from cotenant.runner.live_loop import READ, WRITE, IoLoop
from cotenant.runner.ports import Clock
from cotenant.units.instant import SECOND_NS, Instant

CONNECTIONS: Final = 16
PATIENCE_NS: Final = 5 * SECOND_NS
"""Time that a client has for its request and for reading the answer together."""
HEAD_LIMIT_BYTES: Final = 8192
FRESH_NS: Final = SECOND_NS
"""How long a rendered page is reused."""
_READ_BYTES: Final = 4096
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_OK: Final = "200 OK"
_PLAIN_TEXT: Final = "text/plain; charset=utf-8"
_HINT: Final = b"cotenant: the metrics are at /metrics\n"


MakePage: TypeAlias = Callable[[], Iterator[bytes]]
MakeText: TypeAlias = Callable[[], tuple[str, str]]
"""Returns a status line, such as "200 OK", and a text."""


class _Client:
    """One connection."""

    __slots__ = ("deadline", "head", "is_watched", "socket", "unsent")

    def __init__(self, connection: socket.socket, deadline: Instant) -> None:
        self.socket = connection
        self.deadline = deadline
        self.head = b""
        self.is_watched = True
        self.unsent = memoryview(b"")


class MetricsListener:
    """Accepts connections, reads a request head, answers and closes."""

    def __init__(
        self,
        loop: IoLoop,
        clock: Clock,
        listener: socket.socket,
        page: MakePage,
        texts: Mapping[str, MakeText] | None = None,
    ) -> None:
        """Serve on this listening socket the chunks that `page` yields, and `texts` at further paths."""
        self._texts = {path.encode(): text for path, text in (texts or {}).items()}
        self._loop = loop
        self._clock = clock
        self._listener = listener
        self._page = page
        self._page_cache: tuple[Instant, bytes] | None = None
        self._page_in_progress: tuple[Instant, Iterator[bytes], list[bytes]] | None = None
        self._awaiting: list[_Client] = []  # clients that wait for the page in progress
        self._clients: dict[int, _Client] = {}  # by descriptor, oldest first, which is the order of the deadlines
        self._full_until: Instant | None = None  # accepting is stopped until then because no descriptor is free
        loop.watch(listener.fileno(), READ, self._accept)
        loop.add_timer(self)

    @property
    def address(self) -> str:
        """Return the URL of the metrics."""
        return f"http://{join_address(*self._listener.getsockname()[:2])}/metrics"

    def next_wakeup(self) -> Instant | None:
        """Return 0 while a page is rendered, else the earliest deadline or the instant to accept again."""
        if self._page_in_progress is not None:
            return 0
        return next((client.deadline for client in self._clients.values()), self._full_until)

    def wake(self, now: Instant) -> None:
        """Close the connections whose deadline has passed."""
        for client in [client for client in self._clients.values() if now >= client.deadline]:
            self._forget(client)
        if self._full_until is not None and now >= self._full_until:
            self._full_until = None
            self._loop.watch(self._listener.fileno(), READ, self._accept)
        if self._page_in_progress is not None:
            self._render(*self._page_in_progress)

    def close(self) -> None:
        """Close all connections."""
        for client in list(self._clients.values()):
            self._forget(client)
        if self._full_until is None:
            self._loop.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self, mask: int) -> None:
        del mask
        if len(self._clients) >= CONNECTIONS:  # honest clients finish at once, so the oldest is closed
            self._forget(next(iter(self._clients.values())))
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if (
                error.errno in _EXHAUSTED
            ):  # the connection stays in the backlog; a repeated event would only spin the loop
                self._loop.forget(self._listener.fileno())
                self._full_until = self._clock.now() + FRESH_NS
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
            if status == _OK and body is None:
                self._await_page(client)
            else:
                self._answer(client, status, kind, body or b"")
        elif len(client.head) > HEAD_LIMIT_BYTES:
            self._answer(client, "431 Request Header Fields Too Large", _PLAIN_TEXT, b"")

    def _reply(self, head: bytes) -> tuple[str, str, bytes | None]:
        """Return status, content type and body; None for the page, which may have to be rendered first."""
        words = head.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return "400 Bad Request", _PLAIN_TEXT, b""
        if words[0] not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", _PLAIN_TEXT, b""
        path = words[1].split(b"?", 1)[0]
        if path in self._texts:
            status, text = self._texts[path]()
            return status, _PLAIN_TEXT, text.encode()
        if path != b"/metrics":
            return "404 Not Found", _PLAIN_TEXT, _HINT
        return _OK, CONTENT_TYPE_LATEST, b"" if words[0] == b"HEAD" else None

    def _await_page(self, client: _Client) -> None:
        now = self._clock.now()
        if self._page_cache is not None and now < self._page_cache[0] + FRESH_NS:
            self._answer(client, _OK, CONTENT_TYPE_LATEST, self._page_cache[1])
            return
        self._loop.forget(client.socket.fileno())  # further input is not read
        client.is_watched = False
        self._awaiting.append(client)
        if self._page_in_progress is None:
            self._page_in_progress = now, self._page(), []

    def _render(self, started: Instant, page: Iterator[bytes], chunks: list[bytes]) -> None:
        chunk = next(page, None)
        if chunk is not None:
            chunks.append(chunk)
            return
        self._page_in_progress, self._page_cache = None, (started, b"".join(chunks))
        awaiting, self._awaiting = self._awaiting, []
        for client in awaiting:
            if client.socket.fileno() >= 0:  # a client may have been closed meanwhile
                self._answer(client, _OK, CONTENT_TYPE_LATEST, self._page_cache[1])

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
            client.socket.shutdown(
                socket.SHUT_WR
            )  # the client reads an end of file after the answer, not a reset before it
        self._forget(client)

    def _forget(self, client: _Client) -> None:
        if self._clients.pop(client.socket.fileno(), None) is not None and client.is_watched:
            self._loop.forget(client.socket.fileno())
        client.socket.close()
