"""Free remaining objects without a current context, as garbage collectors do."""

from __future__ import annotations

from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
before = ok(driver.cuMemGetInfo())[0]
memory = ok(driver.cuMemAlloc(1 << 20))
pinned = ok(driver.cuMemAllocHost(1 << 12))
stream = ok(driver.cuStreamCreate(0))
event = ok(driver.cuEventCreate(0))
context = ok(driver.cuCtxPopCurrent())
assert code(driver.cuMemAlloc(4)) == "CUDA_ERROR_INVALID_CONTEXT"
assert code(driver.cuMemFree(12345)) == "CUDA_ERROR_INVALID_CONTEXT"
ok(driver.cuEventDestroy(event))
assert code(driver.cuEventDestroy(event)) == "CUDA_ERROR_INVALID_HANDLE"
ok(driver.cuStreamDestroy(stream))
ok(driver.cuMemFree(memory))
assert code(driver.cuMemFree(memory)) == "CUDA_ERROR_INVALID_CONTEXT"
ok(driver.cuMemFreeHost(pinned))
ok(driver.cuCtxPushCurrent(context))
assert code(driver.cuMemFree(memory)) == "CUDA_ERROR_INVALID_VALUE"
assert ok(driver.cuMemGetInfo())[0] == before
print("freed")
