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
OBJECT_BYTES: Final = 42
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
            size += array.size * OBJECT_BYTES + sum(map(len, array.flat))
    return size


def from_raw(datatype: Datatype, shape: tuple[int, ...], raw: Buffer) -> Array:
    """Return an array over the bytes themselves if possible, which is read-only."""
    if datatype is Datatype.BYTES:
        return _from_length_prefixed(shape, raw)
    expected_bytes = elements(shape) * datatype.width_bytes
    if len(raw) != expected_bytes:
        raise TensorError(f"{datatype.value} of shape {list(shape)} takes {expected_bytes} bytes, received {len(raw)}")
    return np.frombuffer(raw, NUMPY[datatype]).reshape(shape)


def _from_length_prefixed(shape: tuple[int, ...], raw: Buffer) -> Array:
    count = elements(shape)
    view = memoryview(raw)
    if count * 4 > len(view):
        raise TensorError(
            f"BYTES of shape {list(shape)} takes {count} elements of 4 bytes or more, received {len(view)} bytes"
        )
    items: list[bytes] = []
    position = 0
    while position < len(view):
        if position + 4 > len(view):
            raise TensorError(f"the length of element {len(items)} is truncated")
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4 + length
        if position > len(view):
            raise TensorError(f"element {len(items)} is truncated")
        items.append(bytes(view[position - length : position]))
        if len(items) > count:
            break
    if len(items) != count:
        raise TensorError(f"shape {list(shape)} takes {count} elements, received {len(items)} or more")
    return _object_array(items, shape)


def _object_array(items: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(items), np.object_)
    array[:] = items
    return array.reshape(shape)


def to_raw(datatype: Datatype, array: Array) -> bytes:
    """Encode the contents of an array."""
    if datatype is not Datatype.BYTES:
        return array.tobytes()
    parts: list[bytes] = []
    for item in array.ravel():
        content = item if isinstance(item, bytes) else str(item).encode()
        parts += (_LENGTH.pack(len(content)), content)
    return b"".join(parts)


def from_list(datatype: Datatype, shape: tuple[int, ...], data: object) -> Array:
    """Decode nested or flat lists from JSON."""
    flat = _flat(data)
    if len(flat) != elements(shape):
        raise TensorError(f"shape {list(shape)} takes {elements(shape)} elements, received {len(flat)}")
    if datatype is Datatype.BYTES:
        return _object_array([_as_bytes(item) for item in flat], shape)
    if datatype is Datatype.BF16:
        raise TensorError("BF16 cannot be encoded in JSON: send it as binary data")
    wrong = _first_wrong_type(datatype, flat)
    if wrong is not None:
        raise TensorError(f"element {wrong} is {flat[wrong]!r}, which is not {datatype.value}")
    try:
        with np.errstate(over="raise"):
            return np.array(flat, NUMPY[datatype]).reshape(shape)
    except (OverflowError, FloatingPointError, ValueError, TypeError):
        raise TensorError(f"an element does not fit into {datatype.value}") from None


def _flat(data: object) -> list[Any]:
    if not isinstance(data, list):
        raise TensorError("data is not a list")
    for _ in range(64):
        kinds = set(map(type, data))
        if list not in kinds:
            return data
        if len(kinds) > 1:
            raise TensorError("data mixes lists and elements at one depth")
        data = list(itertools.chain.from_iterable(data))
    raise TensorError("data is nested too deeply")


def _as_bytes(item: object) -> bytes:
    if isinstance(item, bytes):  # from a gRPC typed list
        return item
    if not isinstance(item, str):
        raise TensorError(f"{item!r} is not a string, as elements of BYTES must be in JSON")
    return item.encode()


def _first_wrong_type(datatype: Datatype, flat: list[Any]) -> int | None:
    """Return the index of the first element of a wrong type.

    JSON has one number type, and fractions must not be truncated.
    """
    if datatype is Datatype.BOOL:
        if set(map(type, flat)) == {bool}:
            return None
        return next((index for index, item in enumerate(flat) if type(item) is not bool and item not in (0, 1)), None)
    kinds = {int, float} if datatype.value.startswith("FP") else {int}
    if set(map(type, flat)) <= kinds:
        return None
    return next((index for index, item in enumerate(flat) if type(item) not in kinds), None)


def to_list(datatype: Datatype, array: Array) -> list[Any]:
    """Encode as one flat list for JSON."""
    if datatype is Datatype.BF16:
        raise TensorError("BF16 cannot be encoded in JSON: request it as binary data")
    if datatype is not Datatype.BYTES:
        flat = array.ravel()
        if flat.dtype.kind == "f" and not np.isfinite(flat).all():
            raise TensorError("JSON cannot represent values that are not finite: request binary data")
        values: list[Any] = flat.tolist()
        return values
    texts = []
    for item in array.ravel():
        try:
            texts.append(item.decode() if isinstance(item, bytes) else str(item))
        except UnicodeDecodeError:
            raise TensorError("an element is not UTF-8 text: request binary data") from None
    return texts
