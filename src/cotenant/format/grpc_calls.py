"""What happens on a connection of gRPC, and what is remembered of a call?"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

from cotenant.domain.instant import Duration
from cotenant.format import http2
from cotenant.format.grpc_words import OK
from cotenant.format.hpack import encode_header
from cotenant.format.packing import Unpacking

PREFIX_BYTES: Final = 5
"""Before a message: whether it is packed, and its length."""
ANSWER_HEADERS: Final = b"\x88" + encode_header(b"content-type", b"application/grpc")
WELL: Final = encode_header(b"grpc-status", b"0")
_LAST: Final = http2.END_HEADERS | http2.END_STREAM
_LEAD: Final = struct.Struct(f">xHBBI{len(ANSWER_HEADERS)}sHBBBIBI")
_ENDING: Final = struct.Struct(f">xHBBI{len(WELL)}s")


class Called(NamedTuple):
    """A call has begun."""

    stream: int
    path: str
    timeout_ns: Duration
    """Zero: it did not say."""


class Said(NamedTuple):
    """A message of a call."""

    stream: int
    message: bytes
    packed: Unpacking | None = None
    """What the message is in, where it is too much to be unpacked while others wait."""


class Closed(NamedTuple):
    """The client has said all it will say in this call."""

    stream: int


class Abandoned(NamedTuple):
    """The client wants no answer any more."""

    stream: int


Happening: TypeAlias = Called | Said | Closed | Abandoned


class Call:
    """One call, as far as its bytes have come and gone."""

    __slots__ = (
        "answered",
        "began",
        "closed",
        "encoding",
        "held_bytes",
        "incoming",
        "inside",
        "outgoing",
        "whole",
        "window",
    )

    def __init__(self, window: int) -> None:
        """It has begun; the client's window lets so many bytes out."""
        self.encoding = ""
        self.incoming = bytearray()
        self.whole = 0
        """Messages that came in pieces, and are whole."""
        self.inside = 0
        """Bytes of its receive window that were not given back."""
        self.began = False
        self.answered = False
        """Its status is among what goes out: nothing may follow."""
        self.closed = False
        """The client has said all it will say."""
        self.outgoing: list[bytes | memoryview] = []
        """Messages that a window holds back; the trailers, if any, are in the connection's `_trailers`."""
        self.held_bytes = 0
        """Of these."""
        self.window = window


def said(stream: int, packed: Unpacking, most_bytes: int) -> Said:
    """A message that came packed, plain if that is no more than so much."""
    plain = packed.begin(most_bytes)
    return Said(stream, b"", packed) if plain is None else Said(stream, plain)


def prefix(length: int) -> bytes:
    """What stands before a message, if all of it together has that length."""
    return (length - PREFIX_BYTES).to_bytes(PREFIX_BYTES, "big")


def trailers(status: int, text: str, retry_after_ms: int) -> bytes:
    """What stands behind the last message."""
    block = WELL if status == OK else encode_header(b"grpc-status", str(status).encode())
    if text:
        block += encode_header(b"grpc-message", quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[]^_`{|}~").encode())
    if retry_after_ms:
        block += encode_header(b"grpc-retry-pushback-ms", str(retry_after_ms).encode())
    return block


def whole_answer(stream: int, message: bytes) -> tuple[bytes, bytes, bytes]:
    """Headers, one message in one frame, and the word that all is well."""
    size = len(message) + PREFIX_BYTES
    lead = _LEAD.pack(
        *(len(ANSWER_HEADERS), http2.HEADERS, http2.END_HEADERS, stream, ANSWER_HEADERS),
        *(size >> 8, size & 0xFF, http2.DATA, 0, stream, 0, len(message)),
    )
    return lead, message, _ENDING.pack(len(WELL), http2.HEADERS, _LAST, stream, WELL)
