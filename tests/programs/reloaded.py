"""Load and unload modules, so that the driver may give the same handle to another kernel."""

from __future__ import annotations

import ctypes

from cuda.bindings import driver
from cuda_helpers import ok

ok(driver.cuInit(0))
context = ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
for number in range(20):
    image = f"softgpu-image 1\nkernel kernel{number}\n params 8\n duration_param 0\n".encode()
    module = ok(driver.cuModuleLoadData(image))
    function = ok(driver.cuModuleGetFunction(module, f"kernel{number}".encode()))
    for _ in range(2):
        ok(driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, ((1000,), (ctypes.c_uint64,)), 0))
    ok(driver.cuCtxSynchronize())
    ok(driver.cuModuleUnload(module))
print("reloaded")
