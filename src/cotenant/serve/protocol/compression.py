"""Bounded compression and decompression with gzip or deflate (RFC 1952, RFC 1950)."""

from __future__ import annotations

import zlib
from typing import Final

INLINE_LIMIT_BYTES: Final = 1 << 20
"""Larger results are decompressed in a thread, however small the input is."""
_WINDOWS: Final = {"gzip": 31, "deflate": 15}


def compress(data: bytes, encoding: str) -> bytes:
    """Compress quickly; the ratio is secondary."""
    packer = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[encoding])
    return packer.compress(data) + packer.flush()


class Decompression:
    """Decompresses one body in two steps: up to a limit at once, the remainder in a thread."""

    def __init__(self, data: bytes | memoryview, encoding: str, limit_bytes: int) -> None:
        """The result may have at most `limit_bytes`; errors are raised as `ValueError`."""
        if encoding not in _WINDOWS:
            raise ValueError(f"packed by {encoding!r}, expected gzip or deflate")
        self._encoding = encoding
        self._limit_bytes = limit_bytes
        self._unpacker = zlib.decompressobj(_WINDOWS[encoding])
        self._rest = data
        self._plain = b""

    def begin(self, most_bytes: int) -> bytes | None:
        """Return the result if it has at most `most_bytes`; otherwise None, and `finish` returns it."""
        if most_bytes <= 0:
            return None
        self._go_on(min(most_bytes, self._limit_bytes) + 1)
        return None if len(self._plain) > most_bytes else self.finish()

    def finish(self) -> bytes:
        """Return the whole result; may take long, can run in any thread."""
        if not self._unpacker.eof:
            self._go_on(self._limit_bytes + 1 - len(self._plain))
        if not self._unpacker.eof:
            raise ValueError(f"is {self._encoding} that was cut off")
        return self._plain

    def _go_on(self, most_bytes: int) -> None:
        try:
            more = self._unpacker.decompress(self._rest, most_bytes)
        except zlib.error:
            raise ValueError(f"is no {self._encoding}") from None
        self._rest = self._unpacker.unconsumed_tail
        self._plain = self._plain + more if self._plain else more
        if len(self._plain) > self._limit_bytes:
            raise ValueError(f"unpacks to more than the {self._limit_bytes} bytes that are allowed")
