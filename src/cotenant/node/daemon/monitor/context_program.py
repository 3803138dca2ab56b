"""Measure the device memory of an empty CUDA context.

`python -m cotenant.node.daemon.monitor.context_program` creates a context on the first visible device, prints what NVML
accounts to its process, and exits. A process that loads a driver becomes a program on the device, so the node itself
does not load it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import uuid
from collections.abc import Mapping
from typing import Any, Final

import pynvml

LEAST_FREE_BYTES: Final = 2 << 30
"""A context takes some hundred MiB; with less free memory than this, no context is created for a measurement."""
_PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"


def measure(environ: Mapping[str, str]) -> int:
    """Return the bytes of a context on the first device; 0 if it is unknown or memory is scarce."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context, name = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
    _check(driver.cuInit(0))
    _check(driver.cuDeviceGet(ctypes.byref(device), 0))
    _check(driver.cuDeviceGetUuid_v2(name, device))
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.UUID(bytes=bytes(name))}".encode())
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    is_exclusive = pynvml.nvmlDeviceGetComputeMode(handle) != pynvml.NVML_COMPUTEMODE_DEFAULT
    if memory.total - memory.used < LEAST_FREE_BYTES or (is_exclusive and _PIPE_VARIABLE not in environ):
        return 0
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    used_bytes = _used_bytes(handle, os.getpid())
    driver.cuDevicePrimaryCtxRelease_v2(device)
    return used_bytes


def _used_bytes(handle: Any, pid: int) -> int:
    queries = (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetMPSComputeRunningProcesses)
    for list_processes in queries:
        with contextlib.suppress(pynvml.NVMLError):
            for process in list_processes(handle):
                if process.pid == pid and process.usedGpuMemory:
                    return int(process.usedGpuMemory)
    return 0


def _check(code: int) -> None:
    if code:
        raise SystemExit(1)


if __name__ == "__main__":
    print(measure(os.environ))
