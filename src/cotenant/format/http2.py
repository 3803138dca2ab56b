"""What do the frames of HTTP/2 say (RFC 9113), as far as a gRPC server needs them? Bytes to frames and back."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_LIMIT_BYTES: Final = 1 << 18
"""Of a frame that a client may send, as our settings tell it."""
STREAMS_LIMIT: Final = 1024
"""Requests of one connection at once."""
STREAM_WINDOW_BYTES: Final = 4 << 20
CONNECTION_WINDOW_BYTES: Final = 16 << 20
_DEFAULT_WINDOW_BYTES: Final = 65535
WINDOW_LIMIT: Final = (1 << 31) - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

_HEAD: Final = struct.Struct(">HBBBI")
_SETTING: Final = struct.Struct(">HI")
_SET_STREAMS: Final = 3
_SET_WINDOW: Final = 4
_SET_FRAME: Final = 5
_SET_HEADERS: Final = 6
HEAD_BYTES: Final = 9


class Http2Error(Exception):
    """The client broke the protocol; the connection ends with this code."""

    def __init__(self, code: int, text: str) -> None:
        """The error code of the protocol, and a word for the log."""
        super().__init__(text)
        self.code = code


class Frame(NamedTuple):
    """One frame."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class FrameReader:
    """The bytes of one connection, as they come in, to frames."""

    def __init__(self, *, greeted: bool = False) -> None:
        """A client's preface comes first; a server has none, so that its reader is `greeted`."""
        self._buffer = b""
        self.greeted = greeted
        """Whether the other side has said that it speaks HTTP/2."""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete."""
        if self._buffer:
            data = self._buffer + data
        place = 0
        if not self.greeted:
            if not data.startswith(PREFACE[: len(data)]):
                raise Http2Error(PROTOCOL_ERROR, "the client does not speak HTTP/2")
            if len(data) < len(PREFACE):
                self._buffer = data
                return []
            self.greeted = True
            place = len(PREFACE)
        frames = []
        end = len(data)
        while end - place >= HEAD_BYTES:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, place)
            length = high << 8 | low
            if length > FRAME_LIMIT_BYTES:
                raise Http2Error(FRAME_SIZE_ERROR, f"a frame may have {FRAME_LIMIT_BYTES} bytes")
            begin = place + HEAD_BYTES
            if begin + length > end:
                break
            place = begin + length
            frames.append(Frame(kind, flags, stream & WINDOW_LIMIT, data[begin:place]))
        self._buffer = data[place:]
        return frames


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame as bytes."""
    return frame_head(kind, flags, stream, len(payload)) + payload


def frame_head(kind: int, flags: int, stream: int, length: int) -> bytes:
    """What stands before a payload of that length."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def greeting() -> bytes:
    """What a server says first: its limits, and a wide window for the connection."""
    settings = (
        (_SET_STREAMS, STREAMS_LIMIT),
        (_SET_WINDOW, STREAM_WINDOW_BYTES),
        (_SET_FRAME, FRAME_LIMIT_BYTES),
        (_SET_HEADERS, 16 << 10),
    )
    payload = b"".join(_SETTING.pack(*one) for one in settings)
    return frame(SETTINGS, 0, 0, payload) + window_update(0, CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)


def window_update(stream: int, more: int) -> bytes:
    """That so many more bytes may come."""
    return frame(WINDOW_UPDATE, 0, stream, more.to_bytes(4, "big"))


def reset(stream: int, code: int) -> bytes:
    """That a stream ends here."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    """That the connection takes no more streams."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode())


class Settings(NamedTuple):
    """What one side's settings change for the other; None: not named."""

    window: int | None
    frame: int | None
    streams: int | None = None
    """That a client may have at once."""


def read_settings(payload: bytes) -> Settings:
    """What matters of a settings frame."""
    if len(payload) % _SETTING.size:
        raise Http2Error(FRAME_SIZE_ERROR, "a settings frame is cut off")
    window = size = streams = None
    for name, value in _SETTING.iter_unpack(payload):
        if name == _SET_WINDOW:
            if value > WINDOW_LIMIT:
                raise Http2Error(FLOW_CONTROL_ERROR, "a window is too large")
            window = value
        elif name == _SET_FRAME:
            if not 1 << 14 <= value < 1 << 24:
                raise Http2Error(PROTOCOL_ERROR, "a frame size is out of bounds")
            size = value
        elif name == _SET_STREAMS:
            streams = value
    return Settings(window, size, streams)


def read_number(payload: bytes, what: str) -> int:
    """The number that is all of a window update or a reset."""
    if len(payload) != 4:
        raise Http2Error(FRAME_SIZE_ERROR, f"{what} has four bytes")
    return int.from_bytes(payload, "big")


def unpadded(got: Frame) -> bytes:
    """The payload of headers or data without padding and priority."""
    payload = got.payload
    end = len(payload)
    begin = 0
    if got.flags & PADDED:
        if not payload:
            raise Http2Error(FRAME_SIZE_ERROR, "padding has no length")
        begin = 1
        end -= payload[0]
    if got.kind == HEADERS and got.flags & HAS_PRIORITY:
        begin += 5
    if begin > end:
        raise Http2Error(PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[begin:end]
