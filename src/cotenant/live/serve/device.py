"""What is the GPU that a worker sees? Its SMs, whether MPS shares it, its name, and whether it is lost to us."""

from __future__ import annotations

import ctypes
from typing import Final, NamedTuple

_MULTIPROCESSOR_COUNT: Final = 16  # as in cuda.h
_MPS_ENABLED: Final = 133
_NAME_BYTES: Final = 96
_INVALID_CONTEXT: Final = 201


class Device(NamedTuple):
    """The first device of this process."""

    sms: int
    """That its kernels may use: fewer than there are, under MPS."""
    is_mps: bool
    name: str


def own_device() -> Device:
    """As the driver tells this process, which has begun to use it."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuInit(0)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    driver.cuDeviceGetName(name, _NAME_BYTES, 0)
    sms, is_mps = _attribute(driver, _MULTIPROCESSOR_COUNT), _attribute(driver, _MPS_ENABLED)
    return Device(sms, bool(is_mps), name.value.decode(errors="replace"))


def lost_by() -> int:
    """The error with which the driver answers for good, 0 if it does not: a fault elsewhere shows when we wait."""
    code: int = ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()
    return 0 if code == _INVALID_CONTEXT else code  # a library keeps its context to its own threads


def _attribute(driver: ctypes.CDLL, attribute: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
    return value.value
