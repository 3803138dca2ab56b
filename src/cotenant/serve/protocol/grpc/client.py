"""Client side of a gRPC connection: unary calls, without I/O.

Received bytes go into `feed`; `take` returns the bytes to send. Data beyond the server's flow-control windows waits.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from cotenant.serve.protocol.grpc.status import INTERNAL, OK, UNAVAILABLE
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.frames import Frame, FrameReader, Http2Error
from cotenant.serve.protocol.http2.hpack import HpackDecoder, HpackError, encode_header

_DEFAULT_WINDOW: Final = 65535
_DEFAULT_FRAME: Final = 1 << 14
_DEFAULT_STREAMS: Final = 100
"""Concurrent streams before the server's SETTINGS arrive."""
_LAST_STREAM: Final = (1 << 31) - 1


class CallEnded(NamedTuple):
    """A call has ended."""

    stream: int
    status: int
    message: bytes
    """The response, if messages are kept."""


class CallHead(NamedTuple):
    """Header block of all calls to one method, encoded once."""

    block: bytes


def call_head(path: str, authority: str) -> CallHead:
    """Encode the header block of calls to a method."""
    headers = (
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    return CallHead(b"\x83\x86" + b"".join(encode_header(*header) for header in headers))


def length_prefixed(message: bytes) -> bytes:
    """Return the message with its prefix."""
    return len(message).to_bytes(5, "big") + message


class _Call:
    __slots__ = ("message", "status", "unacknowledged", "unsent", "window")

    def __init__(self, window: int, unsent: memoryview) -> None:
        self.window = window
        self.unsent = unsent
        self.unacknowledged = 0
        self.message = b""
        self.status: int | None = None


class GrpcClient:
    """One connection to a server. After an `Http2Error` it cannot be used any more."""

    def __init__(self, *, keep: bool = False) -> None:
        """Responses are kept only with `keep`."""
        self._keep = keep
        self._reader = FrameReader(preface_seen=True)
        self._hpack = HpackDecoder()
        self._calls: dict[int, _Call] = {}
        self._blocked: deque[int] = deque()
        """Calls with unsent data, in the order of their start."""
        settings = http2.frame(http2.SETTINGS, 0, 0, b"\x00\x02\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff")
        window = http2.window_update(0, http2.MAX_WINDOW_SIZE - _DEFAULT_WINDOW)
        self._out: list[bytes | memoryview] = [http2.PREFACE, settings, window]
        self._next_stream = 1
        self._window = _DEFAULT_WINDOW
        self._peer_window = _DEFAULT_WINDOW
        self._peer_frame = _DEFAULT_FRAME
        self._unacknowledged = 0
        self._limit = _DEFAULT_STREAMS
        self._block: tuple[int, int, bytes] | None = None
        self._draining = False

    @property
    def calls(self) -> int:
        """Return the number of active calls."""
        return len(self._calls)

    @property
    def can_call(self) -> bool:
        """Return whether another call may start."""
        return len(self._calls) < self._limit and not self._draining and self._next_stream < _LAST_STREAM

    @property
    def draining(self) -> bool:
        """Return whether the server accepts no more calls on this connection."""
        return self._draining or self._next_stream >= _LAST_STREAM

    def take(self) -> bytes:
        """Return the bytes to send."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def call(self, head: CallHead, message: bytes) -> int:
        """Start a call with its only message, which has its prefix; return its stream."""
        stream = self._next_stream
        self._next_stream += 2
        call = self._calls[stream] = _Call(self._peer_window, memoryview(message))
        self._out.append(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, head.block))
        self._flush(stream, call)
        if call.unsent:
            self._blocked.append(stream)
        return stream

    def abandon(self, stream: int) -> None:
        """Cancel a call with RST_STREAM."""
        if self._calls.pop(stream, None) is not None:
            self._out.append(http2.rst_stream(stream, http2.CANCEL))

    def feed(self, data: bytes) -> list[CallEnded]:
        """Process received bytes; return the calls that ended."""
        ended: list[CallEnded] = []
        try:
            for frame in self._reader.feed(data):
                self._take_frame(frame, ended)
        except HpackError as error:
            raise Http2Error(http2.COMPRESSION_ERROR, str(error)) from None
        return ended

    def _take_frame(self, frame: Frame, ended: list[CallEnded]) -> None:
        kind = frame.kind
        if kind == http2.HEADERS:
            if frame.flags & http2.END_HEADERS:
                self._headers(frame.stream, frame.flags, http2.unpadded(frame), ended)
            else:
                self._block = (frame.stream, frame.flags, http2.unpadded(frame))
        elif kind == http2.DATA:
            self._data(frame, ended)
        elif kind == http2.WINDOW_UPDATE:
            self._take_window_update(frame)
        elif kind == http2.SETTINGS:
            self._settings(frame)
        elif kind == http2.PING and not frame.flags & http2.ACK:
            self._out.append(http2.frame(http2.PING, http2.ACK, 0, frame.payload))
        elif kind == http2.RST_STREAM:
            code = http2.read_number(frame.payload, "RST_STREAM")
            self._end(frame.stream, UNAVAILABLE if code == http2.REFUSED_STREAM else INTERNAL, ended)
        elif kind == http2.CONTINUATION and self._block is not None:
            stream, flags, block = self._block
            self._block = (stream, flags, block + frame.payload)
            if frame.flags & http2.END_HEADERS:
                self._block = None
                self._headers(stream, flags, block + frame.payload, ended)
        elif kind == http2.GOAWAY:
            self._take_goaway(frame, ended)

    def _take_goaway(self, frame: Frame, ended: list[CallEnded]) -> None:
        """End the calls after the last stream of a GOAWAY: the server did not process them (RFC 9113, section 6.8)."""
        self._draining = True
        last_stream = int.from_bytes(frame.payload[:4], "big") & http2.MAX_WINDOW_SIZE
        for stream in [call_stream for call_stream in self._calls if call_stream > last_stream]:
            self._end(stream, UNAVAILABLE, ended)

    def _headers(self, stream: int, flags: int, block: bytes, ended: list[CallEnded]) -> None:
        headers = self._hpack.decode(block)
        call = self._calls.get(stream)
        if call is None:
            return
        for name, value in headers:
            if name == b"grpc-status":
                call.status = int(value) if value.isdigit() else INTERNAL
            elif name == b":status" and value != b"200":
                call.status = UNAVAILABLE if value in (b"429", b"502", b"503", b"504") else INTERNAL
        if flags & http2.END_STREAM:
            self._end(stream, INTERNAL if call.status is None else call.status, ended)

    def _data(self, frame: Frame, ended: list[CallEnded]) -> None:
        size = len(frame.payload)
        self._unacknowledged += size
        if self._unacknowledged > http2.MAX_WINDOW_SIZE // 4:
            self._out.append(http2.window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        call = self._calls.get(frame.stream)
        if call is None:
            return  # of a cancelled call
        if self._keep:
            call.message += http2.unpadded(frame)
        call.unacknowledged += size
        if call.unacknowledged > http2.MAX_WINDOW_SIZE // 4:
            self._out.append(http2.window_update(frame.stream, call.unacknowledged))
            call.unacknowledged = 0
        if frame.flags & http2.END_STREAM:  # no trailers were sent
            self._end(frame.stream, INTERNAL, ended)

    def _end(self, stream: int, status: int, ended: list[CallEnded]) -> None:
        call = self._calls.pop(stream, None)
        if call is not None:
            ended.append(CallEnded(stream, status, call.message[5:] if status == OK else b""))

    def _settings(self, frame: Frame) -> None:
        if frame.flags & http2.ACK:
            return
        settings = http2.read_settings(frame.payload)
        if settings.window is not None:
            increment = settings.window - self._peer_window
            self._peer_window = settings.window
            for call in self._calls.values():
                call.window += increment
        if settings.frame is not None:
            self._peer_frame = settings.frame
        if settings.streams is not None:
            self._limit = settings.streams
        self._out.append(http2.frame(http2.SETTINGS, http2.ACK, 0))
        self._flush_all()

    def _take_window_update(self, frame: Frame) -> None:
        increment = http2.read_number(frame.payload, "WINDOW_UPDATE") & http2.MAX_WINDOW_SIZE
        if frame.stream == 0:
            self._window += increment
        elif call := self._calls.get(frame.stream):
            call.window += increment
        self._flush_all()

    def _flush_all(self) -> None:
        for _ in range(len(self._blocked)):
            stream = self._blocked.popleft()
            call = self._calls.get(stream)
            if call is None:
                continue  # it ended before its data was sent
            self._flush(stream, call)
            if call.unsent:
                self._blocked.append(stream)

    def _flush(self, stream: int, call: _Call) -> None:
        unsent = call.unsent
        while unsent:
            size = min(len(unsent), self._peer_frame, call.window, self._window)
            if size <= 0:
                break
            call.window -= size
            self._window -= size
            flags = http2.END_STREAM if size == len(unsent) else 0
            self._out += (http2.frame_header(http2.DATA, flags, stream, size), unsent[:size])
            unsent = unsent[size:]
        call.unsent = unsent
