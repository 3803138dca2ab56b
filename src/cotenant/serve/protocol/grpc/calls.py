"""Events and state of gRPC calls on a connection."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

from cotenant.serve.protocol.compression import Decompression
from cotenant.serve.protocol.grpc.status import OK
from cotenant.serve.protocol.http2 import frames as http2
from cotenant.serve.protocol.http2.hpack import encode_header
from cotenant.units.instant import Duration

PREFIX_BYTES: Final = 5
"""Length of the message prefix: compressed flag and message length."""
RESPONSE_HEADERS: Final = b"\x88" + encode_header(b"content-type", b"application/grpc")
STATUS_OK: Final = encode_header(b"grpc-status", b"0")
_TRAILER_FLAGS: Final = http2.END_HEADERS | http2.END_STREAM
_RESPONSE: Final = struct.Struct(f">xHBBI{len(RESPONSE_HEADERS)}sHBBBIBI")
_TRAILERS: Final = struct.Struct(f">xHBBI{len(STATUS_OK)}s")


class CallStarted(NamedTuple):
    """The client started a call."""

    stream: int
    path: str
    timeout_ns: Duration
    """Zero: no grpc-timeout was sent."""
    authorization: str = ""
    origin: str = ""
    """The web page that sent the request; only browsers name one."""


class MessageReceived(NamedTuple):
    """The client sent a message."""

    stream: int
    message: bytes
    compressed: Decompression | None = None
    """Set if the message is too large to be decompressed at once."""


class HalfClosed(NamedTuple):
    """The client sent END_STREAM: it will send no more messages in this call."""

    stream: int


class CallReset(NamedTuple):
    """The client sent RST_STREAM."""

    stream: int


CallEvent: TypeAlias = CallStarted | MessageReceived | HalfClosed | CallReset


class CallState:
    """Receive and send state of one call."""

    __slots__ = (
        "complete_messages",
        "encoding",
        "half_closed",
        "headers_sent",
        "held_bytes",
        "incoming",
        "outgoing",
        "status_sent",
        "unacknowledged",
        "window",
    )

    def __init__(self, window: int) -> None:
        """`window` is the client's flow-control window of the stream."""
        self.encoding = ""
        self.incoming = bytearray()
        self.complete_messages = 0
        """Messages that were received in several frames."""
        self.unacknowledged = 0
        """Bytes received since the last WINDOW_UPDATE of the stream."""
        self.headers_sent = False
        self.status_sent = False
        """The trailers are queued or sent; nothing may follow."""
        self.half_closed = False
        """The client sent END_STREAM."""
        self.outgoing: list[bytes | memoryview] = []
        """Messages blocked by flow control; their trailers are in the connection's `_trailers`."""
        self.held_bytes = 0
        """Size of `outgoing`."""
        self.window = window


def message_received(stream: int, compressed: Decompression, limit_bytes: int) -> MessageReceived:
    """Return a compressed message, decompressed if the result has at most `limit_bytes`."""
    plain = compressed.begin(limit_bytes)
    return MessageReceived(stream, b"", compressed) if plain is None else MessageReceived(stream, bytes(plain))


def prefix(length: int) -> bytes:
    """Return the prefix of an uncompressed message, given the length of prefix and message."""
    return (length - PREFIX_BYTES).to_bytes(PREFIX_BYTES, "big")


def trailers(status: int, text: str, retry_after_ms: int) -> bytes:
    """Return the header block of the trailers."""
    block = STATUS_OK if status == OK else encode_header(b"grpc-status", str(status).encode())
    if text:
        block += encode_header(b"grpc-message", quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[]^_`{|}~").encode())
    if retry_after_ms:
        block += encode_header(b"grpc-retry-pushback-ms", str(retry_after_ms).encode())
    return block


def unary_response(stream: int, message: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the frames of a successful unary response: headers, one message in one frame, and trailers."""
    size = len(message) + PREFIX_BYTES
    lead = _RESPONSE.pack(
        *(len(RESPONSE_HEADERS), http2.HEADERS, http2.END_HEADERS, stream, RESPONSE_HEADERS),
        *(size >> 8, size & 0xFF, http2.DATA, 0, stream, 0, len(message)),
    )
    return lead, message, _TRAILERS.pack(len(STATUS_OK), http2.HEADERS, _TRAILER_FLAGS, stream, STATUS_OK)
