"""HTTP listener: one protocol object per connection, all on the event loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, cast

from cotenant.runner.clock import monotonic_ns, unix_ns
from cotenant.serve.frontend.access import HEALTH, Access
from cotenant.serve.frontend.access_log import AccessLog, AccessRecord
from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.connections import Admission, ClientLimits, ConnectionTable, address_of
from cotenant.serve.frontend.http_routes import JSON, HttpResponse, respond_to
from cotenant.serve.frontend.large_requests import (
    LARGE_JSON_BYTES,
    LargeRequestDecoder,
    has_many_texts,
    take_long,
    with_texts,
)
from cotenant.serve.frontend.pending import error_of
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.protocol.budget import ByteBudget
from cotenant.serve.protocol.compression import INLINE_LIMIT_BYTES, STEP_BYTES, Decompression, compress
from cotenant.serve.protocol.http1.request import HttpError, HttpReader, HttpRequest, RequestHead
from cotenant.serve.protocol.oip.infer import InferError, InferRequest
from cotenant.serve.protocol.oip.infer_json import (
    ResponseBody,
    ResponseOutput,
    read_request,
    write_error,
    write_response,
)
from cotenant.serve.protocol.oip.path import Route, parse_route
from cotenant.units.instant import SECOND_NS

STATUS: Final = {
    "invalid": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not-found": 404,
    "exhausted": 429,
    "fault": 500,
    "unsupported": 501,
    "unavailable": 503,
    "late": 503,
}
_REASONS: Final = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
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
CONTROL_LIMIT_BYTES: Final = 64 << 10
"""Limit of requests other than inference, which are decoded on the event loop's thread."""
_PIPELINE_LIMIT: Final = 16
_PIPELINE_BYTES: Final = 1 << 20
_INLINE_BYTES: Final = 32 << 10
"""Larger bodies are compressed and decompressed in a thread."""
_MIN_COMPRESSED_BYTES: Final = 256
"""Smaller bodies are sent uncompressed."""
_SINGLE_WRITE_BYTES: Final = 64 << 10
_CLOSE_DELAY_S: Final = 2.0
_NO_REQUEST: Final = HttpRequest(RequestHead("", "", 0, -1, False, False, "", ()), memoryview(b""))
_MIN_PROGRESS_BYTES: Final = 4096
"""Minimum progress of a partly received request between two sweeps."""
_BINARY: Final = b"application/octet-stream"
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"
_PREFLIGHT: Final = (
    b"Access-Control-Allow-Methods: GET, POST\r\n"
    b"Access-Control-Allow-Headers: Authorization, Content-Type, Content-Encoding, Inference-Header-Content-Length\r\n"
)


class HttpServer:
    """State that all HTTP connections share."""

    def __init__(
        self,
        admin: AdminService,
        limits: ClientLimits,
        metrics: Callable[[], bytes],
        table: ConnectionTable | None = None,
        *,
        access: Access | None = None,
        log: AccessLog | None = None,
        large: LargeRequestDecoder | None = None,
        metrics_only: bool = False,
    ) -> None:
        """Start without connections."""
        self.admin = admin
        self.limits = limits
        self.table = table or ConnectionTable(limits.connections, limits.client_connections)
        self.access = access or Access()
        self.log = log
        self.large = large or LargeRequestDecoder(limits.held_bytes)
        self.metrics = metrics
        self.metrics_only = metrics_only
        self.receive_budget = ByteBudget(limits.held_bytes)
        self.connections: set[HttpConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.draining = False

    def __call__(self) -> HttpConnection:
        """Create the protocol of a new connection."""
        return HttpConnection(self)

    def sweep(self) -> None:
        """Close connections that make no progress with a request or read no response; called every `patience_s`."""
        for connection in list(self.connections):
            connection.close_if_stalled()

    def drain(self) -> None:
        """Close each connection after its current response."""
        self.draining = True
        for connection in list(self.connections):
            connection.close_if_idle()


class HttpConnection(asyncio.Protocol):
    """One client connection; its requests are answered one after the other."""

    streams = False

    def __init__(self, server: HttpServer) -> None:
        """Start unconnected."""
        self._server = server
        self._reader = HttpReader(server.limits.body_bytes, server.receive_budget)
        self._transport: asyncio.Transport | None = None
        self._current: HttpRequest | None = None
        self._number = 0
        self._paused = False
        self._write_paused = False
        """The client does not read its responses."""
        self._error: HttpError | None = None
        """The client's protocol error; it is sent after the responses that are due."""
        self._last_progress: tuple[int, int] | None = None
        self._last_unsent = 0
        self._health_only = False
        self._began_ns = 0
        self.requests = 0
        self.idle_checks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or reject it at the limit."""
        self._transport = cast("asyncio.Transport", transport)
        server = self._server
        admission = server.table.admit(self, address_of(transport))
        if admission is Admission.REFUSED:
            self._refuse(503, "too many clients are connected", 1)
            transport.close()
            return
        self._health_only = admission is Admission.HEALTH
        server.connections.add(self)

    @property
    def is_idle(self) -> bool:
        """Return whether no request is pending or partly received, and nothing remains to be sent."""
        transport = self._transport
        return (
            self._current is None
            and not self._reader.mid_request
            and not self._reader.waiting
            and (transport is None or not transport.get_write_buffer_size())
        )

    def close_idle(self) -> None:
        """Close the connection, which is idle."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the client's request."""
        del exc
        self._server.connections.discard(self)
        self._server.table.remove(self)
        self._transport = None
        self._reader.close()
        if self._number:
            self._server.admin.engine.cancel(self._number)

    def data_received(self, data: bytes) -> None:
        """Process received data."""
        if self._error is not None:
            return  # after a protocol error, nothing more is read
        try:
            self._reader.feed(data)
        except HttpError as error:
            self._error = error
        if self._reader.wants_continue and self._transport is not None:
            self._reader.wants_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._current is None:
            self._advance()
        elif self._reader.waiting:
            self._update_reading()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read its responses."""
        self._write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        """Resume reading."""
        self._write_paused = False
        self._advance()

    def _update_reading(self) -> None:
        """Pause reading while the client does not read its responses or has too many pipelined requests."""
        reader = self._reader
        too_many_waiting = reader.waiting > _PIPELINE_LIMIT or (
            reader.waiting and reader.waiting_bytes > _PIPELINE_BYTES
        )
        paused = self._write_paused or bool(too_many_waiting)
        if self._transport is None or paused == self._paused:
            return
        self._paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close_if_stalled(self) -> None:
        """Close the connection if it made too little progress with a request, or read nothing, since the last call."""
        if self._transport is None:
            return
        unsent = self._transport.get_write_buffer_size()
        stuck = 0 < self._last_unsent <= unsent
        progress, last_progress = None if self._paused else self._reader.progress, self._last_progress
        if progress is not None and last_progress is not None and progress[0] == last_progress[0]:
            stuck = stuck or progress[1] - last_progress[1] < _MIN_PROGRESS_BYTES
        self._last_progress, self._last_unsent = progress, unsent
        if stuck:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection if no response is due."""
        if self._current is None and not self._reader.mid_request and self._transport is not None:
            self._transport.close()

    def _advance(self) -> None:
        """Process complete requests until one has to wait."""
        while self._current is None and self._transport is not None and not self._write_paused:
            request = self._reader.next()
            if request is None:
                if self._error is not None:
                    self._refuse(self._error.status, str(self._error), self._error.retry_after_s)
                    self._close_after_reading()
                break
            self._current = request
            self._handle(request)
        if self._paused or self._reader.waiting:
            self._update_reading()

    def _handle(self, request: HttpRequest) -> None:
        self.requests += 1
        server = self._server
        if server.log is not None:
            self._began_ns = monotonic_ns()
        head = request.head
        try:
            route = parse_route(head.target)
            if head.origin or server.access.token:
                server.access.check(head.authorization, head.origin, is_health=route.kind in HEALTH)
                if head.method == "OPTIONS" and head.origin:
                    self._respond(204, b"", extra=_PREFLIGHT)
                    return
            if self._health_only and route.kind not in HEALTH and route.kind != "metrics":
                raise InferError("too many clients are connected", "unavailable", SECOND_NS)
            encoding = head.encoding
            if not encoding or encoding == "identity":
                self._route(request, route, request.body)
            else:
                self._route_compressed(request, route, encoding)
        except Exception as error:  # noqa: BLE001  the client gets the error, and its connection stays open
            self.send_error(error_of(error))

    def _route(self, request: HttpRequest, route: Route, body: memoryview) -> None:
        if route.kind != "infer":
            self._call_route(request, route, body)
        elif request.head.method != "POST":
            self._respond(405, write_error("inference requires POST"))
        elif self._server.metrics_only:
            raise InferError("this port serves metrics only", "not-found")
        else:
            json_length = request.head.json_length
            if (len(body) if json_length < 0 else json_length) > LARGE_JSON_BYTES:
                self._start_task(self._infer_later(request, self._decode_large(request, route, bytes(body))))
            else:
                self._infer(request, read_request(route.name, route.version, body, json_length))

    def _infer(self, request: HttpRequest, infer_request: InferRequest) -> None:
        if has_many_texts(infer_request):
            self._start_task(self._infer_later(request, self._with_texts(infer_request)))
        else:
            self._submit(request, infer_request)

    def _submit(self, request: HttpRequest, infer_request: InferRequest) -> None:
        number = self._server.admin.engine.submit(infer_request, self)
        if self._current is request:
            self._number = number

    async def _infer_later(self, request: HttpRequest, decoding: Coroutine[Any, Any, InferRequest]) -> None:
        try:
            infer_request = await decoding
            if self._current is request:
                self._submit(request, infer_request)
        except Exception as error:  # noqa: BLE001  the client gets the error, and its connection stays open
            if self._current is request:
                self.send_error(error_of(error))

    async def _with_texts(self, infer_request: InferRequest) -> InferRequest:
        server = self._server
        return await with_texts(infer_request, server.admin.engine.regions, server.limits.held_bytes)

    async def _decode_large(self, request: HttpRequest, route: Route, body: bytes) -> InferRequest:
        """Decode JSON in another process; its size counts against the memory for bodies meanwhile."""
        budget = self._server.receive_budget
        if not budget.reserve(len(body)):
            raise too_much_memory(budget)
        try:
            large, json_length = self._server.large, request.head.json_length
            infer_request = await large.decode_json(route.name, route.version, body, json_length)
        finally:
            budget.release(len(body))
        return await self._with_texts(infer_request)

    def _route_compressed(self, request: HttpRequest, route: Route, encoding: str) -> None:
        """Decompress a small body that stays small on this thread, a larger one in a thread."""
        try:
            compressed = Decompression(request.body, encoding, self._server.limits.body_bytes)
            plain = compressed.begin(INLINE_LIMIT_BYTES if len(request.body) <= _INLINE_BYTES else 0)
        except ValueError as error:
            raise InferError(f"the body {error}") from None
        if plain is None:
            self._start_task(self._decompress(request, route, compressed))
        else:
            self._route(request, route, memoryview(plain))

    async def _decompress(self, request: HttpRequest, route: Route, compressed: Decompression) -> None:
        try:
            async with unpacked(compressed, self._server.receive_budget, "the body") as body:
                if self._current is request:
                    self._route(request, route, memoryview(body))
        except Exception as error:  # noqa: BLE001  the client gets the error, and its connection stays open
            if self._current is request:
                self.send_error(error_of(error))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _call_route(self, request: HttpRequest, route: Route, body: memoryview) -> None:
        if route.kind == "metrics":
            self._respond(200, self._server.metrics(), _TEXT)
            return
        if self._server.metrics_only and route.kind not in ("live", "ready"):
            raise InferError("this port serves metrics only", "not-found")
        if len(body) > CONTROL_LIMIT_BYTES:
            raise InferError(f"the body has {len(body)} bytes, {CONTROL_LIMIT_BYTES} are the limit of this path")
        response = respond_to(self._server.admin, self._server.access, route, request.head.method, bytes(body))
        if isinstance(response, HttpResponse):
            self._respond(response.status, response.body, response.kind)
        else:
            self._start_task(self._respond_later(request, response))

    async def _respond_later(self, request: HttpRequest, pending_response: Coroutine[Any, Any, HttpResponse]) -> None:
        try:
            response = await pending_response
        except Exception as error:  # noqa: BLE001  the client gets the error, and its connection stays open
            if self._current is request:
                self.send_error(error_of(error))
            return
        if self._current is request:
            self._respond(response.status, response.body, response.kind)

    # Responses; the port `Reply` of the engine.

    def send_response(self, request: InferRequest, spec: ModelSpec, outputs: list[ResponseOutput]) -> None:
        """Send the response to the current request; a thread encodes what takes long."""
        if take_long(outputs) and self._current is not None:
            self._start_task(self._send_later(self._current, request, spec, outputs))
        else:
            self._send_parts(write_response(spec.name, spec.version, request.id, outputs))

    async def _send_later(
        self, current: HttpRequest, request: InferRequest, spec: ModelSpec, outputs: list[ResponseOutput]
    ) -> None:
        self._number = 0
        try:
            body = await asyncio.to_thread(write_response, spec.name, spec.version, request.id, outputs)
        except Exception as error:  # noqa: BLE001  an output that cannot be encoded counts as the model's failure
            if self._current is current:
                failure = f"model {spec.name!r} failed: {error}"
                self.send_error(error if isinstance(error, InferError) else InferError(failure, "fault"))
            return
        if self._current is current:
            self._send_parts(body)

    def _send_parts(self, body: ResponseBody) -> None:
        parts, json_length = body
        if json_length < 0:
            self._respond_compressed(parts[0])
        else:
            extra = b"Inference-Header-Content-Length: %d\r\n" % json_length
            self._respond_compressed(b"".join(parts), _BINARY, extra)

    def send_error(self, error: InferError) -> None:
        """Send an error for the current request."""
        extra = b"WWW-Authenticate: Bearer\r\n" if error.kind == "unauthenticated" else b""
        if error.retry_after_ns:
            extra = b"Retry-After: %d\r\n" % -(-error.retry_after_ns // SECOND_NS)
        self._respond(STATUS[error.kind], write_error(str(error)), extra=extra)

    def end(self) -> None:
        """Do nothing; HTTP has no streams."""

    def _respond(self, status: int, body: bytes, kind: bytes = JSON, extra: bytes = b"") -> None:
        self._number = 0
        if self._current is not None:
            self._send(self._current, status, body, kind, extra)

    def _respond_compressed(self, body: bytes, kind: bytes = JSON, extra: bytes = b"") -> None:
        """Compress only tensors: NVIDIA's asyncio client accepts every encoding but decompresses nothing else."""
        request = self._current
        if request is None or not request.head.accepts or len(body) <= _MIN_COMPRESSED_BYTES:
            self._respond(200, body, kind, extra)
        elif len(body) <= _INLINE_BYTES:
            encoding = request.head.accepts[0]
            self._respond(200, compress(body, encoding), kind, extra + _encoding_header(encoding))
        else:
            self._number = 0
            self._start_task(self._compress(request, body, kind, extra))

    async def _compress(self, request: HttpRequest, body: bytes, kind: bytes, extra: bytes) -> None:
        encoding = request.head.accepts[0]
        compressed = await asyncio.to_thread(compress, body, encoding)
        if self._current is request:
            self._send(request, 200, compressed, kind, extra + _encoding_header(encoding))

    def _send(self, request: HttpRequest, status: int, body: bytes, kind: bytes, extra: bytes) -> None:
        self._current = None
        transport = self._transport
        if transport is None:
            return
        head = request.head
        server = self._server
        keep_alive = head.keep_alive and not server.draining and not self._health_only
        if head.origin and server.access.allows_origin(head.origin):
            extra += f"Access-Control-Allow-Origin: {head.origin}\r\nVary: Origin\r\n".encode("latin-1")
        if server.log is not None:
            took_ns = monotonic_ns() - self._began_ns
            fields = (address_of(transport), "http", head.method, head.target, status, len(body), took_ns)
            server.log.add(AccessRecord(unix_ns(), *fields))
        lead = _head_lines(status, kind, keep_alive) + extra + b"Content-Length: %d\r\n\r\n" % len(body)
        if head.method == "HEAD":
            transport.write(lead)
        elif len(body) <= _SINGLE_WRITE_BYTES:
            transport.write(lead + body)
        else:
            transport.writelines((lead, body))  # avoids another copy
        if not keep_alive:
            transport.close()
        elif self._reader.waiting or self._error is not None:
            asyncio.get_running_loop().call_soon(self._advance)

    def _refuse(self, status: int, text: str, retry_after_s: int = 0) -> None:
        if self._transport is not None:
            body = write_error(text)
            lead = _head_lines(status, JSON, False) + (b"Retry-After: %d\r\n" % retry_after_s if retry_after_s else b"")
            self._transport.write(lead + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def _close_after_reading(self) -> None:
        """Close the sending side and read on for a while: an immediate close could discard the response."""
        transport = self._transport
        if transport is None:
            return
        self._current = _NO_REQUEST
        if transport.can_write_eof():
            transport.write_eof()
            asyncio.get_running_loop().call_later(_CLOSE_DELAY_S, transport.abort)
        else:
            transport.close()


def too_much_memory(budget: ByteBudget) -> InferError:
    text = f"the bodies of all clients exceed the limit of {budget.limit_bytes} bytes: try again later"
    return InferError(text, "exhausted", SECOND_NS)


@contextlib.asynccontextmanager
async def unpacked(compressed: Decompression, budget: ByteBudget, name: str) -> AsyncIterator[bytearray]:
    """Decompress in a thread; memory for each step is reserved before the step, and released after the block."""
    reserved_bytes = 0
    step_bytes = min(STEP_BYTES, max(budget.limit_bytes // 64, 1))
    try:
        is_complete = False
        while not is_complete:
            if not budget.reserve(step_bytes):
                raise too_much_memory(budget)
            reserved_bytes += step_bytes
            try:
                is_complete = await asyncio.to_thread(compressed.step, step_bytes)
            except ValueError as error:
                raise InferError(f"{name} {error}") from None
        yield compressed.result
    finally:
        budget.release(reserved_bytes)


def _encoding_header(encoding: str) -> bytes:
    return b"Content-Encoding: " + encoding.encode() + b"\r\n"


@functools.cache
def _head_lines(status: int, kind: bytes, keep_alive: bool) -> bytes:  # noqa: FBT001  positional, because keyword arguments make the cache slower
    ending = b"" if keep_alive else b"Connection: close\r\n"
    return b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\n" % (status, _REASONS[status].encode(), kind) + ending
