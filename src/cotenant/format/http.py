"""What does a client say over HTTP/1.1? Bytes to requests, strictly: what could be read in two ways is refused.

Heads of one client are mostly the same bytes, so a head that was read once is not read again.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from typing import Final, NamedTuple

HEAD_LIMIT_BYTES: Final = 16 << 10
_HEADS_KEPT: Final = 1024
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?")
_CHUNK_LINE_LIMIT: Final = 256
_CHUNKED: Final = -1
_IN_TRAILERS: Final = -2
_END: Final = b"\r\n\r\n"


class HttpError(Exception):
    """The client broke the protocol; the connection cannot go on after the answer."""

    def __init__(self, status: int, text: str) -> None:
        """The status to answer with, and a sentence for the client."""
        super().__init__(text)
        self.status = status


class Head(NamedTuple):
    """What stands before a body."""

    method: str
    target: str
    length: int
    """Of the body in bytes; negative: it comes in chunks."""
    json_length: int
    """Of the JSON at its front, where binary tensors follow; negative: it was not said."""
    keep_alive: bool
    expects_continue: bool
    encoding: str
    """How the body is compressed; empty: not at all."""
    accepts: tuple[str, ...]
    """How an answer may be compressed."""


class HttpRequest(NamedTuple):
    """One request."""

    head: Head
    body: memoryview


@functools.lru_cache(_HEADS_KEPT)
def parse_head(block: bytes) -> Head:
    """All up to the empty line, without it."""
    first, *lines = block.split(b"\r\n")
    parts = first.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise HttpError(400, "the request line is not METHOD TARGET HTTP/1.1")
    if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise HttpError(505, "this server speaks HTTP/1.1")
    fields = _fields(lines)
    newest = parts[2] == b"HTTP/1.1"
    if newest and len(fields.get(b"host", ())) != 1:
        raise HttpError(400, "a request names its host, once")
    connection = b",".join(fields.get(b"connection", ())).lower()
    return Head(
        method=parts[0].decode(),
        target=parts[1].decode(),
        length=_length(fields),
        json_length=_number(fields, b"inference-header-content-length"),
        keep_alive=b"close" not in connection if newest else b"keep-alive" in connection,
        expects_continue=newest and b"".join(fields.get(b"expect", ())).lower() == b"100-continue",
        encoding=b",".join(fields.get(b"content-encoding", ())).decode("latin-1").strip().lower(),
        accepts=_accepts(b",".join(fields.get(b"accept-encoding", ())).decode("latin-1")),
    )


def _fields(lines: list[bytes]) -> dict[bytes, list[bytes]]:
    fields: dict[bytes, list[bytes]] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HttpError(400, "a header is not NAME: VALUE")
        fields.setdefault(name.lower(), []).append(value.strip(b" \t"))
    return fields


def _length(fields: dict[bytes, list[bytes]]) -> int:
    codings = fields.get(b"transfer-encoding")
    if codings is None:
        return max(_number(fields, b"content-length"), 0)
    if b"content-length" in fields:
        raise HttpError(400, "a body has a length or a transfer encoding, not both")
    if [coding.lower() for coding in codings] != [b"chunked"]:
        raise HttpError(501, "the only transfer encoding known here is chunked")
    return _CHUNKED


def _number(fields: dict[bytes, list[bytes]], name: bytes) -> int:
    values = fields.get(name)
    if values is None:
        return -1
    if len(values) != 1 or not values[0].isdigit() or len(values[0]) > 15:
        raise HttpError(400, f"{name.decode()} is one whole number")
    return int(values[0])


def _accepts(text: str) -> tuple[str, ...]:
    named = []
    for part in text.split(","):
        coding, _, weight = part.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            named.append(coding.strip().lower())
    return tuple(name for name in named if name in ("gzip", "deflate"))


class HttpReader:
    """The bytes of one connection, as they come in, to requests. After an `HttpError` it is of no more use."""

    def __init__(self, body_limit_bytes: int) -> None:
        """A body may be that long."""
        self._limit = body_limit_bytes
        self._ready: deque[HttpRequest] = deque()
        self._buffer = b""
        self._head: Head | None = None
        self._parts: list[bytes] = []
        self._grown = bytearray()
        self._missing = 0
        self.wants_continue = False
        """A client waits to be told that its body is welcome."""

    @property
    def mid_request(self) -> bool:
        """Whether the beginning of a request was read, and not its end."""
        return self._head is not None or bool(self._buffer)

    def feed(self, data: bytes) -> None:
        """More bytes; then `next` has what they complete."""
        while data:
            if self._head is None:
                data = self._read_head(data)
            elif self._head.length == _CHUNKED:
                data = self._read_chunks(data)
            else:
                data = self._read_body(data)

    def next(self) -> HttpRequest | None:
        """The next request that is complete."""
        return self._ready.popleft() if self._ready else None

    @property
    def waiting(self) -> int:
        """Requests that are complete and were not asked for yet."""
        return len(self._ready)

    def _read_head(self, data: bytes) -> bytes:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        end = data.find(_END)
        if end < 0 or end > HEAD_LIMIT_BYTES:
            if len(data) > HEAD_LIMIT_BYTES:
                raise HttpError(431, f"a head may have {HEAD_LIMIT_BYTES} bytes")
            self._buffer = data
            return b""
        head = parse_head(data[:end])
        begin = end + 4
        stop = begin + head.length
        if head.length > self._limit:
            raise HttpError(413, f"a body may have {self._limit} bytes, this one has {head.length}")
        if len(data) == stop:  # the usual case: one request, whole
            self._ready.append(HttpRequest(head, memoryview(data)[begin:]))
            return b""
        if head.length >= 0 and len(data) > stop:
            self._ready.append(HttpRequest(head, memoryview(data)[begin:stop]))
            return data[stop:]
        self._head = head
        self._parts = []
        self._grown = bytearray()
        self._missing = head.length
        self.wants_continue = head.expects_continue and len(data) == begin
        return data[begin:]

    def _read_body(self, data: bytes) -> bytes:
        taken = data[: self._missing]
        self._parts.append(taken)
        self._missing -= len(taken)
        if not self._missing:
            self._complete()
        return data[len(taken) :]

    def _read_chunks(self, data: bytes) -> bytes:
        """`_missing` counts what is left of the present chunk and its line end; -1 between chunks, -2 in trailers."""
        data = self._buffer + data
        self._buffer = b""
        while data:
            if self._missing > 0:
                taken = data[: self._missing]
                self._missing -= len(taken)
                data = data[len(taken) :]
                self._grown += taken
                if not self._missing:
                    self._end_chunk()
                continue
            line, found, data = data.partition(b"\r\n")
            if not found:
                if len(line) > _CHUNK_LINE_LIMIT:
                    raise HttpError(400, "a chunk's size does not end")
                self._buffer = line
            elif self._missing == _IN_TRAILERS:
                if line:
                    raise HttpError(400, "trailers are not taken")
                self._parts = [bytes(self._grown)]
                self._complete()
                return data
            else:
                self._begin_chunk(line)
        return b""

    def _begin_chunk(self, line: bytes) -> None:
        size = _CHUNK_SIZE.fullmatch(line)
        if not size:
            raise HttpError(400, "a chunk begins with its size")
        length = int(size[1], 16)
        if len(self._grown) + length > self._limit:
            raise HttpError(413, f"a body may have {self._limit} bytes")
        self._missing = length + 2 if length else _IN_TRAILERS

    def _end_chunk(self) -> None:
        if not self._grown.endswith(b"\r\n"):
            raise HttpError(400, "a chunk does not end where its size says")
        del self._grown[-2:]
        self._missing = -1

    def _complete(self) -> None:
        assert self._head is not None
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._ready.append(HttpRequest(self._head, memoryview(body)))
        self._head = None
        self._parts = []
        self._missing = 0
        self.wants_continue = False
