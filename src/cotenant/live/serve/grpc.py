"""How are clients served over gRPC? Each call of a connection by its own stream, all on the loop's own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from cotenant.domain.instant import MILLISECOND_NS, Duration
from cotenant.domain.serving import ModelSpec
from cotenant.format import grpc_words as words
from cotenant.format.grpc import GrpcConnection
from cotenant.format.grpc_calls import Abandoned, Called, Closed, Said
from cotenant.format.http2 import Http2Error
from cotenant.format.infer import InferError, InferRequest
from cotenant.format.infer_json import Output
from cotenant.format.infer_proto import (
    read_request,
    write_answer,
    write_plain_answer,
    write_stream_answer,
    write_stream_error,
)
from cotenant.format.proto import SERVICE
from cotenant.format.room import Room
from cotenant.live.serve.fault import error_of
from cotenant.live.serve.grpc_site import METHODS
from cotenant.live.serve.site import Site

STATUS: Final = {
    "invalid": words.INVALID_ARGUMENT,
    "not-found": words.NOT_FOUND,
    "exhausted": words.RESOURCE_EXHAUSTED,
    "fault": words.INTERNAL,
    "unsupported": words.UNIMPLEMENTED,
    "unavailable": words.UNAVAILABLE,
    "late": words.DEADLINE_EXCEEDED,
}
_INFER: Final = f"/{SERVICE}/ModelInfer"
_STREAM: Final = f"/{SERVICE}/ModelStreamInfer"
_PREFIX: Final = f"/{SERVICE}/"
_CRAWL_BYTES: Final = 4096
"""Of a message that is half read so much must come between two sweeps."""
_ON_STREAM_LIMIT: Final = 1024
"""Requests of one stream that may be under way; beyond, they are refused one by one."""


class GrpcServing:
    """What all connections share."""

    def __init__(self, site: Site, message_limit_bytes: int, held_limit_bytes: int, connections_limit: int) -> None:
        """Nobody is connected."""
        self.site = site
        self.message_limit_bytes = message_limit_bytes
        self.connections_limit = connections_limit
        self.coming = Room(held_limit_bytes)
        self.going = Room(held_limit_bytes)
        self.connections: set[GrpcProtocol] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self) -> GrpcProtocol:
        """A protocol for a new connection."""
        return GrpcProtocol(self)

    def sweep(self) -> None:
        """Close those that never greeted, do not go on with a message, or take no answer; called now and then."""
        for one in list(self.connections):
            one.look_at()

    def leave(self) -> None:
        """Tell every client to take its next calls elsewhere."""
        for one in list(self.connections):
            one.leave()


class _Call:
    """One call: of ModelInfer one request, of ModelStreamInfer any number of them."""

    __slots__ = ("message", "numbers", "path", "timeout_ns", "wants_end")

    def __init__(self, path: str, timeout_ns: Duration) -> None:
        self.path = path
        self.timeout_ns = timeout_ns
        self.message: bytes | None = None
        self.numbers: set[int] = set()
        self.wants_end = False
        """The client has said all; the call ends with its last answer."""


class GrpcProtocol(asyncio.Protocol):
    """One client."""

    def __init__(self, serving: GrpcServing) -> None:
        """Not connected yet."""
        self._serving = serving
        self._connection = GrpcConnection(serving.message_limit_bytes, serving.coming, serving.going)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Call] = {}
        self._reading = False
        self._leaving = False
        self._looked_at = False
        self._seen: dict[int, tuple[int, int]] = {}
        self._seen_unsent = 0
        self._paused = False
        """Nothing is read from the client, since it does not read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast("asyncio.Transport", transport)
        if len(self._serving.connections) >= self._serving.connections_limit:
            transport.close()
            return
        self._serving.connections.add(self)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and wants no answers."""
        del exc
        self._serving.connections.discard(self)
        self._transport = None
        for call in self._calls.values():
            self._drop(call)
        self._calls.clear()
        self._connection.close()

    def pause_writing(self) -> None:
        """The client does not read: nothing more is read from it either."""
        if self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def look_at(self) -> None:
        """Close it if since this was called last it went on with no half message, took nothing, or never greeted."""
        if self._transport is None:
            return
        unsent = self._transport.get_write_buffer_size() + self._connection.held_bytes()
        half = {} if self._paused else self._connection.half_read()
        crawls = any(
            stream in half and half[stream][0] == whole and half[stream][1] - size < _CRAWL_BYTES
            for stream, (whole, size) in self._seen.items()
        )
        if crawls or (self._looked_at and not self._connection.greeted) or 0 < self._seen_unsent <= unsent:
            self._transport.abort()
        self._looked_at, self._seen, self._seen_unsent = True, half, unsent

    def leave(self) -> None:
        """Take no new calls."""
        self._leaving = True
        self._connection.leave()
        self.flush()

    def flush(self) -> None:
        """Send what is to be sent, unless more is about to come of what was just read."""
        if self._reading or self._transport is None:
            return
        data = self._connection.take()
        if data:
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > self._serving.message_limit_bytes:
                self._transport.abort()  # a stream of answers that nobody reads
                return
        if self._leaving and not self._connection.calls:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """More of what the client says."""
        self._reading = True
        try:
            for one in self._connection.feed(data):
                if isinstance(one, Said):
                    self._said(one.stream, one.message)
                elif isinstance(one, Closed):
                    self._closed(one.stream)
                elif isinstance(one, Called):
                    self._called(one)
                elif isinstance(one, Abandoned):
                    self._abandoned(one.stream)
        except Http2Error:
            self._reading = False
            self.flush()
            if self._transport is not None:
                self._transport.close()
            return
        self._reading = False
        self.flush()

    def _called(self, called: Called) -> None:
        if called.path in (_INFER, _STREAM) or called.path.removeprefix(_PREFIX) in METHODS:
            self._calls[called.stream] = _Call(called.path, called.timeout_ns)
        else:
            self._connection.finish(called.stream, words.UNIMPLEMENTED, f"{called.path} is not implemented here")

    def _said(self, stream: int, message: bytes) -> None:
        call = self._calls.get(stream)
        if call is None:
            return
        if call.path == _STREAM:
            self._infer_on_stream(stream, call, message)
        elif call.message is None:
            call.message = message
        else:
            self.finish(stream, words.INTERNAL, "a call of this method has one message")

    def _closed(self, stream: int) -> None:
        call = self._calls.get(stream)
        if call is None:
            return
        if call.path == _STREAM:
            call.wants_end = True
            if not call.numbers:
                self.finish(stream)
        elif call.message is None:
            self.finish(stream, words.INTERNAL, "a call of this method has a message")
        elif call.path == _INFER:
            self._infer(stream, call)
        else:
            self._ask(stream, call)

    def _abandoned(self, stream: int) -> None:
        call = self._calls.pop(stream, None)
        if call is not None:
            self._drop(call)

    def _drop(self, call: _Call) -> None:
        for number in list(call.numbers):
            self._serving.site.engine.cancel(number)

    def _infer(self, stream: int, call: _Call) -> None:
        assert call.message is not None
        reply = _Unary(self, stream)
        try:
            request = read_request(call.message)
            call.message = b""
            number = self._serving.site.engine.submit(request, reply, call.timeout_ns)
        except Exception as error:  # noqa: BLE001  whatever it is, the client is told, and its connection goes on
            reply.failed(error_of(error))
            return
        if stream in self._calls:
            call.numbers.add(number)

    def _infer_on_stream(self, stream: int, call: _Call, message: bytes) -> None:
        reply = _Streamed(self, stream, call)
        try:
            request = read_request(message)
            reply.request = request
            if len(call.numbers) >= _ON_STREAM_LIMIT:
                raise InferError(f"{_ON_STREAM_LIMIT} requests of this stream are under way, the limit", "exhausted")
            number = self._serving.site.engine.submit(request, reply, call.timeout_ns)
        except Exception as error:  # noqa: BLE001  as above
            reply.failed(error_of(error))
            return
        if not reply.ended:
            reply.number = number
            call.numbers.add(number)

    def _ask(self, stream: int, call: _Call) -> None:
        assert call.message is not None
        method: Callable[[Site, bytes], bytes | Coroutine[Any, Any, bytes]] = METHODS[call.path.removeprefix(_PREFIX)]
        try:
            answer = method(self._serving.site, call.message)
        except Exception as error:  # noqa: BLE001  as above
            _Unary(self, stream).failed(error_of(error))
            return
        if isinstance(answer, bytes):
            self.answer(stream, answer)
            return
        task = asyncio.get_running_loop().create_task(self._await(stream, answer))
        self._serving.tasks.add(task)
        task.add_done_callback(self._serving.tasks.discard)

    async def _await(self, stream: int, answer: Coroutine[Any, Any, bytes]) -> None:
        try:
            self.answer(stream, await answer)
        except Exception as error:  # noqa: BLE001  as above
            _Unary(self, stream).failed(error_of(error))

    # Where answers go.

    def answer(self, stream: int, message: bytes) -> None:
        """The one answer of a call."""
        if self._calls.pop(stream, None) is not None:
            self._connection.answer(stream, message)
            self.flush()

    def tell(self, stream: int, message: bytes) -> None:
        """One answer of a stream."""
        if not self._connection.send(stream, message):
            self._abandoned(stream)
        self.flush()

    def end_if_last(self, stream: int, call: _Call, number: int) -> None:
        """A request of a stream is answered; the stream ends when the client is done and nothing is under way."""
        call.numbers.discard(number)
        if call.wants_end and not call.numbers:
            self.finish(stream)

    def finish(self, stream: int, status: int = words.OK, text: str = "", retry_after_ns: Duration = 0) -> None:
        """The end of a call."""
        self._calls.pop(stream, None)
        self._connection.finish(stream, status, text, -(-retry_after_ns // MILLISECOND_NS))
        self.flush()


class _Unary:
    """Where the answer to a call of ModelInfer goes."""

    __slots__ = ("_protocol", "_stream")
    streams = False

    def __init__(self, protocol: GrpcProtocol, stream: int) -> None:
        self._protocol = protocol
        self._stream = stream

    def done(self, request: InferRequest, spec: ModelSpec, outputs: list[Output]) -> None:
        self._protocol.answer(self._stream, write_plain_answer(spec.name, spec.version, request.id, outputs))

    def failed(self, error: InferError) -> None:
        self._protocol.finish(self._stream, STATUS[error.kind], str(error), error.retry_after_ns)

    def over(self) -> None:
        """Only streams end."""


class _Streamed:
    """Where the answers to one request of a stream go."""

    __slots__ = ("_call", "_protocol", "_stream", "ended", "number", "request")
    streams = True

    def __init__(self, protocol: GrpcProtocol, stream: int, call: _Call) -> None:
        self._protocol = protocol
        self._stream = stream
        self._call = call
        self.request: InferRequest | None = None
        self.number = 0
        self.ended = False

    def done(self, request: InferRequest, spec: ModelSpec, outputs: list[Output]) -> None:
        parameters = {"triton_final_response": not spec.decoupled} if request.final_response else None
        answer = write_answer(spec.name, spec.version, request.id, outputs, parameters)
        self._protocol.tell(self._stream, write_stream_answer(answer))
        if not spec.decoupled:
            self._end()

    def failed(self, error: InferError) -> None:
        request_id = "" if self.request is None else self.request.id
        self._protocol.tell(self._stream, write_stream_error(request_id, str(error)))
        self._end()

    def over(self) -> None:
        request = self.request
        assert request is not None
        if request.final_response:
            answer = write_answer(request.model, request.version, request.id, (), {"triton_final_response": True})
            self._protocol.tell(self._stream, write_stream_answer(answer))
        self._end()

    def _end(self) -> None:
        self.ended = True
        self._protocol.end_if_last(self._stream, self._call, self.number)
