"""Every built-in kernel computes what numpy computes, by module and by library."""

from __future__ import annotations

import ctypes

import numpy as np
from cuda.bindings import driver
from cuda_helpers import IMAGE, Gpu, ok

U64, F32 = ctypes.c_uint64, ctypes.c_float
gpu = Gpu()
rng = np.random.default_rng(3)
count = 10007
a, b = rng.random(count, np.float32), rng.random(count, np.float32)
pa, pb, pc = gpu.upload(a), gpu.upload(b), gpu.upload(np.zeros(count, np.float32))


def download(pointer: object, length: int) -> np.ndarray:
    out = np.empty(length, np.float32)
    ok(driver.cuMemcpyDtoH(out, pointer, out.nbytes))
    return out


gpu.launch(gpu.function("vecadd"), (int(pa), int(pb), int(pc), count), (U64,) * 4)
np.testing.assert_array_equal(download(pc, count), a + b)
gpu.launch(gpu.function("saxpy"), (2.5, int(pa), int(pb), count), (F32, U64, U64, U64))
np.testing.assert_allclose(download(pb, count), np.float32(2.5) * a + b, rtol=1e-6)
gpu.launch(gpu.function("reduce"), (int(pa), int(pc), count), (U64,) * 3)
np.testing.assert_allclose(download(pc, 1), [a.sum(dtype=np.float64)], rtol=1e-6)
gpu.launch(gpu.function("fill"), (int(pc), 7.0, count), (U64, F32, U64))
np.testing.assert_array_equal(download(pc, count), np.full(count, 7, np.float32))
m, n, k = 17, 23, 31
left, right = rng.random((m, k), np.float32), rng.random((k, n), np.float32)
pl, pr = gpu.upload(left), gpu.upload(right)
gpu.launch(gpu.function("gemm"), (int(pl), int(pr), int(pc), m, n, k), (U64,) * 6)
np.testing.assert_allclose(download(pc, m * n).reshape(m, n), left @ right, rtol=1e-5)

library = ok(driver.cuLibraryLoadData(IMAGE, [], [], 0, [], [], 0))
assert ok(driver.cuLibraryGetKernelCount(library)) == 6
kernel = ok(driver.cuLibraryGetKernel(library, b"vecadd"))
assert ok(driver.cuKernelGetName(kernel)) == b"vecadd"
function = ok(driver.cuKernelGetFunction(kernel))
pb = gpu.upload(b)
gpu.launch(function, (int(pa), int(pb), int(pc), count), (U64,) * 4)
np.testing.assert_array_equal(download(pc, count), a + b)
assert ok(driver.cuFuncGetParamInfo(function, 3)) == (24, 8)
free, total = ok(driver.cuMemGetInfo())
assert total - free >= 3 * a.nbytes
print("computed")
