"""Wait for a kernel of the given number of seconds; print what every kind of call then returns, and stay."""

from __future__ import annotations

import ctypes
import sys
import threading

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
side = ok(driver.cuStreamCreate(1))
event, early = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
memory = ok(driver.cuMemAlloc(1 << 20))
codes: list[int] = []
called_back = threading.Event()


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
def callback(_stream: int, status: int, _data: int) -> None:
    codes.append(status)
    called_back.set()


ok(driver.cuEventRecord(early, side))
ok(driver.cuStreamSynchronize(side))
gpu.spin(int(float(sys.argv[1]) * 1e9), side)
ok(driver.cuEventRecord(event, side))
ok(driver.cuStreamAddCallback(side, ctypes.cast(callback, ctypes.c_void_p).value, 0, 0))
spin, U64 = gpu.function("spin"), ctypes.c_uint64
print("at work", flush=True)
answers = [
    code(driver.cuStreamSynchronize(side)),
    code(driver.cuStreamQuery(side)),
    code(driver.cuEventQuery(event)),
    code(driver.cuEventSynchronize(event)),
    code(driver.cuEventElapsedTime(early, event)),
    code(driver.cuCtxSynchronize()),
    code(driver.cuMemAlloc(16)),
    code(driver.cuMemcpyDtoH(np.empty(4), memory, 16)),
    code(driver.cuMemsetD8(memory, 0, 16)),
    code(driver.cuMemFree(memory)),
    code(driver.cuStreamCreate(1)),
    code(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, side, ((1,), (U64,)), 0)),
    code(driver.cuDevicePrimaryCtxRetain(gpu.device)),
]
assert called_back.wait(60)
answers.append(driver.CUresult(codes[0]).name)
print(" ".join(answers), flush=True)
sys.stdin.read()
# Ending the context is allowed; whether a new one helps depends on the fault.
ok(driver.cuCtxDestroy(gpu.context))
print(code(driver.cuCtxCreate(None, 0, gpu.device)), flush=True)
