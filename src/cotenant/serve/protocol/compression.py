"""Bounded compression and decompression with gzip or deflate (RFC 1952, RFC 1950)."""

from __future__ import annotations

import zlib
from typing import Final

INLINE_LIMIT_BYTES: Final = 1 << 20
"""Larger results are decompressed in a thread, however small the input is."""
STEP_BYTES: Final = 4 << 20
"""Result of one step in a thread; the caller reserves memory for it first."""
_PIECE_BYTES: Final = 1 << 20
_WINDOWS: Final = {"gzip": 31, "deflate": 15}


def compress(data: bytes, encoding: str) -> bytes:
    """Compress quickly; the ratio is secondary."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[encoding])
    return compressor.compress(data) + compressor.flush()


class Decompression:
    """Decompresses one body in steps: up to a limit at once, the remainder by `step`, which may run in any thread."""

    def __init__(self, data: bytes | memoryview, encoding: str, limit_bytes: int) -> None:
        """The result may have at most `limit_bytes`; errors are raised as `ValueError`."""
        if encoding not in _WINDOWS:
            raise ValueError(f"has the encoding {encoding!r}, expected gzip or deflate")
        self._encoding = encoding
        self._limit_bytes = limit_bytes
        self._decompressor = zlib.decompressobj(_WINDOWS[encoding])
        self._input = memoryview(data)
        self._tail = b""
        self._plain = bytearray()

    def begin(self, limit_bytes: int) -> bytearray | None:
        """Return the result if it has at most `limit_bytes`; otherwise None, and `step` continues."""
        if limit_bytes <= 0:
            return None
        is_complete = self.step(min(limit_bytes, self._limit_bytes) + 1)
        return None if not is_complete or len(self._plain) > limit_bytes else self._plain

    def step(self, size_bytes: int = STEP_BYTES) -> bool:
        """Decompress at most this much more; return whether the result is complete."""
        end_bytes = len(self._plain) + size_bytes
        while not self._decompressor.eof and len(self._plain) < end_bytes:
            if not self._tail:  # in pieces, because zlib copies what it leaves
                self._tail, self._input = bytes(self._input[:_PIECE_BYTES]), self._input[_PIECE_BYTES:]
            is_last = not self._tail
            previous_bytes = len(self._plain)
            try:
                self._plain += self._decompressor.decompress(self._tail, end_bytes - previous_bytes)
            except zlib.error:
                raise ValueError(f"is not valid {self._encoding} data") from None
            self._tail = self._decompressor.unconsumed_tail
            if len(self._plain) > self._limit_bytes:
                raise ValueError(f"decompresses to more than the limit of {self._limit_bytes} bytes")
            if is_last and len(self._plain) == previous_bytes:
                raise ValueError(f"is truncated {self._encoding} data")
        if self._decompressor.eof and (self._decompressor.unused_data or self._input):
            raise ValueError("has data after its end")
        return self._decompressor.eof

    @property
    def result(self) -> bytearray:
        """Return the complete result."""
        return self._plain
