"""Queries of the CUDA driver about the worker's device."""

from __future__ import annotations

import ctypes
from typing import Final, NamedTuple

_MULTIPROCESSOR_COUNT: Final = 16  # values from cuda.h
_MPS_ENABLED: Final = 133
_NAME_BYTES: Final = 96
_INVALID_CONTEXT: Final = 201


class GpuDevice(NamedTuple):
    """The first device of this process."""

    sms: int
    """SMs that its kernels may use; fewer than the device has, under an MPS limit."""
    is_mps: bool
    name: str


def own_device() -> GpuDevice:
    """Query the driver; the process already uses the device."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuInit(0)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    driver.cuDeviceGetName(name, _NAME_BYTES, 0)
    sms, is_mps = _attribute(driver, _MULTIPROCESSOR_COUNT), _attribute(driver, _MPS_ENABLED)
    return GpuDevice(sms, bool(is_mps), name.value.decode(errors="replace"))


def device_error() -> int:
    """Return the sticky error of the driver, or 0; errors of other MPS clients appear on synchronisation."""
    code: int = ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()
    return 0 if code == _INVALID_CONTEXT else code  # a library may keep its context in its own threads


def _attribute(driver: ctypes.CDLL, attribute: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
    return value.value
