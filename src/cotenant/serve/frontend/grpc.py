"""gRPC listener: one protocol object per connection, all on the event loop's thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from cotenant.runner.clock import monotonic_ns, unix_ns
from cotenant.serve.frontend.access import Access
from cotenant.serve.frontend.access_log import AccessLog, AccessRecord
from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.connections import Admission, ClientLimits, ConnectionTable, address_of
from cotenant.serve.frontend.grpc_methods import HEALTH_METHODS, METHODS, changes_server
from cotenant.serve.frontend.grpc_replies import PendingCall, StreamReply, UnaryReply
from cotenant.serve.frontend.http import CONTROL_LIMIT_BYTES, too_much_memory, unpacked
from cotenant.serve.frontend.large_requests import (
    LARGE_MESSAGE_BYTES,
    LargeRequestDecoder,
    has_many_texts,
    with_texts,
)
from cotenant.serve.frontend.pending import error_of
from cotenant.serve.protocol.budget import ByteBudget, OpenCalls
from cotenant.serve.protocol.compression import Decompression
from cotenant.serve.protocol.grpc import status as status_codes
from cotenant.serve.protocol.grpc.calls import CallReset, CallStarted, HalfClosed, MessageReceived
from cotenant.serve.protocol.grpc.connection import GrpcConnection
from cotenant.serve.protocol.http2.frames import Http2Error
from cotenant.serve.protocol.oip.infer import InferError, InferRequest
from cotenant.serve.protocol.oip.infer_proto import header_bytes, read_request
from cotenant.serve.protocol.oip.proto import SERVICE
from cotenant.units.instant import MILLISECOND_NS, Duration

_INFER: Final = f"/{SERVICE}/ModelInfer"
_STREAM: Final = f"/{SERVICE}/ModelStreamInfer"
_PREFIX: Final = f"/{SERVICE}/"
_MIN_PROGRESS_BYTES: Final = 4096
"""Minimum progress of a partly received message between two sweeps."""
_STREAM_REQUESTS_LIMIT: Final = 1024
"""Maximum active requests of one stream; further ones are rejected."""


class GrpcServer:
    """State that all gRPC connections share."""

    def __init__(
        self,
        admin: AdminService,
        limits: ClientLimits,
        table: ConnectionTable | None = None,
        *,
        access: Access | None = None,
        log: AccessLog | None = None,
        large: LargeRequestDecoder | None = None,
    ) -> None:
        """Start without connections."""
        self.admin = admin
        self.memory_bytes = limits.held_bytes
        self.large = large or LargeRequestDecoder(limits.held_bytes)
        self.message_limit_bytes = limits.body_bytes
        self.table = table or ConnectionTable(limits.connections, limits.client_connections)
        self.access = access or Access()
        self.log = log
        self.receive_budget = ByteBudget(limits.held_bytes)
        self.send_budget = ByteBudget(limits.held_bytes)
        self.open_calls = OpenCalls()
        self.connections: set[GrpcProtocol] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self) -> GrpcProtocol:
        """Create the protocol of a new connection."""
        return GrpcProtocol(self)

    def sweep(self) -> None:
        """Close connections that sent no preface, make no progress with a message, or read no responses.

        Called periodically.
        """
        for connection in list(self.connections):
            connection.close_if_stalled()

    def drain(self) -> None:
        """Send GOAWAY to every client."""
        for connection in list(self.connections):
            connection.drain()


class GrpcProtocol(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: GrpcServer) -> None:
        """Start unconnected."""
        self._server = server
        self._connection = GrpcConnection(
            server.message_limit_bytes, server.receive_budget, server.send_budget, server.open_calls
        )
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, PendingCall] = {}
        self._reading = False
        self._draining = False
        self._checked = False
        self._last_progress: dict[int, tuple[int, int]] = {}
        self._last_silent: frozenset[int] = frozenset()
        self._last_unsent = 0
        self._write_paused = False
        """The client does not read its responses."""
        self._decompressing = 0
        """Messages that another thread decompresses."""
        self._paused = False
        """Reading from the client is paused."""
        self._health_only = False
        self.requests = 0
        self.idle_checks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or close it at the limit."""
        self._transport = cast("asyncio.Transport", transport)
        admission = self._server.table.admit(self, address_of(transport))
        if admission is Admission.REFUSED:
            transport.close()
            return
        self._health_only = admission is Admission.HEALTH
        self._server.connections.add(self)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the client's requests."""
        del exc
        self._server.connections.discard(self)
        self._server.table.remove(self)
        self._transport = None
        for call in self._calls.values():
            self._drop(call)
        self._calls.clear()
        self._connection.close()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read its responses."""
        self._write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        """Resume reading."""
        self._write_paused = False
        self._update_reading()

    def _update_reading(self) -> None:
        """Pause reading while the client does not read its responses or a message is being decompressed."""
        paused = self._write_paused or self._decompressing > 0
        if self._transport is None or self._transport.is_closing() or paused == self._paused:
            return
        self._paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close_if_stalled(self) -> None:
        """Close a connection without progress since the last call: no preface, message data or reads."""
        if self._transport is None:
            return
        self._connection.renew_control_frames()
        unsent = self._transport.get_write_buffer_size() + self._connection.held_bytes()
        partial = {} if self._paused else self._connection.partial_messages()
        too_slow = any(
            stream in partial and partial[stream][0] == message and partial[stream][1] - received < _MIN_PROGRESS_BYTES
            for stream, (message, received) in self._last_progress.items()
        )
        silent = frozenset() if self._paused else self._silent_calls()
        too_slow = too_slow or not silent.isdisjoint(self._last_silent)
        self._last_silent = silent
        if too_slow or (self._checked and not self._connection.preface_seen) or 0 < self._last_unsent <= unsent:
            self._transport.abort()
        self._checked, self._last_progress, self._last_unsent = True, partial, unsent

    def _silent_calls(self) -> frozenset[int]:
        """Return the unary calls whose client has sent neither the whole message nor a part of it."""
        unary = (stream for stream, call in self._calls.items() if call.path != _STREAM)
        return self._connection.incomplete_calls().intersection(unary)

    @property
    def is_idle(self) -> bool:
        """Return whether no call is active and nothing remains to be sent."""
        transport = self._transport
        return not self._connection.calls and (transport is None or not transport.get_write_buffer_size())

    def close_idle(self) -> None:
        """Tell the client that the connection ends, and close it."""
        self.drain()

    def drain(self) -> None:
        """Accept no new calls."""
        self._draining = True
        self._connection.drain()
        self.flush()

    def flush(self) -> None:
        """Send pending data, unless a read is being processed that may add more."""
        if self._reading or self._transport is None:
            return
        data = self._connection.take()
        if data:
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > self._server.message_limit_bytes:
                self._transport.abort()  # the client reads none of its responses
                return
        if self._draining and not self._connection.calls:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Process received data."""
        self._reading = True
        try:
            for event in self._connection.feed(data):
                if isinstance(event, MessageReceived | HalfClosed):
                    self._handle_in_order(event)
                elif isinstance(event, CallStarted):
                    self._call_started(event)
                elif isinstance(event, CallReset):
                    self._reset(event.stream)
        except Http2Error:
            self._reading = False
            self.flush()
            if self._transport is not None:
                self._transport.close()
            return
        self._reading = False
        self.flush()

    def _call_started(self, call: CallStarted) -> None:
        self.requests += 1
        server = self._server
        method = call.path.removeprefix(_PREFIX)
        is_health = method in HEALTH_METHODS
        if call.origin or server.access.token:
            try:
                server.access.check(call.authorization, call.origin, is_health=is_health)
            except InferError as error:
                UnaryReply(self, call.stream).send_error(error)
                return
        if self._health_only and not is_health:
            self._connection.finish(call.stream, status_codes.UNAVAILABLE, "too many clients are connected", 1000)
        elif call.path in (_INFER, _STREAM) or method in METHODS:
            pending = self._calls[call.stream] = PendingCall(call.path, call.timeout_ns)
            if server.log is not None:
                pending.began_ns = monotonic_ns()
        else:
            self._connection.finish(call.stream, status_codes.UNIMPLEMENTED, f"{call.path} is not implemented")

    def _handle_in_order(self, event: MessageReceived | HalfClosed) -> None:
        """Handle an event of a call, in order."""
        call = self._calls.get(event.stream)
        if call is None:
            return
        if call.held_events is not None:
            call.held_events.append(event)
        elif isinstance(event, HalfClosed):
            self._half_closed(event.stream, call)
        elif event.compressed is None:
            self._message_received(event.stream, call, event.message)
        else:
            call.held_events = deque()
            self._decompressing += 1
            self._update_reading()
            self._start_task(self._decompress(event.stream, call, event.compressed))

    async def _decompress(self, stream: int, call: PendingCall, compressed: Decompression) -> None:
        """Decompress in a thread; later events of the call wait, and reading from the client is paused."""
        try:
            async with unpacked(compressed, self._server.receive_budget, "a message") as plain:
                message = bytes(plain)
        except Exception as error:  # noqa: BLE001  the client gets the error, and its connection stays open
            UnaryReply(self, stream).send_error(error_of(error))
            return
        finally:
            self._decompressing -= 1
            self._update_reading()
        held_events, call.held_events = call.held_events, None
        self._handle_in_order(MessageReceived(stream, message))
        for event in held_events or ():
            self._handle_in_order(event)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _message_received(self, stream: int, call: PendingCall, message: bytes) -> None:
        is_inference = call.path in (_INFER, _STREAM)
        if call.path != _STREAM and call.message is not None:
            self.finish(stream, status_codes.INTERNAL, "a call of this method must have one message")
        elif not is_inference and len(message) > CONTROL_LIMIT_BYTES:
            text = f"the message has {len(message)} bytes, {CONTROL_LIMIT_BYTES} are the limit of this method"
            self.finish(stream, status_codes.INVALID_ARGUMENT, text)
        elif is_inference and len(message) > LARGE_MESSAGE_BYTES and header_bytes(message) > LARGE_MESSAGE_BYTES:
            self._decode_later(stream, call, self._decode_large(message))
        elif call.path == _STREAM:
            self._infer_on_stream(stream, call, message)
        else:
            call.message = message

    def _decode_later(self, stream: int, call: PendingCall, decoding: Coroutine[Any, Any, InferRequest]) -> None:
        """Hold later events of the call until its request is decoded."""
        call.held_events = deque()
        self._start_task(self._infer_when_decoded(stream, call, decoding))

    async def _decode_large(self, message: bytes) -> InferRequest:
        """Decode a message in another process; its size counts against the memory for messages meanwhile."""
        budget = self._server.receive_budget
        if not budget.reserve(len(message)):
            raise too_much_memory(budget)
        try:
            request = await self._server.large.decode_message(message)
        finally:
            budget.release(len(message))
        return await self._with_texts(request)

    async def _with_texts(self, request: InferRequest) -> InferRequest:
        return await with_texts(request, self._server.admin.engine.regions, self._server.memory_bytes)

    async def _infer_when_decoded(
        self, stream: int, call: PendingCall, decoding: Coroutine[Any, Any, InferRequest]
    ) -> None:
        reply = StreamReply(self, stream, call) if call.path == _STREAM else UnaryReply(self, stream)
        try:
            request = await decoding
        except Exception as error:  # noqa: BLE001  the client gets the error, and its connection stays open
            reply.send_error(error_of(error))
        else:
            if self._calls.get(stream) is not call:
                return
            if isinstance(reply, StreamReply):
                self._submit_on_stream(call, reply, request)
            else:
                call.message, call.request = b"", request
        held_events, call.held_events = call.held_events, None
        for event in held_events or ():
            self._handle_in_order(event)

    def _half_closed(self, stream: int, call: PendingCall) -> None:
        if call.path == _STREAM:
            call.wants_end = True
            if not call.numbers:
                self.finish(stream)
        elif call.message is None:
            self.finish(stream, status_codes.INTERNAL, "a call of this method must have a message")
        elif call.path == _INFER:
            self._infer(stream, call)
        else:
            self._call_method(stream, call)

    def _reset(self, stream: int) -> None:
        call = self._calls.pop(stream, None)
        if call is not None:
            self._drop(call)

    def _drop(self, call: PendingCall) -> None:
        for number in list(call.numbers):
            self._server.admin.engine.cancel(number)

    def _infer(self, stream: int, call: PendingCall) -> None:
        assert call.message is not None
        reply = UnaryReply(self, stream)
        try:
            request = call.request or read_request(call.message)
            call.message = b""
            if has_many_texts(request):
                self._decode_later(stream, call, self._with_texts(request))
                call.held_events = deque((HalfClosed(stream),))
                return
            number = self._server.admin.engine.submit(request, reply, call.timeout_ns)
        except Exception as error:  # noqa: BLE001  the client gets the error, and its connection stays open
            reply.send_error(error_of(error))
            return
        if stream in self._calls:
            call.numbers.add(number)

    def _infer_on_stream(self, stream: int, call: PendingCall, message: bytes) -> None:
        reply = StreamReply(self, stream, call)
        try:
            request = read_request(message)
        except Exception as error:  # noqa: BLE001  the client gets the error, and its connection stays open
            reply.send_error(error_of(error))
            return
        if has_many_texts(request):
            self._decode_later(stream, call, self._with_texts(request))
        else:
            self._submit_on_stream(call, reply, request)

    def _submit_on_stream(self, call: PendingCall, reply: StreamReply, request: InferRequest) -> None:
        reply.request = request
        try:
            if len(call.numbers) >= _STREAM_REQUESTS_LIMIT:
                raise InferError(
                    f"{_STREAM_REQUESTS_LIMIT} requests of this stream are active, which is the limit", "exhausted"
                )
            number = self._server.admin.engine.submit(request, reply, call.timeout_ns)
        except Exception as error:  # noqa: BLE001  the client gets the error, and its connection stays open
            reply.send_error(error_of(error))
            return
        if not reply.ended:
            reply.number = number
            call.numbers.add(number)

    def _call_method(self, stream: int, call: PendingCall) -> None:
        assert call.message is not None
        method: Callable[[AdminService, bytes], bytes | Coroutine[Any, Any, bytes]] = METHODS[
            call.path.removeprefix(_PREFIX)
        ]
        try:
            if changes_server(call.path.removeprefix(_PREFIX), call.message):
                self._server.access.check_control()
            answer = method(self._server.admin, call.message)
        except Exception as error:  # noqa: BLE001  the client gets the error, and its connection stays open
            UnaryReply(self, stream).send_error(error_of(error))
            return
        if isinstance(answer, bytes):
            self.answer(stream, answer)
            return
        self._start_task(self._respond_later(stream, answer))

    async def _respond_later(self, stream: int, answer: Coroutine[Any, Any, bytes]) -> None:
        try:
            self.answer(stream, await answer)
        except Exception as error:  # noqa: BLE001  the client gets the error, and its connection stays open
            UnaryReply(self, stream).send_error(error_of(error))

    # Responses.

    def answer(self, stream: int, message: bytes) -> None:
        """Send the response of a unary call."""
        call = self._calls.pop(stream, None)
        if call is not None:
            self._connection.respond(stream, message)
            if self._server.log is not None:
                self._log(self._server.log, call, status_codes.OK, len(message))
            self.flush()

    def answer_later(self, stream: int, encode: Callable[[], bytes]) -> None:
        """Encode the response of a unary call in a thread, and send it."""

        async def encoded() -> bytes:
            return await asyncio.to_thread(encode)

        self._start_task(self._respond_later(stream, encoded()))

    def _log(self, log: AccessLog, call: PendingCall, status: int, response_bytes: int) -> None:
        client = "" if self._transport is None else address_of(self._transport)
        took_ns = monotonic_ns() - call.began_ns
        log.add(AccessRecord(unix_ns(), client, "grpc", "POST", call.path, status, response_bytes, took_ns))

    def send(self, stream: int, message: bytes) -> None:
        """Send one response of a stream."""
        if not self._connection.send(stream, message):
            self._reset(stream)
        self.flush()

    def end_if_last(self, stream: int, call: PendingCall, number: int) -> None:
        """Note that a request was answered; end the stream if it is half-closed and has no active requests."""
        call.numbers.discard(number)
        if call.wants_end and not call.numbers:
            self.finish(stream)

    def finish(self, stream: int, status: int = status_codes.OK, text: str = "", retry_after_ns: Duration = 0) -> None:
        """End a call with a status."""
        call = self._calls.pop(stream, None)
        if call is not None and self._server.log is not None:
            self._log(self._server.log, call, status, 0)
        self._connection.finish(stream, status, text, -(-retry_after_ns // MILLISECOND_NS))
        self.flush()
