"""A launch into a stream of another context is refused, and later launches work."""

from __future__ import annotations

import ctypes

from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
spin = gpu.function("spin")
ok(driver.cuCtxCreate(None, 0, gpu.device))
foreign = ok(driver.cuStreamCreate(0))
ok(driver.cuCtxSetCurrent(gpu.context))
values = ((50_000,), (ctypes.c_uint64,))
for stream in (0, 0, foreign, 0, 0):
    print(code(driver.cuLaunchKernel(spin, 80, 1, 1, 128, 1, 1, 0, stream, values, 0)))
ok(driver.cuCtxSynchronize())
