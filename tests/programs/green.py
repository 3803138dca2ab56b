"""Green contexts are parts of a device's SMs: their sizes, their streams, their share of the device, and their end."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from cuda.bindings import driver
from cuda_helpers import IMAGE, code, ok

least, step = (int(word) for word in sys.argv[1:3])
ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
primary = ok(driver.cuDevicePrimaryCtxRetain(device))
ok(driver.cuCtxSetCurrent(primary))
start_bytes = ok(driver.cuMemGetInfo())[0]
SM = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
INVALID = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_INVALID
NONBLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
DEFAULT = int(driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
device_resource = ok(driver.cuDeviceGetDevResource(device, SM))
count = device_resource.sm.smCount
attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
assert count == ok(driver.cuDeviceGetAttribute(attribute, device))

# Parts are rounded up to the architecture's granularity; the remainder is returned, and no SM is lost.
for wanted in (0, 1, least, least + 1, count // 2):
    size = max(least, -(-wanted // step) * step)
    parts, groups, rest = ok(driver.cuDevSmResourceSplitByCount(count, device_resource, 0, wanted))
    assert groups == count // size, (wanted, groups)
    assert all(part.sm.smCount == size for part in parts[:groups])
    rest_sms = rest.sm.smCount if rest.type == SM else 0
    assert groups * size + rest_sms == count
    assert (rest.type == INVALID) == (rest_sms == 0)
assert code(driver.cuDevSmResourceSplitByCount(1, device_resource, 0, count + 1)) == "CUDA_ERROR_INVALID_VALUE"

# One part and the rest of it, a green context of each.
parts, groups, rest = ok(driver.cuDevSmResourceSplitByCount(1, device_resource, 0, least))
assert groups == 1
answer = driver.cuDevSmResourceSplitByCount(1, parts[0], 0, least)
assert code(answer) == "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"  # not without a green context between
small_desc, large_desc = (ok(driver.cuDevResourceGenerateDesc([item], 1)) for item in (parts[0], rest))
answer = driver.cuDevResourceGenerateDesc([parts[0], device_resource], 2)
assert code(answer) == "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
assert code(driver.cuGreenCtxCreate(small_desc, device, 0)) == "CUDA_ERROR_INVALID_VALUE"
small, large = (ok(driver.cuGreenCtxCreate(desc, device, DEFAULT)) for desc in (small_desc, large_desc))
assert ok(driver.cuGreenCtxGetDevResource(small, SM)).sm.smCount == parts[0].sm.smCount
context = ok(driver.cuCtxFromGreenCtx(small))
assert ok(driver.cuCtxGetDevResource(context, SM)).sm.smCount == parts[0].sm.smCount
assert code(driver.cuCtxDestroy(context)) == "CUDA_ERROR_INVALID_CONTEXT"
assert code(driver.cuGreenCtxStreamCreate(small, 0, 0)) == "CUDA_ERROR_INVALID_VALUE"
narrow, wide = (ok(driver.cuGreenCtxStreamCreate(item, NONBLOCKING, 0)) for item in (small, large))
assert int(ok(driver.cuStreamGetGreenCtx(narrow))) == int(small)
assert [int(handle) for handle in ok(driver.cuStreamGetCtx_v2(narrow))] == [int(primary), int(small)]

# The primary context's code runs on a green context's stream, on as many SMs as it has: a grid of one block per SM of
# the whole device takes one wave on the device and as many more as the part is smaller.
module = ok(
    driver.cuModuleLoadData(
        IMAGE.replace(b"block_ns 20000", b"block_ns 5000000\n  max_threads 1024\n  blocks_per_sm 1")
    )
)
gemm = ok(driver.cuModuleGetFunction(module, b"gemm"))
memory = ok(driver.cuMemAlloc(4096))
ok(driver.cuMemsetD32(memory, 0, 1024))
values = ((int(memory), int(memory), int(memory), 4, 4, 4), (ctypes.c_uint64,) * 6)
ordinary, opener = (ok(driver.cuStreamCreate(NONBLOCKING)) for _ in range(2))
GATE = int(memory) + 2048


def milliseconds(stream: object) -> float:
    """Return the time of the kernel alone: all work is queued behind a gate, so submission time does not count."""
    begin, end = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    ok(driver.cuStreamWaitValue32(stream, GATE, 1, 0))
    ok(driver.cuEventRecord(begin, stream))
    ok(driver.cuLaunchKernel(gemm, count, 1, 1, 1024, 1, 1, 0, stream, values, 0))
    ok(driver.cuEventRecord(end, stream))
    ok(driver.cuStreamWriteValue32(opener, GATE, 1, 0))
    ok(driver.cuStreamSynchronize(stream))
    ok(driver.cuStreamWriteValue32(opener, GATE, 0, 0))
    ok(driver.cuStreamSynchronize(opener))
    return float(ok(driver.cuEventElapsedTime(begin, end)))


waves = -(-count // parts[0].sm.smCount)
assert round(milliseconds(narrow) / milliseconds(ordinary)) == waves

# An event gathers all streams of a green context; another one's streams wait for it.
fill = ok(driver.cuModuleGetFunction(module, b"fill"))
types = (ctypes.c_uint64, ctypes.c_float, ctypes.c_uint64)
event = ok(driver.cuEventCreate(0))
second = ok(driver.cuGreenCtxStreamCreate(small, NONBLOCKING, 0))
for index, stream in enumerate((narrow, second)):
    ok(driver.cuLaunchKernel(gemm, count, 1, 1, 1024, 1, 1, 0, stream, values, 0))
    ok(driver.cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, ((int(memory) + 1024 + 4 * index, 1.0, 1), types), 0))
ok(driver.cuGreenCtxRecordEvent(small, event))
ok(driver.cuGreenCtxWaitEvent(large, event))
back = np.zeros(2, np.float32)
ok(driver.cuMemcpyDtoHAsync(back, int(memory) + 1024, 8, wide))
ok(driver.cuStreamSynchronize(wide))
assert list(back) == [1.0, 1.0]
assert code(driver.cuEventQuery(event)) == "CUDA_SUCCESS"

# Memory allocated in a green context belongs to the primary context, and outlives the green one.
ok(driver.cuCtxPushCurrent(context))
assert (
    ok(driver.cuCtxGetExecAffinity(driver.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT)).param.smCount.val == least
)
allocation = ok(driver.cuMemAlloc(1 << 20))
ok(driver.cuMemsetD8(allocation, 7, 16))
ok(driver.cuCtxPopCurrent())
ok(driver.cuGreenCtxDestroy(small))
assert code(driver.cuGreenCtxDestroy(small)) == "CUDA_ERROR_INVALID_HANDLE"
assert code(driver.cuStreamQuery(narrow)) == "CUDA_ERROR_INVALID_HANDLE"
out = np.zeros(16, np.uint8)
ok(driver.cuMemcpyDtoH(out, allocation, 16))
assert (out == 7).all()
ok(driver.cuMemFree(allocation))
ok(driver.cuMemFree(memory))
ok(driver.cuGreenCtxDestroy(large))
assert ok(driver.cuMemGetInfo())[0] == start_bytes
ok(driver.cuDevicePrimaryCtxRelease(device))
assert ok(driver.cuDevicePrimaryCtxGetState(device))[1] == 0
print("green")
