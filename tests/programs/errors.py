"""Bad arguments get the driver's code and never end the program."""

from __future__ import annotations

import ctypes

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

assert code(driver.cuDeviceGet(0)) == "CUDA_ERROR_NOT_INITIALIZED"
assert code(driver.cuInit(1)) == "CUDA_ERROR_INVALID_VALUE"
ok(driver.cuInit(0))
assert code(driver.cuDeviceGet(1)) == "CUDA_ERROR_INVALID_DEVICE"
assert code(driver.cuMemAlloc(4)) == "CUDA_ERROR_INVALID_CONTEXT"
gpu = Gpu()
assert code(driver.cuMemAlloc(0)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuMemAlloc(1 << 40)) == "CUDA_ERROR_OUT_OF_MEMORY"
assert code(driver.cuMemFree(12345)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuModuleLoadData(b"not an image\0")) == "CUDA_ERROR_INVALID_IMAGE"
for lines in (
    b"builtin fill\nparams 4096 4096 8",
    b"params 8 4 8\nbuiltin fill",
):  # parameters do not fit
    assert code(driver.cuModuleLoadData(b"softgpu-image 1\nkernel fill\n" + lines)) == "CUDA_ERROR_INVALID_IMAGE"
assert code(driver.cuModuleLoad(b"/nonexistent")) == "CUDA_ERROR_FILE_NOT_FOUND"
assert code(driver.cuModuleGetFunction(gpu.module, b"absent")) == "CUDA_ERROR_NOT_FOUND"
for bogus in (driver.CUstream(0xDEADBEEF), driver.CUstream(int(gpu.context)), driver.CUstream(3)):
    assert code(driver.cuStreamSynchronize(bogus)) == "CUDA_ERROR_INVALID_HANDLE"
assert code(driver.cuEventQuery(driver.CUevent(1))) == "CUDA_ERROR_INVALID_HANDLE"
assert code(driver.cuCtxSetCurrent(driver.CUcontext(64))) == "CUDA_ERROR_INVALID_CONTEXT"
assert code(driver.cuMemcpyDtoH(np.empty(4), 0x1000, 16)) == "CUDA_ERROR_INVALID_VALUE"
event = ok(driver.cuEventCreate(0))
ok(driver.cuEventDestroy(event))
assert code(driver.cuEventRecord(event, 0)) == "CUDA_ERROR_INVALID_HANDLE"
spin, U64 = gpu.function("spin"), ctypes.c_uint64
assert code(driver.cuLaunchKernel(spin, 0, 1, 1, 1, 1, 1, 0, 0, ((1,), (U64,)), 0)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuLaunchKernel(spin, 1, 1, 1, 2048, 1, 1, 0, 0, ((1,), (U64,)), 0)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 1 << 20, 0, ((1,), (U64,)), 0)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuGraphicsUnregisterResource(0)) == "CUDA_ERROR_NOT_SUPPORTED"
# Attributes that would change kernel execution are refused and counted, not ignored.
NAMES, attribute = driver.CUlaunchAttributeID, driver.CUlaunchAttribute()
config = driver.CUlaunchConfig()
config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1
attribute.value.priority = -1
for name in (NAMES.CU_LAUNCH_ATTRIBUTE_PRIORITY, NAMES.CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT):
    attribute.id, config.numAttrs = name, 1
    config.attrs = [attribute]
    assert code(driver.cuLaunchKernelEx(config, spin, ((1,), (U64,)), 0)) == "CUDA_ERROR_NOT_SUPPORTED"
    assert code(driver.cuStreamSetAttribute(0, name, driver.CUstreamAttrValue())) == "CUDA_ERROR_NOT_SUPPORTED"
attribute.id, attribute.value = NAMES.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, driver.CUlaunchAttributeValue()
config.attrs = [attribute]
ok(driver.cuLaunchKernelEx(config, spin, ((1,), (U64,)), 0))
ok(driver.cuStreamSetAttribute(0, attribute.id, driver.CUstreamAttrValue()))
assert code(driver.cuGetErrorName(driver.CUresult.CUDA_ERROR_NOT_READY)) == "CUDA_SUCCESS"
assert ok(driver.cuGetErrorString(driver.CUresult.CUDA_ERROR_INVALID_VALUE)) == b"invalid argument"

# An illegal address is fatal for the process: all its contexts on the device report it, and no new one can be created.
other = ok(driver.cuCtxCreate(None, 0, gpu.device))
ok(driver.cuCtxSetCurrent(gpu.context))
gpu.launch(gpu.function("fill"), (0x1000, 1.0, 10), (U64, ctypes.c_float, U64))
assert code(driver.cuCtxSynchronize()) == "CUDA_ERROR_ILLEGAL_ADDRESS"
assert code(driver.cuMemAlloc(16)) == "CUDA_ERROR_ILLEGAL_ADDRESS"
ok(driver.cuCtxSetCurrent(other))
assert code(driver.cuMemAlloc(16)) == "CUDA_ERROR_ILLEGAL_ADDRESS"
ok(driver.cuCtxDestroy(other))
assert code(driver.cuCtxDestroy(other)) != "CUDA_SUCCESS"
assert code(driver.cuCtxCreate(None, 0, gpu.device)) == "CUDA_ERROR_ILLEGAL_ADDRESS"
print("refused")
