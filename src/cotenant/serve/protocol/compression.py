"""Bounded compression and decompression with gzip or deflate (RFC 1952, RFC 1950)."""

from __future__ import annotations

import zlib
from typing import Final

INLINE_LIMIT_BYTES: Final = 1 << 20
"""Larger results are decompressed in a thread, however small the input is."""
_WINDOWS: Final = {"gzip": 31, "deflate": 15}


def compress(data: bytes, encoding: str) -> bytes:
    """Compress quickly; the ratio is secondary."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[encoding])
    return compressor.compress(data) + compressor.flush()


class Decompression:
    """Decompresses one body in two steps: up to a limit at once, the remainder in a thread."""

    def __init__(self, data: bytes | memoryview, encoding: str, limit_bytes: int) -> None:
        """The result may have at most `limit_bytes`; errors are raised as `ValueError`."""
        if encoding not in _WINDOWS:
            raise ValueError(f"has the encoding {encoding!r}, expected gzip or deflate")
        self._encoding = encoding
        self._limit_bytes = limit_bytes
        self._decompressor = zlib.decompressobj(_WINDOWS[encoding])
        self._input = data
        self._plain = b""

    def begin(self, limit_bytes: int) -> bytes | None:
        """Return the result if it has at most `limit_bytes`; otherwise None, and `finish` returns it."""
        if limit_bytes <= 0:
            return None
        self._decompress(min(limit_bytes, self._limit_bytes) + 1)
        return None if len(self._plain) > limit_bytes else self.finish()

    def finish(self) -> bytes:
        """Return the whole result; may take long, can run in any thread."""
        if not self._decompressor.eof:
            self._decompress(self._limit_bytes + 1 - len(self._plain))
        if not self._decompressor.eof:
            raise ValueError(f"is truncated {self._encoding} data")
        return self._plain

    def _decompress(self, limit_bytes: int) -> None:
        try:
            output = self._decompressor.decompress(self._input, limit_bytes)
        except zlib.error:
            raise ValueError(f"is not valid {self._encoding} data") from None
        self._input = self._decompressor.unconsumed_tail
        self._plain = self._plain + output if self._plain else output
        if len(self._plain) > self._limit_bytes:
            raise ValueError(f"decompresses to more than the limit of {self._limit_bytes} bytes")
