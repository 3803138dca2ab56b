"""How is what came packed unpacked, and what goes out packed? By gzip or deflate, within a bound."""

from __future__ import annotations

import zlib
from typing import Final

_WINDOWS: Final = {"gzip": 31, "deflate": 15}


def pack(data: bytes, encoding: str) -> bytes:
    """By gzip or deflate; quick rather than small."""
    packer = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[encoding])
    return packer.compress(data) + packer.flush()


def unpack(data: bytes | memoryview, encoding: str, limit: int) -> bytes:
    """Undo gzip or deflate, up to a limit."""
    if encoding not in _WINDOWS:
        raise ValueError(f"packed by {encoding!r}, expected gzip or deflate")
    unpacker = zlib.decompressobj(_WINDOWS[encoding])
    try:
        plain = unpacker.decompress(data, limit + 1)
    except zlib.error:
        raise ValueError(f"is no {encoding}") from None
    if len(plain) > limit:
        raise ValueError(f"unpacks to more than the {limit} bytes that are allowed")
    if not unpacker.eof:
        raise ValueError(f"is {encoding} that was cut off")
    return plain
