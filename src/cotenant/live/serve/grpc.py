"""How are clients served over gRPC? Each call of a connection by its own stream, all on the loop's own thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from cotenant.domain.instant import MILLISECOND_NS, Duration
from cotenant.format import grpc_words as words
from cotenant.format.grpc import GrpcConnection
from cotenant.format.grpc_calls import Abandoned, Called, Closed, Said
from cotenant.format.http2 import Http2Error
from cotenant.format.infer import InferError
from cotenant.format.infer_proto import read_request
from cotenant.format.packing import Unpacking
from cotenant.format.proto import SERVICE
from cotenant.format.room import Room
from cotenant.live.serve.fault import error_of
from cotenant.live.serve.grpc_replies import Call, Streamed, Unary
from cotenant.live.serve.grpc_site import METHODS
from cotenant.live.serve.site import Site

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


class GrpcProtocol(asyncio.Protocol):
    """One client."""

    def __init__(self, serving: GrpcServing) -> None:
        """Not connected yet."""
        self._serving = serving
        self._connection = GrpcConnection(serving.message_limit_bytes, serving.coming, serving.going)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, Call] = {}
        self._reading = False
        self._leaving = False
        self._looked_at = False
        self._seen: dict[int, tuple[int, int]] = {}
        self._seen_unsent = 0
        self._unread = False
        """The client does not read its answers."""
        self._unpacking = 0
        """Messages that are with another thread."""
        self._paused = False
        """Nothing is read from the client."""

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
        self._unread = True
        self._hold()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._unread = False
        self._hold()

    def _hold(self) -> None:
        """Read from the client, or not: not while it does not read, nor while what it said is being unpacked."""
        paused = self._unread or self._unpacking > 0
        if self._transport is None or self._transport.is_closing() or paused == self._paused:
            return
        self._paused = paused
        if paused:
            self._transport.pause_reading()
        else:
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
                if isinstance(one, Said | Closed):
                    self._hear(one)
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
            self._calls[called.stream] = Call(called.path, called.timeout_ns)
        else:
            self._connection.finish(called.stream, words.UNIMPLEMENTED, f"{called.path} is not implemented here")

    def _hear(self, one: Said | Closed) -> None:
        """What a call says, in its order."""
        call = self._calls.get(one.stream)
        if call is None:
            return
        if call.later is not None:
            call.later.append(one)
        elif isinstance(one, Closed):
            self._closed(one.stream, call)
        elif one.packed is None:
            self._said(one.stream, call, one.message)
        else:
            call.later = deque()
            self._unpacking += 1
            self._hold()
            self._begin(self._unpack(one.stream, call, one.packed))

    async def _unpack(self, stream: int, call: Call, packed: Unpacking) -> None:
        """On another thread; what else the call says waits for it, and nothing more is read from the client."""
        try:
            message = await asyncio.to_thread(packed.finish)
        except ValueError as error:
            self.finish(stream, words.INTERNAL, f"a message {error}")
            return
        except Exception as error:  # noqa: BLE001  whatever it is, the client is told, and its connection goes on
            Unary(self, stream).failed(error_of(error))
            return
        finally:
            self._unpacking -= 1
            self._hold()
        later, call.later = call.later, None
        self._hear(Said(stream, message))
        for one in later or ():
            self._hear(one)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._serving.tasks.add(task)
        task.add_done_callback(self._serving.tasks.discard)

    def _said(self, stream: int, call: Call, message: bytes) -> None:
        if call.path == _STREAM:
            self._infer_on_stream(stream, call, message)
        elif call.message is None:
            call.message = message
        else:
            self.finish(stream, words.INTERNAL, "a call of this method has one message")

    def _closed(self, stream: int, call: Call) -> None:
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

    def _drop(self, call: Call) -> None:
        for number in list(call.numbers):
            self._serving.site.engine.cancel(number)

    def _infer(self, stream: int, call: Call) -> None:
        assert call.message is not None
        reply = Unary(self, stream)
        try:
            request = read_request(call.message)
            call.message = b""
            number = self._serving.site.engine.submit(request, reply, call.timeout_ns)
        except Exception as error:  # noqa: BLE001  whatever it is, the client is told, and its connection goes on
            reply.failed(error_of(error))
            return
        if stream in self._calls:
            call.numbers.add(number)

    def _infer_on_stream(self, stream: int, call: Call, message: bytes) -> None:
        reply = Streamed(self, stream, call)
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

    def _ask(self, stream: int, call: Call) -> None:
        assert call.message is not None
        method: Callable[[Site, bytes], bytes | Coroutine[Any, Any, bytes]] = METHODS[call.path.removeprefix(_PREFIX)]
        try:
            answer = method(self._serving.site, call.message)
        except Exception as error:  # noqa: BLE001  as above
            Unary(self, stream).failed(error_of(error))
            return
        if isinstance(answer, bytes):
            self.answer(stream, answer)
            return
        self._begin(self._await(stream, answer))

    async def _await(self, stream: int, answer: Coroutine[Any, Any, bytes]) -> None:
        try:
            self.answer(stream, await answer)
        except Exception as error:  # noqa: BLE001  as above
            Unary(self, stream).failed(error_of(error))

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

    def end_if_last(self, stream: int, call: Call, number: int) -> None:
        """A request of a stream is answered; the stream ends when the client is done and nothing is under way."""
        call.numbers.discard(number)
        if call.wants_end and not call.numbers:
            self.finish(stream)

    def finish(self, stream: int, status: int = words.OK, text: str = "", retry_after_ns: Duration = 0) -> None:
        """The end of a call."""
        self._calls.pop(stream, None)
        self._connection.finish(stream, status, text, -(-retry_after_ns // MILLISECOND_NS))
        self.flush()
