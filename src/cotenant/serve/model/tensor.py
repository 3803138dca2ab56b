"""Tensor descriptions: datatype, shape and size."""

from __future__ import annotations

import enum
import math
from typing import Final

from cotenant.units.value import Value

ANY: Final = -1
"""A dimension whose size the request chooses."""


class Datatype(enum.Enum):
    """The datatypes of the Open Inference Protocol."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    BF16 = "BF16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"

    @property
    def width_bytes(self) -> int:
        """Size of one element in bytes; zero if elements have variable length."""
        return _WIDTHS[self]


_WIDTHS: Final = {
    Datatype.BOOL: 1,
    Datatype.UINT8: 1,
    Datatype.UINT16: 2,
    Datatype.UINT32: 4,
    Datatype.UINT64: 8,
    Datatype.INT8: 1,
    Datatype.INT16: 2,
    Datatype.INT32: 4,
    Datatype.INT64: 8,
    Datatype.FP16: 2,
    Datatype.BF16: 2,
    Datatype.FP32: 4,
    Datatype.FP64: 8,
    Datatype.BYTES: 0,
}


class TensorSpec(Value, frozen=True):
    """An input or an output of a model; the first dimension is the batch if the model supports batching."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of this shape matches."""
        if len(shape) != len(self.shape):
            return False
        for expected, actual in zip(self.shape, shape, strict=True):  # noqa: SIM110  a loop is faster, and every request runs it
            if expected not in (actual, ANY):
                return False
        return True


def elements(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a tensor."""
    return math.prod(shape)
