"""What does a gRPC client say over one connection? Calls with their messages in, answers with their status out.

Pure: bytes go in by `feed`, what happened comes out of it; what is to be sent collects in `take`. Both ways keep the
windows of HTTP/2, so a client that does not read holds up nobody but itself.
"""

from __future__ import annotations

from typing import Final

from cotenant.format import http2
from cotenant.format.grpc_calls import (
    ANSWER_HEADERS,
    PREFIX_BYTES,
    Abandoned,
    Call,
    Called,
    Closed,
    Happening,
    Said,
    prefix,
    said,
    trailers,
    whole_answer,
)
from cotenant.format.grpc_words import INTERNAL, OK, RESOURCE_EXHAUSTED, read_opening
from cotenant.format.hpack import Header, HpackDecoder, HpackError
from cotenant.format.http2 import Frame, FrameReader, Http2Error
from cotenant.format.packing import AT_ONCE_BYTES, Unpacking
from cotenant.format.room import Room

_DEFAULT_WINDOW: Final = 65535
_HEADER_BLOCK_LIMIT: Final = 64 << 10
_RESETS_ALLOWED: Final = 1000
_BUFFERED_MESSAGES: Final = 4


class GrpcConnection:
    """One connection of a client. After an `Http2Error` it is of no more use but for what `take` still has."""

    def __init__(self, message_limit_bytes: int, coming: Room | None = None, going: Room | None = None) -> None:
        """A message may be that long; what came of half a message, and what waits to go, is in rooms that all share."""
        self._limit = message_limit_bytes
        self._coming = coming or Room(1 << 62)
        self._going = going or Room(1 << 62)
        self._reader = FrameReader()
        self._hpack = HpackDecoder()
        self._calls: dict[int, Call] = {}
        self._trailers: dict[int, bytes] = {}
        self._out: list[bytes | memoryview] = [http2.greeting()]
        self._last_stream = 0
        self._window = _DEFAULT_WINDOW
        self._their_window = _DEFAULT_WINDOW
        self._their_frame = 1 << 14
        self._inside = 0
        self._buffered = 0
        self._held_back: dict[int, Call] = {}
        """Calls with messages that a window holds back."""
        self._block: tuple[int, int, bytes] | None = None
        self._resets = 0
        self._at_once_bytes = AT_ONCE_BYTES
        self._leaving = False

    @property
    def greeted(self) -> bool:
        """Whether the client has said that it speaks HTTP/2."""
        return self._reader.greeted

    @property
    def calls(self) -> int:
        """Calls that have not ended."""
        return len(self._calls)

    def take(self) -> bytes:
        """What is to be sent now."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def feed(self, data: bytes) -> list[Happening]:
        """What these bytes mean."""
        happened: list[Happening] = []
        self._at_once_bytes = AT_ONCE_BYTES
        try:
            for got in self._reader.feed(data):
                if self._block is not None and got.kind != http2.CONTINUATION:
                    raise Http2Error(http2.PROTOCOL_ERROR, "a header block is interrupted")
                self._take_frame(got, happened)
        except HpackError as error:
            raise self._broken(Http2Error(http2.COMPRESSION_ERROR, str(error))) from None
        except Http2Error as error:
            raise self._broken(error) from None
        return happened

    def _broken(self, error: Http2Error) -> Http2Error:
        self._out.append(http2.goaway(self._last_stream, error.code, str(error)))
        return error

    def leave(self) -> None:
        """Take no new calls; those that there are go on."""
        if not self._leaving:
            self._leaving = True
            self._out.append(http2.goaway(self._last_stream, http2.NO_ERROR))

    def _take_frame(self, got: Frame, happened: list[Happening]) -> None:
        kind = got.kind
        if kind == http2.HEADERS:
            self._take_headers(got, happened)
        elif kind == http2.DATA:
            self._take_data(got, happened)
        elif kind == http2.WINDOW_UPDATE:
            self._widen(got)
        elif kind == http2.RST_STREAM:
            self._take_reset(got, happened)
        elif kind == http2.SETTINGS:
            self._take_settings(got)
        elif kind == http2.PING:
            if len(got.payload) != 8:
                raise Http2Error(http2.FRAME_SIZE_ERROR, "a ping has eight bytes")
            if not got.flags & http2.ACK:
                self._out.append(http2.frame(http2.PING, http2.ACK, 0, got.payload))
        elif kind == http2.CONTINUATION:
            self._continue(got, happened)
        elif kind == http2.PUSH_PROMISE:
            raise Http2Error(http2.PROTOCOL_ERROR, "a client promises nothing")
        # Priorities, farewells and what is not known yet ask for nothing.

    def _take_settings(self, got: Frame) -> None:
        if got.flags & http2.ACK:
            return
        settings = http2.read_settings(got.payload)
        if settings.window is not None:
            more = settings.window - self._their_window
            self._their_window = settings.window
            for call in self._calls.values():
                call.window += more
        if settings.frame is not None:
            self._their_frame = settings.frame
        self._out.append(http2.frame(http2.SETTINGS, http2.ACK, 0))
        self._flush_all()

    def _widen(self, got: Frame) -> None:
        more = http2.read_number(got.payload, "a window update") & http2.WINDOW_LIMIT
        if not more:
            raise Http2Error(http2.PROTOCOL_ERROR, "a window grows by nothing")
        if got.stream == 0:
            self._window += more
            if self._window > http2.WINDOW_LIMIT:
                raise Http2Error(http2.FLOW_CONTROL_ERROR, "a window is too large")
            self._flush_all()
        elif call := self._calls.get(got.stream):
            call.window += more
            if call.window > http2.WINDOW_LIMIT:
                raise Http2Error(http2.FLOW_CONTROL_ERROR, "a window is too large")
            self._flush(got.stream, call)

    def _take_reset(self, got: Frame, happened: list[Happening]) -> None:
        http2.read_number(got.payload, "a reset")
        if got.stream == 0 or got.stream > self._last_stream:
            raise Http2Error(http2.PROTOCOL_ERROR, "a stream is reset that never was")
        if got.stream in self._calls:
            self._resets += 1
            if self._resets > _RESETS_ALLOWED + self._last_stream // 4:
                raise Http2Error(http2.ENHANCE_YOUR_CALM, "calls are begun only to be reset")
            self._end(got.stream)
            happened.append(Abandoned(got.stream))

    def _take_headers(self, got: Frame, happened: list[Happening]) -> None:
        block = http2.unpadded(got)
        if got.flags & http2.END_HEADERS:
            self._headers(got.stream, got.flags, block, happened)
        else:
            self._block = (got.stream, got.flags, block)

    def _continue(self, got: Frame, happened: list[Happening]) -> None:
        if self._block is None or self._block[0] != got.stream:
            raise Http2Error(http2.PROTOCOL_ERROR, "a header block goes on that never began")
        stream, flags, block = self._block
        block += got.payload
        if len(block) > _HEADER_BLOCK_LIMIT or not got.payload:
            raise Http2Error(http2.ENHANCE_YOUR_CALM, "a header block does not end")
        self._block = (stream, flags, block)
        if got.flags & http2.END_HEADERS:
            self._block = None
            self._headers(stream, flags, block, happened)

    def _headers(self, stream: int, flags: int, block: bytes, happened: list[Happening]) -> None:
        headers = self._hpack.decode(block)  # also of calls that are not taken: the table goes on
        call = self._calls.get(stream)
        if call is not None:
            if not flags & http2.END_STREAM or call.closed:
                raise Http2Error(http2.PROTOCOL_ERROR, "headers come twice")
            call.closed = True
            happened.append(Closed(stream))
            return
        if not stream & 1 or stream <= self._last_stream:
            if 0 < stream <= self._last_stream and stream & 1:
                return  # trailers of a call that has ended here
            raise Http2Error(http2.PROTOCOL_ERROR, "a stream has a number that it may not have")
        self._last_stream = stream
        if len(self._calls) >= http2.STREAMS_LIMIT or self._leaving:
            self._out.append(http2.reset(stream, http2.REFUSED_STREAM))
            return
        call = self._calls[stream] = Call(self._their_window)
        call.closed = bool(flags & http2.END_STREAM)
        self._begin(stream, call, headers, happened)
        if flags & http2.END_STREAM and stream in self._calls:
            happened.append(Closed(stream))

    def _begin(self, stream: int, call: Call, headers: tuple[Header, ...], happened: list[Happening]) -> None:
        opening = read_opening(headers)
        if opening.status != OK:
            self.finish(stream, opening.status, opening.text)
            return
        call.encoding = opening.encoding
        happened.append(Called(stream, opening.path, opening.timeout_ns))

    def _take_data(self, got: Frame, happened: list[Happening]) -> None:
        size = len(got.payload)
        self._inside += size
        if self._inside > http2.CONNECTION_WINDOW_BYTES:
            raise Http2Error(http2.FLOW_CONTROL_ERROR, "more came than the window lets in")
        if self._inside > http2.CONNECTION_WINDOW_BYTES // 2:
            self._out.append(http2.window_update(0, self._inside))
            self._inside = 0
        call = self._calls.get(got.stream)
        if call is None:
            if got.stream == 0 or got.stream > self._last_stream:
                raise Http2Error(http2.PROTOCOL_ERROR, "data of a stream that never was")
            return  # of a call that has ended here
        if call.closed:
            raise Http2Error(http2.STREAM_CLOSED, "data after the end of a stream")
        call.inside += size
        if call.inside > http2.STREAM_WINDOW_BYTES // 2 and not got.flags & http2.END_STREAM:
            self._out.append(http2.window_update(got.stream, call.inside))
            call.inside = 0
        payload = got.payload if not got.flags & http2.PADDED else http2.unpadded(got)
        self._messages(got.stream, call, payload, happened)
        if got.flags & http2.END_STREAM and got.stream in self._calls:
            call.closed = True
            if call.incoming:
                self.finish(got.stream, INTERNAL, "the last message is cut off")
            else:
                happened.append(Closed(got.stream))

    def _messages(self, stream: int, call: Call, payload: bytes, happened: list[Happening]) -> None:
        size = len(payload)
        if not call.incoming and PREFIX_BYTES <= size <= self._limit and payload[:PREFIX_BYTES] == prefix(size):
            happened.append(Said(stream, payload[PREFIX_BYTES:]))  # the usual case: one message, whole
            return
        if not self._coming.take(size):
            text = f"messages of all clients together may have {self._coming.limit_bytes} bytes before they are whole"
            self.finish(stream, RESOURCE_EXHAUSTED, text)
            return
        incoming = call.incoming
        incoming += payload
        self._buffered += size
        while len(incoming) >= PREFIX_BYTES:
            length = int.from_bytes(incoming[1:PREFIX_BYTES], "big")
            if length > self._limit:
                text = f"a message may have {self._limit} bytes, this one has {length}"
                self.finish(stream, RESOURCE_EXHAUSTED, text)
                return
            end = PREFIX_BYTES + length
            if len(incoming) < end:
                break
            message = bytes(memoryview(incoming)[PREFIX_BYTES:end])
            packed = incoming[0]
            del incoming[:end]
            call.whole += 1
            self._buffered -= end
            self._coming.give(end)
            if not packed:
                happened.append(Said(stream, message))
                continue
            try:
                one = said(stream, Unpacking(message, call.encoding, self._limit), self._at_once_bytes)
            except ValueError as error:
                self.finish(stream, INTERNAL, f"a message {error}")
                return
            self._at_once_bytes -= len(one.message)
            happened.append(one)
        if self._buffered > _BUFFERED_MESSAGES * (self._limit + PREFIX_BYTES):
            self.finish(stream, RESOURCE_EXHAUSTED, "this connection has too much under way")

    def send(self, stream: int, message: bytes) -> bool:
        """One message of an answer; False: the call has ended, and takes none."""
        call = self._calls.get(stream)
        if call is None or call.answered:
            return False
        if not call.began:
            call.began = True
            self._out.append(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, ANSWER_HEADERS))
        data = len(message).to_bytes(PREFIX_BYTES, "big") + message
        size = len(data)
        if not call.outgoing and size <= self._their_frame and size <= call.window and size <= self._window:
            call.window -= size
            self._window -= size
            self._out.append(http2.frame_head(http2.DATA, 0, stream, size) + data)
        elif self._going.take(size):
            call.outgoing.append(data)
            call.held_bytes += size
            self._held_back[stream] = call
            self._flush(stream, call)
        else:
            self._let_go(stream, call)
            self.finish(stream, RESOURCE_EXHAUSTED, "answers that nobody reads have filled the memory for them")
            return False
        return True

    def finish(self, stream: int, status: int = OK, text: str = "", retry_after_ms: int = 0) -> None:
        """The end of an answer."""
        call = self._calls.get(stream)
        if call is None or call.answered:
            return
        call.answered = True
        block = (b"" if call.began else ANSWER_HEADERS) + trailers(status, text, retry_after_ms)
        ending = http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, stream, block)
        if call.outgoing:
            self._trailers[stream] = ending
        else:
            self._last_words(stream, call, ending)

    def answer(self, stream: int, message: bytes) -> None:
        """A whole answer."""
        call = self._calls.get(stream)
        size = len(message) + PREFIX_BYTES
        if call is None or not call.closed or call.began or size > self._their_frame:
            pass
        elif size <= call.window and size <= self._window and not call.answered:  # the usual case: it goes out whole
            self._window -= size
            self._out += whole_answer(stream, message)
            self._end(stream)
            return
        self.send(stream, message)
        self.finish(stream)

    def held_bytes(self) -> int:
        """What waits for the client's windows."""
        return sum(call.held_bytes for call in self._held_back.values())

    def half_read(self) -> dict[int, tuple[int, int]]:
        """Of each call that is amid a message: how many came before it, and how many bytes of it there are."""
        return {stream: (call.whole, len(call.incoming)) for stream, call in self._calls.items() if call.incoming}

    def close(self) -> None:
        """The connection is gone: let go of what was held for it."""
        for stream in list(self._calls):
            self._end(stream)

    def _last_words(self, stream: int, call: Call, ending: bytes) -> None:
        self._out.append(ending)
        if not call.closed:  # what it still sends is of no use
            self._out.append(http2.reset(stream, http2.NO_ERROR))
        self._end(stream)

    def _end(self, stream: int) -> None:
        call = self._calls.pop(stream)
        if call.incoming:
            self._buffered -= len(call.incoming)
            self._coming.give(len(call.incoming))
        if call.held_bytes:
            self._let_go(stream, call)
        self._trailers.pop(stream, None)

    def _let_go(self, stream: int, call: Call) -> None:
        call.outgoing.clear()
        self._going.give(call.held_bytes)
        call.held_bytes = 0
        self._held_back.pop(stream, None)

    def _flush_all(self) -> None:
        for stream, call in list(self._held_back.items()):
            if self._window <= 0:
                return
            self._flush(stream, call)

    def _flush(self, stream: int, call: Call) -> None:
        while call.outgoing:
            head = memoryview(call.outgoing[0])
            size = min(len(head), self._their_frame, call.window, self._window)
            if size <= 0:
                return
            call.window -= size
            call.held_bytes -= size
            self._window -= size
            self._going.give(size)
            self._out += (http2.frame_head(http2.DATA, 0, stream, size), head[:size])
            if size == len(head):
                del call.outgoing[0]
            else:
                call.outgoing[0] = head[size:]
        self._held_back.pop(stream, None)
        ending = self._trailers.get(stream)
        if ending is not None:
            self._last_words(stream, call, ending)
