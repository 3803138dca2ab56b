"""HTTP/2 frames (https://www.rfc-editor.org/rfc/rfc9113), as far as gRPC needs them."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_LIMIT_BYTES: Final = 1 << 18
"""SETTINGS_MAX_FRAME_SIZE of this server."""
STREAMS_LIMIT: Final = 1024
"""SETTINGS_MAX_CONCURRENT_STREAMS of this server."""
STREAM_WINDOW_BYTES: Final = 4 << 20
CONNECTION_WINDOW_BYTES: Final = 16 << 20
_DEFAULT_WINDOW_BYTES: Final = 65535
MAX_WINDOW_SIZE: Final = (1 << 31) - 1

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

_ON_STREAMS: Final = frozenset((DATA, HEADERS, PRIORITY, RST_STREAM, PUSH_PROMISE, CONTINUATION))
_ON_CONNECTION: Final = frozenset((SETTINGS, PING, GOAWAY))
_FRAME_HEADER: Final = struct.Struct(">HBBBI")
_SETTING: Final = struct.Struct(">HI")
_MAX_CONCURRENT_STREAMS: Final = 3
_ENABLE_PUSH: Final = 2
_INITIAL_WINDOW_SIZE: Final = 4
_MAX_FRAME_SIZE: Final = 5
_MAX_HEADER_LIST_SIZE: Final = 6
FRAME_HEADER_BYTES: Final = 9


class Http2Error(Exception):
    """The peer violated the protocol; the connection ends with this error code."""

    def __init__(self, code: int, text: str) -> None:
        """An error code (RFC 9113, section 7) and a text for GOAWAY."""
        super().__init__(text)
        self.code = code


class Frame(NamedTuple):
    """One frame."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class FrameReader:
    """Converts the bytes of one connection to frames."""

    def __init__(self, *, preface_seen: bool = False) -> None:
        """A client sends a connection preface first; a server sends none, so a client sets `preface_seen`."""
        self._buffer = b""
        self.preface_seen = preface_seen
        """Whether the connection preface was received."""

    def feed(self, data: bytes) -> list[Frame]:
        """Process received bytes; return the complete frames."""
        if self._buffer:
            data = self._buffer + data
        position = 0
        if not self.preface_seen:
            if not data.startswith(PREFACE[: len(data)]):
                raise Http2Error(PROTOCOL_ERROR, "the client does not speak HTTP/2")
            if len(data) < len(PREFACE):
                self._buffer = data
                return []
            self.preface_seen = True
            position = len(PREFACE)
        frames = []
        end = len(data)
        while end - position >= FRAME_HEADER_BYTES:
            high, low, kind, flags, stream = _FRAME_HEADER.unpack_from(data, position)
            length = high << 8 | low
            if length > FRAME_LIMIT_BYTES:
                raise Http2Error(FRAME_SIZE_ERROR, f"a frame exceeds the limit of {FRAME_LIMIT_BYTES} bytes")
            begin = position + FRAME_HEADER_BYTES
            if begin + length > end:
                break
            position = begin + length
            frames.append(Frame(kind, flags, stream & MAX_WINDOW_SIZE, data[begin:position]))
        self._buffer = data[position:]
        return frames


def check_stream(frame_: Frame) -> None:
    """Raise `Http2Error` if a frame is on stream 0 that belongs to a stream, or on a stream that does not."""
    if (frame_.stream == 0) == (frame_.kind in _ON_STREAMS) and frame_.kind in _ON_STREAMS | _ON_CONNECTION:
        raise Http2Error(PROTOCOL_ERROR, f"a frame of type {frame_.kind} must not be on stream {frame_.stream}")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encode a frame."""
    return frame_header(kind, flags, stream, len(payload)) + payload


def frame_header(kind: int, flags: int, stream: int, length: int) -> bytes:
    """Encode a frame header (RFC 9113, section 4.1)."""
    return _FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream)


def server_preface() -> bytes:
    """Return the server's first frames: SETTINGS, and WINDOW_UPDATE for the connection."""
    settings = (
        (_MAX_CONCURRENT_STREAMS, STREAMS_LIMIT),
        (_INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES),
        (_MAX_FRAME_SIZE, FRAME_LIMIT_BYTES),
        (_MAX_HEADER_LIST_SIZE, 16 << 10),
    )
    payload = b"".join(_SETTING.pack(*setting) for setting in settings)
    return frame(SETTINGS, 0, 0, payload) + window_update(0, CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)


def window_update(stream: int, increment: int) -> bytes:
    """Encode a WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def rst_stream(stream: int, code: int) -> bytes:
    """Encode a RST_STREAM."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    """Encode a GOAWAY."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode())


class Settings(NamedTuple):
    """The settings that affect the peer; None: not sent."""

    window: int | None
    frame: int | None
    streams: int | None = None
    """SETTINGS_MAX_CONCURRENT_STREAMS."""


def read_settings(payload: bytes) -> Settings:
    """Parse a SETTINGS payload (RFC 9113, section 6.5)."""
    if len(payload) % _SETTING.size:
        raise Http2Error(FRAME_SIZE_ERROR, "a SETTINGS frame is truncated")
    window = size = streams = None
    for name, value in _SETTING.iter_unpack(payload):
        if name == _INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW_SIZE:
                raise Http2Error(FLOW_CONTROL_ERROR, "a flow-control window exceeds 2^31-1")
            window = value
        elif name == _MAX_FRAME_SIZE:
            if not 1 << 14 <= value < 1 << 24:
                raise Http2Error(PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of bounds")
            size = value
        elif name == _ENABLE_PUSH and value > 1:
            raise Http2Error(PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH must be 0 or 1")
        elif name == _MAX_CONCURRENT_STREAMS:
            streams = value
    return Settings(window, size, streams)


def read_number(payload: bytes, frame_name: str) -> int:
    """Parse the payload of WINDOW_UPDATE or RST_STREAM."""
    if len(payload) != 4:
        raise Http2Error(FRAME_SIZE_ERROR, f"the payload of {frame_name} must have 4 bytes")
    return int.from_bytes(payload, "big")


def depends_on_itself(frame_: Frame) -> bool:
    """Return whether the priority of a HEADERS frame names its own stream."""
    begin = 1 if frame_.flags & PADDED else 0
    return int.from_bytes(frame_.payload[begin : begin + 4], "big") & MAX_WINDOW_SIZE == frame_.stream


def unpadded(frame_: Frame) -> bytes:
    """Return the payload of HEADERS or DATA without padding and priority."""
    payload = frame_.payload
    end = len(payload)
    begin = 0
    if frame_.flags & PADDED:
        if not payload:
            raise Http2Error(FRAME_SIZE_ERROR, "a padded frame has no padding length")
        begin = 1
        end -= payload[0]
    if frame_.kind == HEADERS and frame_.flags & HAS_PRIORITY:
        begin += 5
    if begin > end:
        raise Http2Error(PROTOCOL_ERROR, "the padding is longer than its frame")
    return payload[begin:end]
