"""How are clients served over HTTP? One connection at a time reads, asks, and writes, all on the loop's own thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, cast

from cotenant.domain.instant import SECOND_NS
from cotenant.domain.serving import ModelSpec
from cotenant.format.http import Head, HttpError, HttpReader, HttpRequest
from cotenant.format.infer import InferError, InferRequest
from cotenant.format.infer_json import Output, read_request, write_answer, write_error
from cotenant.format.packing import AT_ONCE_BYTES, Unpacking, pack
from cotenant.format.room import Room
from cotenant.format.target import Target, parse_target
from cotenant.live.serve.fault import error_of
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
_PIPELINE_BYTES: Final = 1 << 20
_PACK_HERE_BYTES: Final = 32 << 10
"""What is larger is packed and unpacked on another thread: nobody else should wait for it."""
_NOT_PACKED_BYTES: Final = 256
"""What is no larger is sent as it is: packing would save nothing."""
_TOGETHER_BYTES: Final = 64 << 10
_LINGER_S: Final = 2.0
_NOTHING: Final = HttpRequest(Head("", "", 0, -1, False, False, "", ()), memoryview(b""))
_CRAWL_BYTES: Final = 4096
"""Of a request that is half read so much must come between two sweeps."""
_BINARY: Final = b"application/octet-stream"
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"


class Limits(NamedTuple):
    """What a client may take."""

    body_bytes: int = 256 << 20
    held_bytes: int = 1 << 30
    """Tensors of all requests that wait or run."""
    connections: int = 4096
    patience_s: float = 60.0
    """How often those who begin a request and do not go on are looked for."""


class HttpServing:
    """What all connections share."""

    def __init__(self, site: Site, limits: Limits, metrics: Callable[[], bytes], *, figures_only: bool = False) -> None:
        """Nobody is connected."""
        self.site = site
        self.limits = limits
        self.metrics = metrics
        self.figures_only = figures_only
        self.room = Room(limits.held_bytes)
        self.connections: set[HttpConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.leaving = False

    def __call__(self) -> HttpConnection:
        """A protocol for a new connection."""
        return HttpConnection(self)

    def sweep(self) -> None:
        """Close those that began a request and do not go on, or take no answer; called every `patience_s`."""
        for one in list(self.connections):
            one.look_at()

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
        self._reader = HttpReader(serving.limits.body_bytes, serving.room)
        self._transport: asyncio.Transport | None = None
        self._current: HttpRequest | None = None
        self._number = 0
        self._paused = False
        self._unread = False
        """The client does not read its answers."""
        self._wrong: HttpError | None = None
        """What the client did; it is told after the answers that are due."""
        self._seen: tuple[int, int] | None = None
        self._seen_unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast("asyncio.Transport", transport)
        serving = self._serving
        if len(serving.connections) >= serving.limits.connections:
            self._refuse(503, f"{serving.limits.connections} clients are connected, which is the limit")
            transport.close()
            return
        serving.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and wants no answer."""
        del exc
        self._serving.connections.discard(self)
        self._transport = None
        self._reader.close()
        if self._number:
            self._serving.site.engine.cancel(self._number)

    def data_received(self, data: bytes) -> None:
        """More of what the client says."""
        if self._wrong is not None:
            return  # whatever it is: it is not read any more
        try:
            self._reader.feed(data)
        except HttpError as error:
            self._wrong = error
        if self._reader.wants_continue and self._transport is not None:
            self._reader.wants_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._current is None:
            self._advance()
        elif self._reader.waiting:
            self._hold()

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
        reader = self._reader
        ahead = reader.waiting > _PIPELINE_LIMIT or (reader.waiting and reader.waiting_bytes > _PIPELINE_BYTES)
        paused = self._unread or bool(ahead)
        if self._transport is None or paused == self._paused:
            return
        self._paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def look_at(self) -> None:
        """Close it if since this was called last too little came of half a request, or none of an answer was taken."""
        if self._transport is None:
            return
        unsent = self._transport.get_write_buffer_size()
        stuck = 0 < self._seen_unsent <= unsent
        came, before = None if self._paused else self._reader.progress, self._seen
        if came is not None and before is not None and came[0] == before[0]:
            stuck = stuck or came[1] - before[1] < _CRAWL_BYTES
        self._seen, self._seen_unsent = came, unsent
        if stuck:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Close it if nothing is due."""
        if self._current is None and not self._reader.mid_request and self._transport is not None:
            self._transport.close()

    def _advance(self) -> None:
        """Take up requests until one has to wait."""
        while self._current is None and self._transport is not None and not self._unread:
            request = self._reader.next()
            if request is None:
                if self._wrong is not None:
                    self._refuse(self._wrong.status, str(self._wrong), self._wrong.retry_after_s)
                    self._linger()
                break
            self._current = request
            self._take(request)
        if self._paused or self._reader.waiting:
            self._hold()

    def _take(self, request: HttpRequest) -> None:
        try:
            target = parse_target(request.head.target)
            encoding = request.head.encoding
            if not encoding or encoding == "identity":
                self._answer(request, target, request.body)
            else:
                self._take_packed(request, target, encoding)
        except Exception as error:  # noqa: BLE001  whatever it is, the client is told, and its connection goes on
            self.failed(error_of(error))

    def _answer(self, request: HttpRequest, target: Target, body: memoryview) -> None:
        if target.kind != "infer":
            self._ask(request, target, body)
        elif request.head.method != "POST":
            self._respond(405, write_error("inference is asked for by POST"))
        elif self._serving.figures_only:
            raise InferError("this port is for figures alone", "not-found")
        else:
            asked = read_request(target.name, target.version, body, request.head.json_length)
            number = self._serving.site.engine.submit(asked, self)
            if self._current is request:
                self._number = number

    def _take_packed(self, request: HttpRequest, target: Target, encoding: str) -> None:
        """A little that becomes a little is unpacked here."""
        try:
            packed = Unpacking(request.body, encoding, self._serving.limits.body_bytes)
            plain = packed.begin(AT_ONCE_BYTES if len(request.body) <= _PACK_HERE_BYTES else 0)
        except ValueError as error:
            raise InferError(f"the body {error}") from None
        if plain is None:
            self._begin(self._unpack(request, target, packed))
        else:
            self._answer(request, target, memoryview(plain))

    async def _unpack(self, request: HttpRequest, target: Target, packed: Unpacking) -> None:
        try:
            try:
                body = await asyncio.to_thread(packed.finish)
            except ValueError as error:
                raise InferError(f"the body {error}") from None
            if self._current is request:
                self._answer(request, target, memoryview(body))
        except Exception as error:  # noqa: BLE001  as above
            if self._current is request:
                self.failed(error_of(error))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._serving.tasks.add(task)
        task.add_done_callback(self._serving.tasks.discard)

    def _ask(self, request: HttpRequest, target: Target, body: memoryview) -> None:
        if target.kind == "metrics":
            self._respond(200, self._serving.metrics(), _TEXT)
            return
        if self._serving.figures_only and target.kind not in ("live", "ready"):
            raise InferError("this port is for figures alone", "not-found")
        answer = answer_to(self._serving.site, target, request.head.method, bytes(body))
        if isinstance(answer, Answered):
            self._respond(answer.status, answer.body, answer.kind)
        else:
            self._begin(self._await(request, answer))

    async def _await(self, request: HttpRequest, answer: Coroutine[Any, Any, Answered]) -> None:
        try:
            found = await answer
        except Exception as error:  # noqa: BLE001  as above
            if self._current is request:
                self.failed(error_of(error))
            return
        if self._current is request:
            self._respond(found.status, found.body, found.kind)

    # The port of the engine: where an answer goes.

    def done(self, request: InferRequest, spec: ModelSpec, outputs: list[Output]) -> None:
        """The answer to the present request."""
        parts, json_length = write_answer(spec.name, spec.version, request.id, outputs)
        if json_length < 0:
            self._respond_packed(parts[0])
        else:
            extra = b"Inference-Header-Content-Length: %d\r\n" % json_length
            self._respond_packed(b"".join(parts), _BINARY, extra)

    def failed(self, error: InferError) -> None:
        """There is none, and why."""
        extra = b""
        if error.retry_after_ns:
            extra = b"Retry-After: %d\r\n" % -(-error.retry_after_ns // SECOND_NS)
        self._respond(STATUS[error.kind], write_error(str(error)), extra=extra)

    def over(self) -> None:
        """Only streams end."""

    def _respond(self, status: int, body: bytes, kind: bytes = JSON, extra: bytes = b"") -> None:
        self._number = 0
        if self._current is not None:
            self._send(self._current, status, body, kind, extra)

    def _respond_packed(self, body: bytes, kind: bytes = JSON, extra: bytes = b"") -> None:
        """Tensors alone: NVIDIA's asyncio client says that it takes anything packed, and unpacks nothing else."""
        request = self._current
        if request is None or not request.head.accepts or len(body) <= _NOT_PACKED_BYTES:
            self._respond(200, body, kind, extra)
        elif len(body) <= _PACK_HERE_BYTES:
            encoding = request.head.accepts[0]
            self._respond(200, pack(body, encoding), kind, extra + _packed_by(encoding))
        else:
            self._number = 0
            self._begin(self._pack(request, body, kind, extra))

    async def _pack(self, request: HttpRequest, body: bytes, kind: bytes, extra: bytes) -> None:
        encoding = request.head.accepts[0]
        packed = await asyncio.to_thread(pack, body, encoding)
        if self._current is request:
            self._send(request, 200, packed, kind, extra + _packed_by(encoding))

    def _send(self, request: HttpRequest, status: int, body: bytes, kind: bytes, extra: bytes) -> None:
        self._current = None
        transport = self._transport
        if transport is None:
            return
        head = request.head
        stay = head.keep_alive and not self._serving.leaving
        lead = _lead(status, kind, stay) + extra + b"Content-Length: %d\r\n\r\n" % len(body)
        if head.method == "HEAD":
            transport.write(lead)
        elif len(body) <= _TOGETHER_BYTES:
            transport.write(lead + body)
        else:
            transport.writelines((lead, body))  # not copied once more
        if not stay:
            transport.close()
        elif self._reader.waiting or self._wrong is not None:
            asyncio.get_running_loop().call_soon(self._advance)

    def _refuse(self, status: int, text: str, retry_after_s: int = 0) -> None:
        if self._transport is not None:
            body = write_error(text)
            lead = _lead(status, JSON, False) + (b"Retry-After: %d\r\n" % retry_after_s if retry_after_s else b"")
            self._transport.write(lead + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def _linger(self) -> None:
        """Say that all is said, yet go on reading for a while: a close at once could tear the answer away."""
        transport = self._transport
        if transport is None:
            return
        self._current = _NOTHING
        if transport.can_write_eof():
            transport.write_eof()
            asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)
        else:
            transport.close()


def _packed_by(encoding: str) -> bytes:
    return b"Content-Encoding: " + encoding.encode() + b"\r\n"


@functools.cache
def _lead(status: int, kind: bytes, stay: bool) -> bytes:  # noqa: FBT001  by place, which a cache is quicker by
    ending = b"" if stay else b"Connection: close\r\n"
    return b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\n" % (status, _REASONS[status].encode(), kind) + ending
