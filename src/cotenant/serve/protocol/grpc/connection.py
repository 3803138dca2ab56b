"""Server side of a gRPC connection, without I/O.

Received bytes go into `feed`, which returns events; `take` returns the bytes to send. Both directions apply HTTP/2 flow
control, so a client that does not read blocks only itself.
"""

from __future__ import annotations

from typing import Final

from cotenant.serve.protocol.budget import ByteBudget, OpenCalls
from cotenant.serve.protocol.compression import INLINE_LIMIT_BYTES, Decompression
from cotenant.serve.protocol.grpc.calls import (
    PREFIX_BYTES,
    RESPONSE_HEADERS,
    CallEvent,
    CallReset,
    CallStarted,
    CallState,
    HalfClosed,
    MessageReceived,
    message_received,
    prefix,
    trailers,
    unary_response,
)
from cotenant.serve.protocol.grpc.status import INTERNAL, MALFORMED, OK, RESOURCE_EXHAUSTED, read_call_headers
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.frames import Frame, FrameReader, Http2Error
from cotenant.serve.protocol.http2.hpack import Header, HpackDecoder, HpackError

_DEFAULT_WINDOW: Final = 65535
_HEADER_BLOCK_LIMIT: Final = 64 << 10
_BLOCK_FRAMES_LIMIT: Final = 64
"""Frames of one header block; clients fill each frame (16 KiB) before the next."""
_MODEST_CALLS: Final = 8
"""Calls that a connection may have even if all connections together have too many. Our choice."""
_RESETS_ALLOWED: Final = 1000
_BUFFERED_MESSAGES: Final = 4
_REMEMBERED_CALLS: Final = 256
"""Ended calls whose late frames are told apart from invalid ones. Our choice."""
_CONTROL_FRAMES: Final = 256
"""Control frames and empty frames that a client may send between two sweeps, beyond those that its calls earn."""
_EARNED_FRAMES: Final = 4
"""Control frames that one frame of a call earns, in either direction: clients measure their bandwidth with PING, and
acknowledge data with WINDOW_UPDATE."""
_EARNING_BYTES: Final = 1024
"""A frame to the client that neither ends a message nor has this size earns nothing, because the client chose its size
by the window."""


class GrpcConnection:
    """One client connection. After an `Http2Error`, only `take` may be called."""

    def __init__(
        self,
        message_limit_bytes: int,
        receive_budget: ByteBudget | None = None,
        send_budget: ByteBudget | None = None,
        open_calls: OpenCalls | None = None,
    ) -> None:
        """The budgets bound partly received messages, blocked responses and calls of all connections together."""
        self._open_calls = open_calls or OpenCalls()
        self._limit = message_limit_bytes
        self._receive_budget = receive_budget or ByteBudget(1 << 62)
        self._send_budget = send_budget or ByteBudget(1 << 62)
        self._reader = FrameReader()
        self._hpack = HpackDecoder()
        self._calls: dict[int, CallState] = {}
        self._trailers: dict[int, bytes] = {}
        self._out: list[bytes | memoryview] = [http2.server_preface()]
        self._last_stream = 0
        self._window = _DEFAULT_WINDOW
        self._peer_window = _DEFAULT_WINDOW
        self._peer_frame = 1 << 14
        self._unacknowledged = 0
        self._buffered = 0
        self._blocked: dict[int, CallState] = {}
        """Calls with messages that flow control blocks."""
        self._block: tuple[int, int, bytes] | None = None
        self._block_frames = 0
        self._resets = 0
        self._settings_seen = False
        self._control_frames_left = _CONTROL_FRAMES
        self._inline_bytes = INLINE_LIMIT_BYTES
        self._draining = False
        self._ended: dict[int, bool] = {}
        """The last calls that have ended, and whether the client had ended them before."""
        self._reset_calls: list[CallReset] = []

    @property
    def preface_seen(self) -> bool:
        """Return whether the client's connection preface was received."""
        return self._reader.preface_seen

    @property
    def calls(self) -> int:
        """Return the number of active calls."""
        return len(self._calls)

    def take(self) -> bytes:
        """Return the bytes to send."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def feed(self, data: bytes) -> list[CallEvent]:
        """Process received bytes; return the events."""
        events: list[CallEvent] = []
        self._inline_bytes = INLINE_LIMIT_BYTES
        try:
            for frame in self._reader.feed(data):
                if self._block is not None and frame.kind != http2.CONTINUATION:
                    raise Http2Error(http2.PROTOCOL_ERROR, "a header block is interrupted by another frame")
                if not self._settings_seen:
                    self._settings_seen = frame.kind == http2.SETTINGS and not frame.flags & http2.ACK
                    if not self._settings_seen:
                        raise Http2Error(http2.PROTOCOL_ERROR, "the first frame must be SETTINGS")
                self._take_frame(frame, events)
        except HpackError as error:
            raise self._with_goaway(Http2Error(http2.COMPRESSION_ERROR, str(error))) from None
        except Http2Error as error:
            raise self._with_goaway(error) from None
        if self._reset_calls:
            events += self._reset_calls
            self._reset_calls.clear()
        return events

    def _with_goaway(self, error: Http2Error) -> Http2Error:
        self._out.append(http2.goaway(self._last_stream, error.code, str(error)))
        return error

    def drain(self) -> None:
        """Send GOAWAY: accept no new calls, finish the active ones."""
        if not self._draining:
            self._draining = True
            self._out.append(http2.goaway(self._last_stream, http2.NO_ERROR))

    def _take_frame(self, frame: Frame, events: list[CallEvent]) -> None:
        kind = frame.kind
        http2.check_stream(frame)
        if kind == http2.HEADERS:
            self._take_headers(frame, events)
        elif kind == http2.DATA:
            self._take_data(frame, events)
        elif kind == http2.WINDOW_UPDATE:
            self._take_window_update(frame)
        elif kind == http2.RST_STREAM:
            self._take_reset(frame, events)
        elif kind == http2.SETTINGS:
            self._count_control_frame()
            self._take_settings(frame)
        elif kind == http2.PING:
            self._take_ping(frame)
        elif kind == http2.CONTINUATION:
            self._continue(frame, events)
        elif kind == http2.PUSH_PROMISE:
            raise Http2Error(http2.PROTOCOL_ERROR, "a client must not send PUSH_PROMISE")
        else:  # PRIORITY, GOAWAY and unknown frames need no response
            self._count_control_frame()
            if kind == http2.PRIORITY:
                self._take_priority(frame)

    def _take_priority(self, frame: Frame) -> None:
        """Check the frame; priorities are not used."""
        if len(frame.payload) != 5:
            self._reset(frame.stream, http2.FRAME_SIZE_ERROR)
        elif int.from_bytes(frame.payload[:4], "big") & http2.MAX_WINDOW_SIZE == frame.stream:
            self._reset(frame.stream, http2.PROTOCOL_ERROR)

    def _reset(self, stream: int, code: int) -> None:
        """Report an error of one stream."""
        self._out.append(http2.rst_stream(stream, code))
        if stream in self._calls:
            self._end(stream)
            self._reset_calls.append(CallReset(stream))

    def _take_ping(self, frame: Frame) -> None:
        self._count_control_frame()
        if len(frame.payload) != 8:
            raise Http2Error(http2.FRAME_SIZE_ERROR, "the payload of PING must have 8 bytes")
        if not frame.flags & http2.ACK:
            self._out.append(http2.frame(http2.PING, http2.ACK, 0, frame.payload))

    def _count_control_frame(self) -> None:
        """Close the connection of a client that sends control frames without making calls."""
        self._control_frames_left -= 1
        if self._control_frames_left < 0:
            raise Http2Error(http2.ENHANCE_YOUR_CALM, "too many control frames")

    def _earn_control_frames(self) -> None:
        if self._control_frames_left < _CONTROL_FRAMES:
            self._control_frames_left += _EARNED_FRAMES

    def renew_control_frames(self) -> None:
        """Allow the number of control frames again that a client may send between two sweeps."""
        self._control_frames_left = _CONTROL_FRAMES

    def _take_settings(self, frame: Frame) -> None:
        if frame.flags & http2.ACK:
            if frame.payload:
                raise Http2Error(http2.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS must be empty")
            return
        settings = http2.read_settings(frame.payload)
        if settings.window is not None:
            increment = settings.window - self._peer_window
            self._peer_window = settings.window
            for call in self._calls.values():
                call.window += increment
                if call.window > http2.MAX_WINDOW_SIZE:
                    raise Http2Error(http2.FLOW_CONTROL_ERROR, "a flow-control window exceeds 2^31-1")
        if settings.frame is not None:
            self._peer_frame = settings.frame
        self._out.append(http2.frame(http2.SETTINGS, http2.ACK, 0))
        self._flush_all()

    def _take_window_update(self, frame: Frame) -> None:
        self._count_control_frame()
        increment = http2.read_number(frame.payload, "WINDOW_UPDATE") & http2.MAX_WINDOW_SIZE
        if frame.stream > self._last_stream:
            raise Http2Error(http2.PROTOCOL_ERROR, "WINDOW_UPDATE for a stream that was never opened")
        if not increment and frame.stream:
            self._reset(frame.stream, http2.PROTOCOL_ERROR)
            return
        if not increment:
            raise Http2Error(http2.PROTOCOL_ERROR, "the increment of WINDOW_UPDATE must not be 0")
        if frame.stream == 0:
            self._window += increment
            if self._window > http2.MAX_WINDOW_SIZE:
                raise Http2Error(http2.FLOW_CONTROL_ERROR, "a flow-control window exceeds 2^31-1")
            self._flush_all()
        elif call := self._calls.get(frame.stream):
            call.window += increment
            if call.window > http2.MAX_WINDOW_SIZE:
                self._reset(frame.stream, http2.FLOW_CONTROL_ERROR)
                return
            self._flush(frame.stream, call)

    def _take_reset(self, frame: Frame, events: list[CallEvent]) -> None:
        http2.read_number(frame.payload, "RST_STREAM")
        if frame.stream > self._last_stream:
            raise Http2Error(http2.PROTOCOL_ERROR, "RST_STREAM for a stream that was never opened")
        if frame.stream in self._calls:
            self._resets += 1
            if self._resets > _RESETS_ALLOWED + self._last_stream // 4:
                raise Http2Error(http2.ENHANCE_YOUR_CALM, "too many calls were started and reset")
            self._end(frame.stream)
            events.append(CallReset(frame.stream))
        if frame.stream in self._ended:
            self._ended[frame.stream] = True

    def _take_headers(self, frame: Frame, events: list[CallEvent]) -> None:
        block = http2.unpadded(frame)
        if frame.flags & http2.HAS_PRIORITY and http2.depends_on_itself(frame):
            raise Http2Error(http2.PROTOCOL_ERROR, "a stream depends on itself")
        if frame.flags & http2.END_HEADERS:
            self._headers(frame.stream, frame.flags, block, events)
        else:
            self._block = (frame.stream, frame.flags, block)
            self._block_frames = 1

    def _continue(self, frame: Frame, events: list[CallEvent]) -> None:
        if self._block is None or self._block[0] != frame.stream:
            raise Http2Error(http2.PROTOCOL_ERROR, "CONTINUATION without a header block")
        stream, flags, block = self._block
        block += frame.payload
        self._block_frames += 1
        if len(block) > _HEADER_BLOCK_LIMIT or not frame.payload or self._block_frames > _BLOCK_FRAMES_LIMIT:
            raise Http2Error(http2.ENHANCE_YOUR_CALM, "a header block is too long")
        self._block = (stream, flags, block)
        if frame.flags & http2.END_HEADERS:
            self._block = None
            self._headers(stream, flags, block, events)

    def _headers(self, stream: int, flags: int, block: bytes, events: list[CallEvent]) -> None:
        headers = self._hpack.decode(block)  # also for rejected calls: the decoder's dynamic table must stay in sync
        call = self._calls.get(stream)
        if call is not None:
            if call.half_closed:
                raise Http2Error(http2.STREAM_CLOSED, "HEADERS after END_STREAM")
            if not flags & http2.END_STREAM or any(name[:1] == b":" for name, _ in headers):
                self._reset(stream, http2.PROTOCOL_ERROR)
                return
            call.half_closed = True
            events.append(HalfClosed(stream))
            return
        if not stream & 1 or stream <= self._last_stream:
            if stream in self._ended:
                self._headers_of_ended_call(stream, flags, headers)
                return
            raise Http2Error(http2.PROTOCOL_ERROR, "a stream has an invalid identifier")
        self._last_stream = stream
        if len(self._calls) >= http2.STREAMS_LIMIT or self._draining:
            self._out.append(http2.rst_stream(stream, http2.REFUSED_STREAM))
            return
        if self._open_calls.count >= self._open_calls.limit and len(self._calls) >= _MODEST_CALLS:
            self._out.append(http2.rst_stream(stream, http2.REFUSED_STREAM))
            return
        call = self._calls[stream] = CallState(self._peer_window)
        self._open_calls.count += 1
        call.half_closed = bool(flags & http2.END_STREAM)
        self._begin(stream, call, headers, events)
        if flags & http2.END_STREAM and stream in self._calls:
            events.append(HalfClosed(stream))

    def _headers_of_ended_call(self, stream: int, flags: int, headers: tuple[Header, ...]) -> None:
        """Ignore trailers of a call that the server has ended; a client must not send any after its own end."""
        if self._ended[stream]:
            raise Http2Error(http2.STREAM_CLOSED, "HEADERS after the end of a stream")
        if not flags & http2.END_STREAM or any(name[:1] == b":" for name, _ in headers):
            self._reset(stream, http2.PROTOCOL_ERROR)

    def _begin(self, stream: int, call: CallState, headers: tuple[Header, ...], events: list[CallEvent]) -> None:
        call_headers = read_call_headers(headers)
        if call_headers.status == MALFORMED:
            self._reset(stream, http2.PROTOCOL_ERROR)
            return
        if call_headers.status != OK:
            self.finish(stream, call_headers.status, call_headers.text)
            return
        call.encoding = call_headers.encoding
        _, _, path, _, timeout_ns, authorization, origin = call_headers
        events.append(CallStarted(stream, path, timeout_ns, authorization, origin))

    def _take_data(self, frame: Frame, events: list[CallEvent]) -> None:
        size = len(frame.payload)
        payload = frame.payload if not frame.flags & http2.PADDED else http2.unpadded(frame)
        if payload or frame.flags & http2.END_STREAM:
            self._earn_control_frames()
        else:
            self._count_control_frame()
        self._unacknowledged += size
        if self._unacknowledged > http2.CONNECTION_WINDOW_BYTES:
            raise Http2Error(http2.FLOW_CONTROL_ERROR, "received data exceeds the flow-control window")
        if self._unacknowledged > http2.CONNECTION_WINDOW_BYTES // 2:
            self._out.append(http2.window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        call = self._calls.get(frame.stream)
        if call is None:
            if frame.stream > self._last_stream:
                raise Http2Error(http2.PROTOCOL_ERROR, "DATA for a stream that was never opened")
            if self._ended.get(frame.stream):
                raise Http2Error(http2.STREAM_CLOSED, "DATA after END_STREAM")
            return  # data of a call that the server has ended
        if call.half_closed:
            raise Http2Error(http2.STREAM_CLOSED, "DATA after END_STREAM")
        call.unacknowledged += size
        if call.unacknowledged > http2.STREAM_WINDOW_BYTES // 2 and not frame.flags & http2.END_STREAM:
            self._out.append(http2.window_update(frame.stream, call.unacknowledged))
            call.unacknowledged = 0
        self._take_messages(frame.stream, call, payload, events)
        if frame.flags & http2.END_STREAM and frame.stream in self._calls:
            call.half_closed = True
            if call.incoming:
                self.finish(frame.stream, INTERNAL, "the last message is truncated")
            else:
                events.append(HalfClosed(frame.stream))

    def _take_messages(self, stream: int, call: CallState, payload: bytes, events: list[CallEvent]) -> None:
        size = len(payload)
        if not call.incoming and PREFIX_BYTES <= size <= self._limit and payload[:PREFIX_BYTES] == prefix(size):
            events.append(MessageReceived(stream, payload[PREFIX_BYTES:]))  # fast path: one complete message
            return
        if not self._receive_budget.reserve(size):
            text = f"incomplete messages of all clients exceed {self._receive_budget.limit_bytes} bytes"
            self.finish(stream, RESOURCE_EXHAUSTED, text)
            return
        incoming = call.incoming
        incoming += payload
        self._buffered += size
        while len(incoming) >= PREFIX_BYTES:
            length = int.from_bytes(incoming[1:PREFIX_BYTES], "big")
            if length > self._limit:
                text = f"a message of {length} bytes exceeds the limit of {self._limit} bytes"
                self.finish(stream, RESOURCE_EXHAUSTED, text)
                return
            end = PREFIX_BYTES + length
            if len(incoming) < end:
                break
            message = bytes(memoryview(incoming)[PREFIX_BYTES:end])
            compressed = incoming[0]
            del incoming[:end]
            call.complete_messages += 1
            self._buffered -= end
            self._receive_budget.release(end)
            if not compressed:
                events.append(MessageReceived(stream, message))
                continue
            try:
                event = message_received(stream, Decompression(message, call.encoding, self._limit), self._inline_bytes)
            except ValueError as error:
                self.finish(stream, INTERNAL, f"a message {error}")
                return
            self._inline_bytes -= len(event.message)
            events.append(event)
        if self._buffered > _BUFFERED_MESSAGES * (self._limit + PREFIX_BYTES):
            self.finish(stream, RESOURCE_EXHAUSTED, "this connection has too many incomplete messages")

    def send(self, stream: int, message: bytes) -> bool:
        """Send one message of a response; return False if the call has ended."""
        call = self._calls.get(stream)
        if call is None or call.status_sent:
            return False
        if not call.headers_sent:
            call.headers_sent = True
            self._out.append(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, RESPONSE_HEADERS))
        data = len(message).to_bytes(PREFIX_BYTES, "big") + message
        size = len(data)
        if not call.outgoing and size <= self._peer_frame and size <= call.window and size <= self._window:
            call.window -= size
            self._window -= size
            self._out.append(http2.frame_header(http2.DATA, 0, stream, size) + data)
            self._earn_control_frames()
        elif self._send_budget.reserve(size):
            call.outgoing.append(data)
            call.held_bytes += size
            self._blocked[stream] = call
            self._flush(stream, call)
        else:
            self._drop_outgoing(stream, call)
            self.finish(stream, RESOURCE_EXHAUSTED, "unread responses of all clients exceed the memory limit")
            return False
        return True

    def finish(self, stream: int, status: int = OK, text: str = "", retry_after_ms: int = 0) -> None:
        """End a response with its trailers."""
        call = self._calls.get(stream)
        if call is None or call.status_sent:
            return
        call.status_sent = True
        block = (b"" if call.headers_sent else RESPONSE_HEADERS) + trailers(status, text, retry_after_ms)
        ending = http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, stream, block)
        if call.outgoing:
            self._trailers[stream] = ending
        else:
            self._send_trailers(stream, call, ending)

    def respond(self, stream: int, message: bytes) -> None:
        """Send a complete unary response."""
        call = self._calls.get(stream)
        size = len(message) + PREFIX_BYTES
        if call is None or not call.half_closed or call.headers_sent or size > self._peer_frame:
            pass
        elif size <= call.window and size <= self._window and not call.status_sent:  # fast path: the windows suffice
            self._window -= size
            self._out += unary_response(stream, message)
            self._earn_control_frames()
            self._end(stream)
            return
        self.send(stream, message)
        self.finish(stream)

    def held_bytes(self) -> int:
        """Return the bytes that flow control blocks."""
        return sum(call.held_bytes for call in self._blocked.values())

    def partial_messages(self) -> dict[int, tuple[int, int]]:
        """Return, for each partly received message, the number of complete ones before it and its bytes so far."""
        return {
            stream: (call.complete_messages, len(call.incoming))
            for stream, call in self._calls.items()
            if call.incoming
        }

    def incomplete_calls(self) -> frozenset[int]:
        """Return the calls that the client has not half-closed and of which no message is partly received."""
        return frozenset(stream for stream, call in self._calls.items() if not call.half_closed and not call.incoming)

    def close(self) -> None:
        """Release the budgets; the connection is closed."""
        for stream in list(self._calls):
            self._end(stream)

    def _send_trailers(self, stream: int, call: CallState, ending: bytes) -> None:
        self._out.append(ending)
        if not call.half_closed:  # the client need not send the rest
            self._out.append(http2.rst_stream(stream, http2.NO_ERROR))
        self._end(stream)

    def _end(self, stream: int) -> None:
        call = self._calls.pop(stream)
        self._open_calls.count -= 1
        self._ended[stream] = call.half_closed
        if len(self._ended) > _REMEMBERED_CALLS:
            del self._ended[next(iter(self._ended))]
        if call.incoming:
            self._buffered -= len(call.incoming)
            self._receive_budget.release(len(call.incoming))
        if call.held_bytes:
            self._drop_outgoing(stream, call)
        self._trailers.pop(stream, None)

    def _drop_outgoing(self, stream: int, call: CallState) -> None:
        call.outgoing.clear()
        self._send_budget.release(call.held_bytes)
        call.held_bytes = 0
        self._blocked.pop(stream, None)

    def _flush_all(self) -> None:
        for stream, call in list(self._blocked.items()):
            if self._window <= 0:
                return
            self._flush(stream, call)

    def _flush(self, stream: int, call: CallState) -> None:
        while call.outgoing:
            head = memoryview(call.outgoing[0])
            size = min(len(head), self._peer_frame, call.window, self._window)
            if size <= 0:
                return
            call.window -= size
            call.held_bytes -= size
            self._window -= size
            self._send_budget.release(size)
            self._out += (http2.frame_header(http2.DATA, 0, stream, size), head[:size])
            if size == len(head) or size >= _EARNING_BYTES:
                self._earn_control_frames()
            if size == len(head):
                del call.outgoing[0]
            else:
                call.outgoing[0] = head[size:]
        self._blocked.pop(stream, None)
        ending = self._trailers.get(stream)
        if ending is not None:
            self._send_trailers(stream, call, ending)
