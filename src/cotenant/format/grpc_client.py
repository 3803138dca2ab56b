"""How are gRPC calls made over one connection? Messages out, statuses back; the client's half of `format.grpc`.

Pure: bytes go in by `feed`, what is to be sent collects in `take`. What the server's windows hold back waits.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from cotenant.format import http2
from cotenant.format.grpc_words import INTERNAL, OK, UNAVAILABLE
from cotenant.format.hpack import HpackDecoder, HpackError, encode_header
from cotenant.format.http2 import Frame, FrameReader, Http2Error

_DEFAULT_WINDOW: Final = 65535
_DEFAULT_FRAME: Final = 1 << 14
_FIRST_CALLS: Final = 100
"""At once, before the server has said how many it takes."""
_LAST_STREAM: Final = (1 << 31) - 1


class CallEnded(NamedTuple):
    """A call is over."""

    stream: int
    status: int
    message: bytes
    """What was said in it, where messages are kept."""


class Head(NamedTuple):
    """How every call of a kind begins; written once."""

    block: bytes


def call_head(path: str, authority: str) -> Head:
    """For calls of this method."""
    named = (
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    return Head(b"\x83\x86" + b"".join(encode_header(*one) for one in named))


def enveloped(message: bytes) -> bytes:
    """A message with its length in front, as it goes out."""
    return len(message).to_bytes(5, "big") + message


class _Call:
    __slots__ = ("inside", "said", "status", "unsent", "window")

    def __init__(self, window: int, unsent: memoryview) -> None:
        self.window = window
        self.unsent = unsent
        self.inside = 0
        self.said = b""
        self.status: int | None = None


class GrpcCaller:
    """One connection to a server. After an `Http2Error` it is of no more use."""

    def __init__(self, *, keep: bool = False) -> None:
        """What is said in calls is kept only if asked for."""
        self._keep = keep
        self._reader = FrameReader(greeted=True)
        self._hpack = HpackDecoder()
        self._calls: dict[int, _Call] = {}
        self._held: deque[int] = deque()
        """Calls of which something is unsent, in the order in which they began."""
        settings = http2.frame(http2.SETTINGS, 0, 0, b"\x00\x02\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff")
        wide = http2.window_update(0, http2.WINDOW_LIMIT - _DEFAULT_WINDOW)
        self._out: list[bytes | memoryview] = [http2.PREFACE, settings, wide]
        self._next = 1
        self._window = _DEFAULT_WINDOW
        self._their_window = _DEFAULT_WINDOW
        self._their_frame = _DEFAULT_FRAME
        self._inside = 0
        self._limit = _FIRST_CALLS
        self._block: tuple[int, int, bytes] | None = None
        self._leaving = False

    @property
    def calls(self) -> int:
        """That have not ended."""
        return len(self._calls)

    @property
    def has_room(self) -> bool:
        """Whether one more call may begin."""
        return len(self._calls) < self._limit and not self._leaving and self._next < _LAST_STREAM

    @property
    def leaving(self) -> bool:
        """Whether the server takes no more calls on this connection."""
        return self._leaving or self._next >= _LAST_STREAM

    def take(self) -> bytes:
        """What is to be sent now."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def call(self, head: Head, message: bytes) -> int:
        """Begin a call with an enveloped message, the only one; returns its stream."""
        stream = self._next
        self._next += 2
        call = self._calls[stream] = _Call(self._their_window, memoryview(message))
        self._out.append(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, head.block))
        self._flush(stream, call)
        if call.unsent:
            self._held.append(stream)
        return stream

    def abandon(self, stream: int) -> None:
        """Want no answer any more."""
        if self._calls.pop(stream, None) is not None:
            self._out.append(http2.reset(stream, http2.CANCEL))

    def feed(self, data: bytes) -> list[CallEnded]:
        """The calls that end with these bytes."""
        ended: list[CallEnded] = []
        try:
            for got in self._reader.feed(data):
                self._take_frame(got, ended)
        except HpackError as error:
            raise Http2Error(http2.COMPRESSION_ERROR, str(error)) from None
        return ended

    def _take_frame(self, got: Frame, ended: list[CallEnded]) -> None:
        kind = got.kind
        if kind == http2.HEADERS:
            if got.flags & http2.END_HEADERS:
                self._headers(got.stream, got.flags, http2.unpadded(got), ended)
            else:
                self._block = (got.stream, got.flags, http2.unpadded(got))
        elif kind == http2.DATA:
            self._data(got, ended)
        elif kind == http2.WINDOW_UPDATE:
            self._widen(got)
        elif kind == http2.SETTINGS:
            self._settings(got)
        elif kind == http2.PING and not got.flags & http2.ACK:
            self._out.append(http2.frame(http2.PING, http2.ACK, 0, got.payload))
        elif kind == http2.RST_STREAM:
            code = http2.read_number(got.payload, "a reset")
            self._end(got.stream, UNAVAILABLE if code == http2.REFUSED_STREAM else INTERNAL, ended)
        elif kind == http2.CONTINUATION and self._block is not None:
            stream, flags, block = self._block
            self._block = (stream, flags, block + got.payload)
            if got.flags & http2.END_HEADERS:
                self._block = None
                self._headers(stream, flags, block + got.payload, ended)
        elif kind == http2.GOAWAY:
            self._farewell(got, ended)

    def _farewell(self, got: Frame, ended: list[CallEnded]) -> None:
        """Calls above the last one that the server names were never looked at."""
        self._leaving = True
        last = int.from_bytes(got.payload[:4], "big") & http2.WINDOW_LIMIT
        for stream in [one for one in self._calls if one > last]:
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

    def _data(self, got: Frame, ended: list[CallEnded]) -> None:
        size = len(got.payload)
        self._inside += size
        if self._inside > http2.WINDOW_LIMIT // 4:
            self._out.append(http2.window_update(0, self._inside))
            self._inside = 0
        call = self._calls.get(got.stream)
        if call is None:
            return  # of a call that was abandoned
        if self._keep:
            call.said += http2.unpadded(got)
        call.inside += size
        if call.inside > http2.WINDOW_LIMIT // 4:
            self._out.append(http2.window_update(got.stream, call.inside))
            call.inside = 0
        if got.flags & http2.END_STREAM:  # without a status
            self._end(got.stream, INTERNAL, ended)

    def _end(self, stream: int, status: int, ended: list[CallEnded]) -> None:
        call = self._calls.pop(stream, None)
        if call is not None:
            ended.append(CallEnded(stream, status, call.said[5:] if status == OK else b""))

    def _settings(self, got: Frame) -> None:
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
        if settings.streams is not None:
            self._limit = settings.streams
        self._out.append(http2.frame(http2.SETTINGS, http2.ACK, 0))
        self._flush_all()

    def _widen(self, got: Frame) -> None:
        more = http2.read_number(got.payload, "a window update") & http2.WINDOW_LIMIT
        if got.stream == 0:
            self._window += more
        elif call := self._calls.get(got.stream):
            call.window += more
        self._flush_all()

    def _flush_all(self) -> None:
        for _ in range(len(self._held)):
            stream = self._held.popleft()
            call = self._calls.get(stream)
            if call is None:
                continue  # it has ended before all of it was sent
            self._flush(stream, call)
            if call.unsent:
                self._held.append(stream)

    def _flush(self, stream: int, call: _Call) -> None:
        unsent = call.unsent
        while unsent:
            size = min(len(unsent), self._their_frame, call.window, self._window)
            if size <= 0:
                break
            call.window -= size
            self._window -= size
            flags = http2.END_STREAM if size == len(unsent) else 0
            self._out += (http2.frame_head(http2.DATA, flags, stream, size), unsent[:size])
            unsent = unsent[size:]
        call.unsent = unsent
