"""How is what came packed unpacked, and what goes out packed? By gzip or deflate, within a bound."""

from __future__ import annotations

import zlib
from typing import Final

AT_ONCE_BYTES: Final = 1 << 20
"""What becomes more is unpacked on another thread, however little came: nobody else should wait for it."""
_WINDOWS: Final = {"gzip": 31, "deflate": 15}


def pack(data: bytes, encoding: str) -> bytes:
    """By gzip or deflate; quick rather than small."""
    packer = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[encoding])
    return packer.compress(data) + packer.flush()


class Unpacking:
    """Something packed by gzip or deflate: little of it is unpacked here and now, the rest wherever there is time."""

    def __init__(self, data: bytes | memoryview, encoding: str, limit_bytes: int) -> None:
        """It may unpack to so much; a `ValueError` here and below says what is wrong with it."""
        if encoding not in _WINDOWS:
            raise ValueError(f"packed by {encoding!r}, expected gzip or deflate")
        self._encoding = encoding
        self._limit_bytes = limit_bytes
        self._unpacker = zlib.decompressobj(_WINDOWS[encoding])
        self._rest = data
        self._plain = b""

    def begin(self, most_bytes: int) -> bytes | None:
        """All of it, if it is no more than that; None: it is, and `finish` has it."""
        if most_bytes <= 0:
            return None
        self._go_on(min(most_bytes, self._limit_bytes) + 1)
        return None if len(self._plain) > most_bytes else self.finish()

    def finish(self) -> bytes:
        """All of it, on any thread; takes as long as it takes."""
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
