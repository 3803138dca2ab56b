"""Tensor contents: raw little-endian elements or JSON lists on the wire, numpy arrays in memory.

BF16 has no numpy type: its arrays are of uint16. BYTES are arrays of `bytes` objects; on the wire, every element has a
4-byte length in front.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cotenant.serve.model.tensor import Datatype, elements

Array = npt.NDArray[Any]
Buffer = bytes | memoryview

NUMPY: Final[dict[Datatype, np.dtype[Any]]] = {
    Datatype.BOOL: np.dtype(np.bool_),
    Datatype.UINT8: np.dtype("<u1"),
    Datatype.UINT16: np.dtype("<u2"),
    Datatype.UINT32: np.dtype("<u4"),
    Datatype.UINT64: np.dtype("<u8"),
    Datatype.INT8: np.dtype("<i1"),
    Datatype.INT16: np.dtype("<i2"),
    Datatype.INT32: np.dtype("<i4"),
    Datatype.INT64: np.dtype("<i8"),
    Datatype.FP16: np.dtype("<f2"),
    Datatype.BF16: np.dtype("<u2"),
    Datatype.FP32: np.dtype("<f4"),
    Datatype.FP64: np.dtype("<f8"),
    Datatype.BYTES: np.dtype(np.object_),
}
_OBJECT_BYTES: Final = 42
"""Approximate memory of a BYTES element in addition to its contents and pointer."""
_LENGTH: Final = struct.Struct("<I")


class TensorError(ValueError):
    """The contents of a tensor are invalid; the caller adds the tensor's name."""


def size_of(arrays: Iterable[Any]) -> int:
    """Return the memory of these tensors in bytes, including the elements of BYTES."""
    size = 0
    for array in arrays:
        size += array.nbytes
        if array.dtype.hasobject:
            size += array.size * _OBJECT_BYTES + sum(map(len, array.flat))
    return size


def from_raw(datatype: Datatype, shape: tuple[int, ...], raw: Buffer) -> Array:
    """Return an array over the bytes themselves if possible, which is read-only."""
    if datatype is Datatype.BYTES:
        return _from_counted(shape, raw)
    wanted = elements(shape) * datatype.width_bytes
    if len(raw) != wanted:
        raise TensorError(f"{datatype.value} of shape {list(shape)} takes {wanted} bytes, {len(raw)} came")
    return np.frombuffer(raw, NUMPY[datatype]).reshape(shape)


def _from_counted(shape: tuple[int, ...], raw: Buffer) -> Array:
    wanted = elements(shape)
    view = memoryview(raw)
    if wanted * 4 > len(view):
        raise TensorError(f"BYTES of shape {list(shape)} takes {wanted} elements of 4 bytes or more, {len(view)} came")
    found: list[bytes] = []
    place = 0
    while place < len(view):
        if place + 4 > len(view):
            raise TensorError(f"the length of element {len(found)} is cut off")
        (length,) = _LENGTH.unpack_from(view, place)
        place += 4 + length
        if place > len(view):
            raise TensorError(f"element {len(found)} is cut off")
        found.append(bytes(view[place - length : place]))
        if len(found) > wanted:
            break
    if len(found) != wanted:
        raise TensorError(f"shape {list(shape)} takes {wanted} elements, {len(found)} or more came")
    return _objects(found, shape)


def _objects(found: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(found), np.object_)
    array[:] = found
    return array.reshape(shape)


def to_raw(datatype: Datatype, array: Array) -> bytes:
    """Encode the contents of an array."""
    if datatype is not Datatype.BYTES:
        return array.tobytes()
    parts: list[bytes] = []
    for one in array.ravel():
        content = one if isinstance(one, bytes) else str(one).encode()
        parts += (_LENGTH.pack(len(content)), content)
    return b"".join(parts)


def from_list(datatype: Datatype, shape: tuple[int, ...], data: object) -> Array:
    """Decode nested or flat lists from JSON."""
    flat = _flat(data)
    if len(flat) != elements(shape):
        raise TensorError(f"shape {list(shape)} takes {elements(shape)} elements, {len(flat)} came")
    if datatype is Datatype.BYTES:
        return _objects([_as_bytes(one) for one in flat], shape)
    if datatype is Datatype.BF16:
        raise TensorError("BF16 has no form in JSON: send it as binary data")
    wrong = _first_unlike(datatype, flat)
    if wrong is not None:
        raise TensorError(f"element {wrong} is {flat[wrong]!r}, which is no {datatype.value}")
    try:
        with np.errstate(over="raise"):
            return np.array(flat, NUMPY[datatype]).reshape(shape)
    except (OverflowError, FloatingPointError, ValueError, TypeError):
        raise TensorError(f"an element does not fit into {datatype.value}") from None


def _flat(data: object) -> list[Any]:
    if not isinstance(data, list):
        raise TensorError("data is a list")
    for _ in range(64):
        kinds = set(map(type, data))
        if list not in kinds:
            return data
        if len(kinds) > 1:
            raise TensorError("data mixes lists and elements at one depth")
        data = list(itertools.chain.from_iterable(data))
    raise TensorError("data is nested deeper than any tensor")


def _as_bytes(one: object) -> bytes:
    if isinstance(one, bytes):  # from a gRPC typed list
        return one
    if not isinstance(one, str):
        raise TensorError(f"{one!r} is no text, as elements of BYTES are in JSON")
    return one.encode()


def _first_unlike(datatype: Datatype, flat: list[Any]) -> int | None:
    """Return the index of the first element of a wrong type.

    JSON has one number type, and fractions must not be truncated.
    """
    if datatype is Datatype.BOOL:
        if set(map(type, flat)) == {bool}:
            return None
        return next((place for place, one in enumerate(flat) if type(one) is not bool and one not in (0, 1)), None)
    kinds = {int, float} if datatype.value.startswith("FP") else {int}
    if set(map(type, flat)) <= kinds:
        return None
    return next((place for place, one in enumerate(flat) if type(one) not in kinds), None)


def to_list(datatype: Datatype, array: Array) -> list[Any]:
    """Encode as one flat list for JSON."""
    if datatype is Datatype.BF16:
        raise TensorError("BF16 has no form in JSON: ask for it as binary data")
    if datatype is not Datatype.BYTES:
        flat = array.ravel()
        if flat.dtype.kind == "f" and not np.isfinite(flat).all():
            raise TensorError("JSON has no word for values that are not finite: ask for binary data")
        listed: list[Any] = flat.tolist()
        return listed
    texts = []
    for one in array.ravel():
        try:
            texts.append(one.decode() if isinstance(one, bytes) else str(one))
        except UnicodeDecodeError:
            raise TensorError("an element is no UTF-8 text: ask for binary data") from None
    return texts
