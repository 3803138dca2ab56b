"""HTTP/1.1 request parser (RFC 9112), strict: ambiguous messages are rejected.

Heads are cached, because a client's requests have mostly the same head.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from typing import Final, NamedTuple

from cotenant.serve.protocol.budget import ByteBudget

HEAD_LIMIT_BYTES: Final = 16 << 10
_CACHED_HEADS: Final = 1024
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?")
_CHUNK_LINE_LIMIT: Final = 256
_SMALL_PART_BYTES: Final = 4096
"""Smaller parts of a body are joined as they come: as objects of their own, they would take many times their size."""
_CHUNKED: Final = -1
_IN_TRAILERS: Final = -2
_END: Final = b"\r\n\r\n"


class HttpError(Exception):
    """The client violated the protocol; the connection is closed after the response."""

    def __init__(self, status: int, text: str, retry_after_s: int = 0) -> None:
        """The status and text of the response, and its Retry-After if any."""
        super().__init__(text)
        self.status = status
        self.retry_after_s = retry_after_s


class RequestHead(NamedTuple):
    """Request line and header fields."""

    method: str
    target: str
    length: int
    """Content length in bytes; negative: chunked."""
    json_length: int
    """Length of the JSON in front of binary tensors (Inference-Header-Content-Length); negative: not given."""
    keep_alive: bool
    expects_continue: bool
    encoding: str
    """Content encoding of the body; empty: none."""
    accepts: tuple[str, ...]
    """Accepted content encodings of the response."""
    authorization: str = ""
    origin: str = ""
    """The web page that sent the request; only browsers name one."""


class HttpRequest(NamedTuple):
    """One request."""

    head: RequestHead
    body: memoryview
    reserved_bytes: int = 0
    """Bytes reserved in the budget until the request is taken; 0 if it was received at once."""


@functools.lru_cache(_CACHED_HEADS)
def parse_head(block: bytes) -> RequestHead:
    """Parse a head without its final empty line."""
    request_line, *lines = block.split(b"\r\n")
    parts = request_line.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise HttpError(400, "the request line is not METHOD TARGET HTTP/1.1")
    if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise HttpError(505, "this server speaks HTTP/1.1")
    fields = _fields(lines)
    is_http_1_1 = parts[2] == b"HTTP/1.1"
    hosts = len(fields.get(b"host", ()))
    if hosts > 1 or (is_http_1_1 and not hosts):
        raise HttpError(400, "a request must have exactly one Host header")
    connection = b",".join(fields.get(b"connection", ())).lower()
    return RequestHead(
        method=parts[0].decode(),
        target=parts[1].decode(),
        length=_length(fields),
        json_length=_number(fields, b"inference-header-content-length"),
        keep_alive=b"close" not in connection if is_http_1_1 else b"keep-alive" in connection,
        expects_continue=is_http_1_1 and b"".join(fields.get(b"expect", ())).lower() == b"100-continue",
        encoding=b",".join(fields.get(b"content-encoding", ())).decode("latin-1").strip().lower(),
        accepts=_accepts(b",".join(fields.get(b"accept-encoding", ())).decode("latin-1")),
        authorization=b",".join(fields.get(b"authorization", ())).decode("latin-1"),
        origin=b",".join(fields.get(b"origin", ())).decode("latin-1"),
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
        raise HttpError(400, "a request must not have both Content-Length and Transfer-Encoding")
    if [coding.lower() for coding in codings] != [b"chunked"]:
        raise HttpError(501, "the only supported transfer encoding is chunked")
    return _CHUNKED


def _number(fields: dict[bytes, list[bytes]], name: bytes) -> int:
    values = fields.get(name)
    if values is None:
        return -1
    if len(values) != 1 or not values[0].isdigit() or len(values[0]) > 15:
        raise HttpError(400, f"{name.decode()} must be one non-negative integer")
    return int(values[0])


def _accepts(text: str) -> tuple[str, ...]:
    accepted = []
    for part in text.split(","):
        coding, _, weight = part.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            accepted.append(coding.strip().lower())
    return tuple(coding for coding in accepted if coding in ("gzip", "deflate"))


class HttpReader:
    """Converts the bytes of one connection to requests. After an `HttpError` it cannot be used any more."""

    def __init__(self, body_limit_bytes: int, budget: ByteBudget | None = None) -> None:
        """Bodies are limited; the budget bounds bodies that are not taken yet, over all connections."""
        self._limit = body_limit_bytes
        self._budget = budget or ByteBudget(1 << 62)
        self._ready: deque[HttpRequest] = deque()
        self._buffer = b""
        self._head: RequestHead | None = None
        self._parts: list[bytes | bytearray] = []
        self._chunked_body = bytearray()
        self._missing = 0
        self._held_bytes = 0
        self._request_count = 0
        self.wants_continue = False
        """The client sent `Expect: 100-continue` and waits."""

    @property
    def mid_request(self) -> bool:
        """Return whether a request is partly received."""
        return self._head is not None or bool(self._buffer)

    @property
    def progress(self) -> tuple[int, int] | None:
        """Return a number and the received bytes of a partly received request, or None."""
        if self._head is None:
            return (-self._request_count, len(self._buffer)) if self._buffer else None
        return self._request_count, self._held_bytes

    def feed(self, data: bytes) -> None:
        """Process received bytes; then `next` returns complete requests."""
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        position = 0
        end = len(data)
        while position < end:
            if self._head is None:
                position = self._read_head(data, position)
            elif self._head.length == _CHUNKED:
                position = self._read_chunks(data, position)
            else:
                position = self._read_body(data, position)

    def next(self) -> HttpRequest | None:
        """Return the next complete request, or None."""
        if not self._ready:
            return None
        request = self._ready.popleft()
        if request.reserved_bytes:
            self._budget.release(request.reserved_bytes)
        return request

    @property
    def waiting(self) -> int:
        """Return the number of complete requests that were not taken."""
        return len(self._ready)

    @property
    def waiting_bytes(self) -> int:
        """Return the size of their bodies."""
        return sum(len(request.body) for request in self._ready)

    def close(self) -> None:
        """Release the budget; the connection is closed."""
        self._budget.release(self._held_bytes + sum(request.reserved_bytes for request in self._ready))
        self._held_bytes = 0
        self._ready.clear()

    def _read_head(self, data: bytes, position: int) -> int:
        end = data.find(_END, position)
        if end < 0 or end - position > HEAD_LIMIT_BYTES:
            if len(data) - position > HEAD_LIMIT_BYTES:
                raise HttpError(431, f"the request head exceeds the limit of {HEAD_LIMIT_BYTES} bytes")
            self._buffer = data[position:]
            return len(data)
        head = parse_head(data[position:end])
        length = head.length
        begin = end + 4
        stop = begin + length
        if length > self._limit:
            raise HttpError(413, f"a body of {length} bytes exceeds the limit of {self._limit} bytes")
        if length >= 0 and len(data) >= stop:  # fast path: one complete request
            self._ready.append(HttpRequest(head, memoryview(data)[begin:stop]))
            return stop
        self._head = head
        self._request_count += 1
        self._missing = length
        self.wants_continue = head.expects_continue and len(data) == begin
        return begin

    def _reserve(self, size: int) -> None:
        if not self._budget.reserve(size):
            limit = self._budget.limit_bytes
            raise HttpError(429, f"the bodies of all clients exceed the limit of {limit} bytes: try again later", 1)
        self._held_bytes += size

    def _read_body(self, data: bytes, position: int) -> int:
        part = data[position : position + self._missing]
        self._reserve(len(part))
        if len(part) < _SMALL_PART_BYTES and self._parts and type(self._parts[-1]) is bytearray:
            self._parts[-1] += part
        else:
            self._parts.append(bytearray(part) if len(part) < _SMALL_PART_BYTES else part)
        self._missing -= len(part)
        if not self._missing:
            self._complete()
        return position + len(part)

    def _read_chunks(self, data: bytes, position: int) -> int:
        """`_missing` is the remaining size of the current chunk and its line end.

        -1 between chunks, -2 in the trailer section.
        """
        if self._missing > 0:
            part = data[position : position + self._missing]
            self._reserve(len(part))
            self._missing -= len(part)
            self._chunked_body += part
            if not self._missing:
                self._end_chunk()
            return position + len(part)
        end = data.find(b"\r\n", position, position + _CHUNK_LINE_LIMIT)
        if end < 0:
            if len(data) - position >= _CHUNK_LINE_LIMIT:
                raise HttpError(400, "the size line of a chunk is too long")
            self._buffer = data[position:]
            return len(data)
        if self._missing != _IN_TRAILERS:
            self._begin_chunk(data[position:end])
        elif end > position:
            raise HttpError(400, "trailers are not supported")
        else:
            self._parts = [bytes(self._chunked_body)]
            self._complete()
        return end + 2

    def _begin_chunk(self, line: bytes) -> None:
        size = _CHUNK_SIZE.fullmatch(line)
        if not size:
            raise HttpError(400, "a chunk does not begin with its size")
        length = int(size[1], 16)
        if len(self._chunked_body) + length > self._limit:
            raise HttpError(413, f"the body exceeds the limit of {self._limit} bytes")
        self._missing = length + 2 if length else _IN_TRAILERS

    def _end_chunk(self) -> None:
        if not self._chunked_body.endswith(b"\r\n"):
            raise HttpError(400, "a chunk is longer than its size")
        del self._chunked_body[-2:]
        self._missing = -1

    def _complete(self) -> None:
        assert self._head is not None
        parts = self._parts
        body = parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)
        self._ready.append(HttpRequest(self._head, memoryview(body), self._held_bytes))
        self._held_bytes = 0
        self._head = None
        self._parts = []
        self._chunked_body = bytearray()
        self._missing = 0
        self.wants_continue = False
