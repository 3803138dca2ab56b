"""Reader of the protobuf wire format, as far as ONNX files need it.

It yields views of the file, so that weights are skipped and not copied.
https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, TypeAlias

Field: TypeAlias = tuple[int, int | memoryview]
"""Number of a field, and its value: an integer, or the bytes of a string, message or packed list."""

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_LONGEST_VARINT: Final = 10


def fields(data: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in order; raise `ValueError` if the bytes are no message."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if not number:
            raise ValueError("a field has the number 0")
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in {_FIXED64, _FIXED32}:
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"a field has the wire type {wire}")
        if at + size > end:
            raise ValueError("a field is longer than its message")
        yield number, data[at : at + size]
        at += size


def text(value: int | memoryview) -> str:
    """Return a string field."""
    return message(value).tobytes().decode("utf-8", "replace")


def message(value: int | memoryview) -> memoryview:
    """Return the bytes of a field that is no integer."""
    if isinstance(value, int):
        raise ValueError("a message or string is encoded as an integer")  # noqa: TRY004  the file is wrong, no type
    return value


def integers(value: int | memoryview) -> list[int]:
    """Return a field of 64-bit integers: one of them, or a packed list."""
    if isinstance(value, int):
        return [signed(value)]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(signed(number))
    return numbers


def floats(value: int | memoryview) -> list[float]:
    """Return a field of 32-bit floats: one of them, or a packed list."""
    data = message(value)
    if len(data) % 4:
        raise ValueError("a list of floats has an odd length")
    return [float(number) for (number,) in struct.iter_unpack("<f", data)]


def signed(value: int) -> int:
    """Return a 64-bit integer with its sign."""
    return value - (1 << 64) if value >> 63 else value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(at, min(at + _LONGEST_VARINT, len(data))):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, index + 1
        shift += 7
    raise ValueError("an integer does not end")
