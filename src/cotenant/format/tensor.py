"""How do tensors look on the wire? Raw little-endian elements, or JSON lists; in memory they are numpy arrays.

BF16 has no numpy type: its arrays are of uint16, the bits as they came. BYTES are arrays of objects, each `bytes`; on
the wire every element has its length in front, as four bytes.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cotenant.domain.tensor import Datatype, elements

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
"""What an element of BYTES takes beside its content and its pointer: about what its object and its allocation do."""
_LENGTH: Final = struct.Struct("<I")


class TensorError(ValueError):
    """What a tensor's content is not; the caller knows the tensor's name."""


def size_of(arrays: Iterable[Any]) -> int:
    """What these tensors hold, in bytes; of BYTES also the elements, each an object of its own."""
    size = 0
    for array in arrays:
        size += array.nbytes
        if array.dtype.hasobject:
            size += array.size * _OBJECT_BYTES + sum(map(len, array.flat))
    return size


def from_raw(datatype: Datatype, shape: tuple[int, ...], raw: Buffer) -> Array:
    """An array over the bytes themselves where it can be, so read-only."""
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
    """The content of an array as it goes over the wire."""
    if datatype is not Datatype.BYTES:
        return array.tobytes()
    parts: list[bytes] = []
    for one in array.ravel():
        content = one if isinstance(one, bytes) else str(one).encode()
        parts += (_LENGTH.pack(len(content)), content)
    return b"".join(parts)


def from_list(datatype: Datatype, shape: tuple[int, ...], data: object) -> Array:
    """From JSON: nested lists as the shape has it, or one flat list of all elements."""
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
    if isinstance(one, bytes):  # as gRPC has them
        return one
    if not isinstance(one, str):
        raise TensorError(f"{one!r} is no text, as elements of BYTES are in JSON")
    return one.encode()


def _first_unlike(datatype: Datatype, flat: list[Any]) -> int | None:
    """JSON has one kind of number; a fraction given for an integer would be cut in silence."""
    if datatype is Datatype.BOOL:
        if set(map(type, flat)) == {bool}:
            return None
        return next((place for place, one in enumerate(flat) if type(one) is not bool and one not in (0, 1)), None)
    kinds = {int, float} if datatype.value.startswith("FP") else {int}
    if set(map(type, flat)) <= kinds:
        return None
    return next((place for place, one in enumerate(flat) if type(one) not in kinds), None)


def to_list(datatype: Datatype, array: Array) -> list[Any]:
    """For JSON: one flat list."""
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
