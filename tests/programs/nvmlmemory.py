"""Print as JSON what NVML reports of the device's memory before and after this process allocates some."""

from __future__ import annotations

import ctypes
import json
import sys

import pynvml as nv


def memory_of(device: object) -> dict[str, int]:
    """Return the memory by both versions of the call."""
    plain = nv.nvmlDeviceGetMemoryInfo(device)
    later = nv.nvmlDeviceGetMemoryInfo(device, version=nv.nvmlMemory_v2)
    return {
        **{name: getattr(plain, name) for name in ("total", "free", "used")},
        **{f"{name}_v2": getattr(later, name) for name in ("total", "reserved", "free", "used")},
    }


def main() -> None:
    """Print the report; the argument is the NVML index of the device, and CUDA uses the first visible one."""
    nv.nvmlInit()
    device = nv.nvmlDeviceGetHandleByIndex(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    before = memory_of(device)
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(512 << 20)) == 0
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    after = memory_of(device)
    print(json.dumps({"before": before, "after": after, "cuda": {"free": free.value, "total": total.value}}))


main()
