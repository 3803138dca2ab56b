"""How are clients served over HTTP? One connection at a time reads, asks, and writes, all on the loop's own thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, cast

from cotenant.domain.instant import SECOND_NS
from cotenant.domain.serving import ModelSpec
from cotenant.format.http import HttpError, HttpReader, HttpRequest
from cotenant.format.infer import InferError, InferRequest
from cotenant.format.infer_json import Output, read_request, write_answer, write_error
from cotenant.format.packing import pack, unpack
from cotenant.format.target import Target, parse_target
from cotenant.live.serve.http_site import JSON, Answered, answer_to
from cotenant.live.serve.site import Site

STATUS: Final = {
    "invalid": 400,
    "not-found": 404,
    "exhausted": 429,
    "fault": 500,
    "unsupported": 501,
    "unavailable": 503,
    "late": 503,
}
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_PIPELINE_LIMIT: Final = 16
_BINARY: Final = b"application/octet-stream"
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"


class Limits(NamedTuple):
    """What a client may take."""

    body_bytes: int = 256 << 20
    held_bytes: int = 1 << 30
    """Tensors of all requests that wait or run."""
    connections: int = 4096
    patience_s: float = 60.0
    """For the rest of a request that has begun."""


class HttpServing:
    """What all connections share."""

    def __init__(self, site: Site, limits: Limits, metrics: Callable[[], bytes]) -> None:
        """Nobody is connected."""
        self.site = site
        self.limits = limits
        self.metrics = metrics
        self.connections: set[HttpConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.leaving = False

    def __call__(self) -> HttpConnection:
        """A protocol for a new connection."""
        return HttpConnection(self)

    def sweep(self) -> None:
        """Close those that began a request and do not go on; called every `patience_s`."""
        for one in list(self.connections):
            one.grow_old()

    def leave(self) -> None:
        """Close each connection once it is answered."""
        self.leaving = True
        for one in list(self.connections):
            one.close_if_idle()


class HttpConnection(asyncio.Protocol):
    """One client; requests of one connection are answered one after the other."""

    streams = False

    def __init__(self, serving: HttpServing) -> None:
        """Not connected yet."""
        self._serving = serving
        self._reader = HttpReader(serving.limits.body_bytes)
        self._transport: asyncio.Transport | None = None
        self._current: HttpRequest | None = None
        self._number = 0
        self._paused = False
        self._unread = False
        """The client does not read its answers."""
        self._old = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast("asyncio.Transport", transport)
        serving = self._serving
        if len(serving.connections) >= serving.limits.connections:
            self._refuse(503, f"{serving.limits.connections} clients are connected, which is the limit")
            return
        serving.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and wants no answer."""
        del exc
        self._serving.connections.discard(self)
        self._transport = None
        if self._number:
            self._serving.site.engine.cancel(self._number)

    def data_received(self, data: bytes) -> None:
        """More of what the client says."""
        self._old = False
        try:
            self._reader.feed(data)
        except HttpError as error:
            if self._current is None:  # otherwise an answer is due first, and then nothing more is read
                self._advance()
            if self._current is None:
                self._refuse(error.status, str(error))
            elif self._transport is not None:
                self._transport.close()
            return
        if self._reader.wants_continue and self._transport is not None:
            self._reader.wants_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._current is None:
            self._advance()

    def pause_writing(self) -> None:
        """The client does not read: nothing more is read from it either."""
        self._unread = True
        self._hold()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._unread = False
        self._advance()

    def _hold(self) -> None:
        """Read from the client, or not: not while it does not read, nor while it is far ahead of its answers."""
        paused = self._unread or self._reader.waiting > _PIPELINE_LIMIT
        if self._transport is None or paused == self._paused:
            return
        self._paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def grow_old(self) -> None:
        """Close it if nothing came since this was called last, with a request half read."""
        if self._old and self._reader.mid_request and self._transport is not None:
            self._transport.abort()
        self._old = True

    def close_if_idle(self) -> None:
        """Close it if nothing is due."""
        if self._current is None and not self._reader.mid_request and self._transport is not None:
            self._transport.close()

    def _advance(self) -> None:
        """Take up requests until one has to wait."""
        while self._current is None and self._transport is not None and not self._unread:
            request = self._reader.next()
            if request is None:
                break
            self._current = request
            self._take(request)
        if self._paused or self._reader.waiting > _PIPELINE_LIMIT:
            self._hold()

    def _take(self, request: HttpRequest) -> None:
        try:
            target = parse_target(request.head.target)
            if target.kind == "infer":
                if request.head.method != "POST":
                    self._respond(405, write_error("inference is asked for by POST"))
                    return
                self._infer(request, target)
            else:
                self._ask(request, target)
        except InferError as error:
            self.failed(error)

    def _infer(self, request: HttpRequest, target: Target) -> None:
        head = request.head
        body = request.body
        if head.encoding and head.encoding != "identity":
            body = memoryview(self._unpacked(body, head.encoding))
        asked = read_request(target.name, target.version, body, head.json_length)
        number = self._serving.site.engine.submit(asked, self)
        if self._current is request:
            self._number = number

    def _unpacked(self, body: memoryview, encoding: str) -> bytes:
        try:
            return unpack(body, encoding, self._serving.limits.body_bytes)
        except ValueError as error:
            raise InferError(f"the body {error}") from None

    def _ask(self, request: HttpRequest, target: Target) -> None:
        body = request.body
        if request.head.encoding and request.head.encoding != "identity":
            body = memoryview(self._unpacked(body, request.head.encoding))
        if target.kind == "metrics":
            self._respond(200, self._serving.metrics(), _TEXT)
            return
        answer = answer_to(self._serving.site, target, request.head.method, bytes(body))
        if isinstance(answer, Answered):
            self._respond(answer.status, answer.body, answer.kind)
            return
        task = asyncio.get_running_loop().create_task(self._await(request, answer))
        self._serving.tasks.add(task)
        task.add_done_callback(self._serving.tasks.discard)

    async def _await(self, request: HttpRequest, answer: Coroutine[Any, Any, Answered]) -> None:
        try:
            found = await answer
        except InferError as error:
            if self._current is request:
                self.failed(error)
            return
        if self._current is request:
            self._respond(found.status, found.body, found.kind)

    # The port of the engine: where an answer goes.

    def done(self, request: InferRequest, spec: ModelSpec, outputs: list[Output]) -> None:
        """The answer to the present request."""
        parts, json_length = write_answer(spec.name, spec.version, request.id, outputs)
        if json_length < 0:
            self._respond(200, parts[0])
        else:
            extra = b"Inference-Header-Content-Length: %d\r\n" % json_length
            self._respond(200, b"".join(parts), _BINARY, extra)

    def failed(self, error: InferError) -> None:
        """There is none, and why."""
        extra = b""
        if error.retry_after_ns:
            extra = b"Retry-After: %d\r\n" % -(-error.retry_after_ns // SECOND_NS)
        self._respond(STATUS[error.kind], write_error(str(error)), extra=extra)

    def over(self) -> None:
        """Only streams end."""

    def _respond(self, status: int, body: bytes, kind: bytes = JSON, extra: bytes = b"") -> None:
        request = self._current
        self._current = None
        self._number = 0
        transport = self._transport
        if transport is None or request is None:
            return
        head = request.head
        if head.accepts and len(body) > 256 and status == 200:
            body = pack(body, head.accepts[0])
            extra += b"Content-Encoding: " + head.accepts[0].encode() + b"\r\n"
        stay = head.keep_alive and not self._serving.leaving
        lead = _lead(status, kind, stay) + extra + b"Content-Length: %d\r\n\r\n" % len(body)
        transport.write(lead if head.method == "HEAD" else lead + body)
        if not stay:
            transport.close()
        elif self._reader.waiting:
            asyncio.get_running_loop().call_soon(self._advance)

    def _refuse(self, status: int, text: str) -> None:
        if self._transport is not None:
            body = write_error(text)
            lead = _lead(status, JSON, False)
            self._transport.write(lead + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            self._transport.close()


@functools.cache
def _lead(status: int, kind: bytes, stay: bool) -> bytes:  # noqa: FBT001  by place, which a cache is quicker by
    ending = b"" if stay else b"Connection: close\r\n"
    return b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\n" % (status, _REASONS[status].encode(), kind) + ending
