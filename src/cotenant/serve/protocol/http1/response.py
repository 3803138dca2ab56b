"""HTTP/1.1 response parser (RFC 9112) of the load generator.

Heads are cached, because a server's responses have mostly the same head.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

HEAD_LIMIT_BYTES: Final = 64 << 10
_CACHED_HEADS: Final = 1024
_CHUNKED: Final = -1
_END: Final = b"\r\n\r\n"
_LINE: Final = b"\r\n"
_CHUNK_LINE_LIMIT: Final = 256
_NO_BODY: Final = (204, 304)


class ResponseError(Exception):
    """The server violated the protocol; the connection cannot be used any more."""


class ResponseHead(NamedTuple):
    """Status line and header fields."""

    status: int
    length: int
    """Content length in bytes; negative: chunked."""
    keep_alive: bool


@functools.lru_cache(_CACHED_HEADS)
def read_response_head(block: bytes) -> ResponseHead:
    """Parse a head without its final empty line."""
    status_line, *lines = block.split(_LINE)
    version, _, rest = status_line.partition(b" ")
    code = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or not code.isdigit() or len(code) != 3:
        raise ResponseError(f"a response begins with {status_line[:60]!r}")
    length = 0
    keep_alive = version == b"HTTP/1.1"
    status = int(code)
    for line in lines:
        name, _, value = line.partition(b":")
        name, value = name.strip().lower(), value.strip().lower()
        if name == b"content-length":
            if not value.isdigit() or len(value) > 15:
                raise ResponseError(f"the content length of a response is {value[:60]!r}")
            length = int(value)
        elif name == b"transfer-encoding":
            length = _CHUNKED
        elif name == b"connection":
            keep_alive = value != b"close"
    return ResponseHead(status, 0 if status in _NO_BODY else length, keep_alive)


class ResponseReader:
    """Converts the bytes of one connection to responses. After a `ResponseError` it cannot be used any more."""

    __slots__ = ("_body", "_buffer", "_head", "_in_trailers", "_keep", "_missing")

    def __init__(self, *, keep: bool = False) -> None:
        """Bodies are kept only with `keep`."""
        self._buffer = b""
        self._head: ResponseHead | None = None
        self._missing = 0
        self._in_trailers = False
        self._keep = keep
        self._body = bytearray()

    def feed(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """Process received bytes; return the response that they complete, or None. Bytes after it are an error."""
        if self._head is None:
            if self._buffer:
                data = self._buffer + data
            end = data.find(_END)
            if end < 0:
                if len(data) > HEAD_LIMIT_BYTES:
                    raise ResponseError("the head of a response is too long")
                self._buffer = data
                return None
            head = read_response_head(data[:end])
            data = data[end + 4 :]
            self._buffer = b""
            if head.status // 100 == 1:  # an interim response (1xx); the final one follows
                return self.feed(data) if data else None
            self._head = head
            self._missing = max(head.length, 0)
        return self._chunks(data) if self._head.length == _CHUNKED else self._plain(data)

    def _plain(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        self._missing -= len(data)
        if self._keep:
            self._body += data
        if self._missing < 0:
            raise ResponseError("received more bytes than the content length of the response")
        return self._complete() if not self._missing else None

    def _chunks(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        data = self._buffer + data
        self._buffer = b""
        while True:
            if self._missing:  # of a chunk, including its line end
                part = data[: self._missing]
                self._missing -= len(part)
                if self._keep:
                    self._body += part
                    if not self._missing:
                        del self._body[-2:]
                data = data[len(part) :]
                if self._missing:
                    return None
            line, separator, rest = data.partition(_LINE)
            if not separator:
                if len(data) > _CHUNK_LINE_LIMIT:
                    raise ResponseError("the size line of a chunk is too long")
                self._buffer = data
                return None
            data = rest
            if self._in_trailers:
                if not line:
                    return self._complete()
                continue
            try:
                size = int(line.partition(b";")[0].strip() or b"x", 16)
            except ValueError:
                raise ResponseError(f"the size of a chunk is {line[:60]!r}") from None
            if size < 0:
                raise ResponseError("the size of a chunk is negative")
            self._in_trailers = size == 0
            self._missing = size + 2 if size else 0

    def _complete(self) -> tuple[ResponseHead, bytes]:
        head = self._head
        assert head is not None
        body = bytes(self._body)
        self._body.clear()
        self._head = None
        self._in_trailers = False
        return head, body
