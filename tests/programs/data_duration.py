"""Launch a kernel whose duration is in device memory, and print elapsed times in nanoseconds and a launch's error."""

from __future__ import annotations

import ctypes
import json

from cuda.bindings import driver
from cuda_helpers import ok

ok(driver.cuInit(0))
ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
image = b"softgpu-image 1\nkernel data\n  params 8\n  duration_data 0\n  bandwidth 50%\n"
function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(image)), b"data"))
pointer = ok(driver.cuMemAlloc(8))
start, end = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))


def launch(address: int) -> driver.CUresult:
    value = ctypes.c_uint64(address)
    addresses = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    return driver.cuLaunchKernel(function, 80, 1, 1, 32, 1, 1, 0, 0, ctypes.addressof(addresses), 0)[0]


elapsed = []
for duration_ns in (3_300_000, 7_700_000):
    ok(driver.cuMemcpyHtoD(pointer, duration_ns.to_bytes(8, "little"), 8))
    ok(driver.cuEventRecord(start, 0))
    assert launch(int(pointer)) == driver.CUresult.CUDA_SUCCESS
    ok(driver.cuEventRecord(end, 0))
    ok(driver.cuEventSynchronize(end))
    elapsed.append(round(ok(driver.cuEventElapsedTime(start, end)) * 1e6))
print(json.dumps({"elapsed": elapsed, "refused": launch(16).name}))
