"""Launches as they were before cuLaunchKernel, through the library's own names."""

from __future__ import annotations

import ctypes

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, ok

INVALID_VALUE, INVALID_HANDLE = 1, 400
COUNT = 1000
gpu = Gpu()
libcuda = ctypes.CDLL("libcuda.so.1")
function = ctypes.c_void_p(int(gpu.function("vecadd")))
host = np.arange(COUNT, dtype=np.float32)
pointers = [int(ok(driver.cuMemAlloc(host.nbytes))) for _ in range(3)]
for pointer in pointers[:2]:
    ok(driver.cuMemcpyHtoD(pointer, host, host.nbytes))

assert libcuda.cuLaunch(function) == INVALID_VALUE, "no block shape yet"
assert libcuda.cuFuncSetBlockShape(function, 0, 1, 1) == INVALID_VALUE
assert libcuda.cuFuncSetBlockShape(function, 2048, 1, 1) == INVALID_VALUE
assert libcuda.cuFuncSetBlockShape(ctypes.c_void_p(64), 1, 1, 1) == INVALID_HANDLE
assert libcuda.cuFuncSetBlockShape(function, 256, 1, 1) == 0
assert libcuda.cuFuncSetSharedSize(function, 1 << 30) == INVALID_VALUE
assert libcuda.cuFuncSetSharedSize(function, 0) == 0
assert libcuda.cuLaunchGrid(function, 4, 1) == INVALID_VALUE, "no parameters yet"
for index, pointer in enumerate(pointers):
    value = ctypes.c_uint64(pointer)
    assert libcuda.cuParamSetv(function, 8 * index, ctypes.byref(value), 8) == 0
assert libcuda.cuParamSeti(function, 24, COUNT) == 0
assert libcuda.cuParamSeti(function, 28, 0) == 0
assert libcuda.cuParamSeti(function, -4, 0) == INVALID_VALUE
assert libcuda.cuParamSetf(function, 4096, ctypes.c_float(0)) == INVALID_VALUE
assert libcuda.cuParamSetSize(function, 5000) == INVALID_VALUE
assert libcuda.cuParamSetSize(function, 32) == 0
stream = ok(driver.cuStreamCreate(0))
assert libcuda.cuLaunchGrid(function, 0, 1) == INVALID_VALUE
assert libcuda.cuLaunchGridAsync(function, 4, 1, ctypes.c_void_p(int(stream))) == 0
ok(driver.cuStreamSynchronize(stream))
out = np.empty_like(host)
ok(driver.cuMemcpyDtoH(out, pointers[2], out.nbytes))
np.testing.assert_array_equal(out, host * 2)
assert libcuda.cuLaunchGrid(function, 4, 1) == 0
assert libcuda.cuLaunch(function) == 0
ok(driver.cuCtxSynchronize())
print("old launches")
