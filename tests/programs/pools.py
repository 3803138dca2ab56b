"""Memory pools: the current pool, the pools of each location, refused properties, and their counters."""

from __future__ import annotations

from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

UNIT = 2 << 20
PINNED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
MANAGED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED
Kind = driver.CUmemLocationType
Attribute = driver.CUmemPool_attribute
gpu = Gpu()


def location(kind: driver.CUmemLocationType, number: int = 0) -> driver.CUmemLocation:
    result = driver.CUmemLocation()
    result.type = kind
    result.id = number
    return result


def pool_props(
    kind: driver.CUmemLocationType, number: int = 0, *, handles: int = 0, limit: int = 0
) -> driver.CUmemPoolProps:
    props = driver.CUmemPoolProps()
    props.allocType = PINNED
    props.location = location(kind, number)
    props.handleTypes = driver.CUmemAllocationHandleType(handles)
    props.maxSize = limit
    return props


def get(pool: driver.CUmemoryPool, name: str) -> int:
    return int(ok(driver.cuMemPoolGetAttribute(pool, getattr(Attribute, f"CU_MEMPOOL_ATTR_{name}"))))


device = location(Kind.CU_MEM_LOCATION_TYPE_DEVICE)
default = ok(driver.cuDeviceGetDefaultMemPool(0))
assert int(ok(driver.cuMemGetDefaultMemPool(device, PINNED))) == int(default)
assert code(driver.cuMemPoolDestroy(default)) == "CUDA_ERROR_INVALID_VALUE"
own = ok(driver.cuMemPoolCreate(pool_props(Kind.CU_MEM_LOCATION_TYPE_DEVICE)))
ok(driver.cuMemSetMemPool(device, PINNED, own))
assert int(ok(driver.cuDeviceGetMemPool(0))) == int(ok(driver.cuMemGetMemPool(device, PINNED))) == int(own)
pointer = ok(driver.cuMemAllocAsync(UNIT, 0))
assert get(own, "USED_MEM_CURRENT") == UNIT
assert get(default, "USED_MEM_CURRENT") == 0
handle = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
assert int(ok(driver.cuPointerGetAttribute(handle, pointer))) == int(own)
ok(driver.cuMemPoolDestroy(own))
assert int(ok(driver.cuDeviceGetMemPool(0))) == int(default)
ok(driver.cuMemFreeAsync(pointer, 0))

# Other locations have their own pools, separate from the device's.
host = location(Kind.CU_MEM_LOCATION_TYPE_HOST)
anywhere = location(Kind.CU_MEM_LOCATION_TYPE_NONE)
pools = {
    int(ok(driver.cuMemGetDefaultMemPool(*one))) for one in ((device, PINNED), (host, PINNED), (anywhere, MANAGED))
}
assert len(pools) == 3
assert code(driver.cuMemSetMemPool(host, PINNED, default)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuMemGetMemPool(anywhere, PINNED)) == "CUDA_ERROR_INVALID_VALUE"

refused = {
    "CUDA_ERROR_INVALID_DEVICE": pool_props(Kind.CU_MEM_LOCATION_TYPE_DEVICE, 7),
    "CUDA_ERROR_NOT_SUPPORTED": pool_props(Kind.CU_MEM_LOCATION_TYPE_DEVICE, handles=8),
    "CUDA_ERROR_INVALID_VALUE": pool_props(Kind.CU_MEM_LOCATION_TYPE_HOST, handles=1),
}
for answer, props in refused.items():
    assert code(driver.cuMemPoolCreate(props)) == answer, answer

small = ok(driver.cuMemPoolCreate(pool_props(Kind.CU_MEM_LOCATION_TYPE_DEVICE, limit=4 * UNIT)))
assert code(driver.cuMemAllocFromPoolAsync(5 * UNIT, small, 0)) == "CUDA_ERROR_OUT_OF_MEMORY"
pointer = ok(driver.cuMemAllocFromPoolAsync(4 * UNIT, small, 0))
ok(driver.cuMemFreeAsync(pointer, 0))
ok(driver.cuCtxSynchronize())
assert [get(small, f"{what}_MEM_HIGH") for what in ("RESERVED", "USED")] == [4 * UNIT, 4 * UNIT]
for name in ("RESERVED_MEM_HIGH", "USED_MEM_HIGH"):
    high = getattr(Attribute, f"CU_MEMPOOL_ATTR_{name}")
    assert code(driver.cuMemPoolSetAttribute(small, high, driver.cuuint64_t(5))) == "CUDA_ERROR_INVALID_VALUE"
    ok(driver.cuMemPoolSetAttribute(small, high, driver.cuuint64_t(0)))
    assert get(small, name) == 0
current = Attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
assert code(driver.cuMemPoolSetAttribute(small, current, driver.cuuint64_t(0))) == "CUDA_ERROR_INVALID_VALUE"

# What was freed earlier in a stream is handed out again there, while work that uses it still runs. Another stream gets
# other memory, and no more than a fifth of what is handed out stays unused.
first, second = ok(driver.cuStreamCreate(1)), ok(driver.cuStreamCreate(1))
reusing = ok(driver.cuMemPoolCreate(pool_props(Kind.CU_MEM_LOCATION_TYPE_DEVICE)))
with gpu.hold(first):
    for _ in range(20):
        pointer = ok(driver.cuMemAllocFromPoolAsync(8 * UNIT, reusing, first))
        ok(driver.cuMemsetD8Async(pointer, 1, UNIT, first))
        ok(driver.cuMemFreeAsync(pointer, first))
    assert get(reusing, "RESERVED_MEM_HIGH") == 8 * UNIT
    smaller = ok(driver.cuMemAllocFromPoolAsync(7 * UNIT, reusing, first))
    assert int(smaller) == int(pointer)
    other = ok(driver.cuMemAllocFromPoolAsync(8 * UNIT, reusing, second))
    assert int(other) != int(pointer)
    ok(driver.cuMemFreeAsync(smaller, first))
    assert int(ok(driver.cuMemAllocFromPoolAsync(UNIT, reusing, first))) != int(pointer)
    assert get(reusing, "USED_MEM_CURRENT") == 17 * UNIT
ok(driver.cuStreamSynchronize(first))
assert get(reusing, "USED_MEM_CURRENT") == 9 * UNIT
ok(driver.cuMemsetD8Async(other, 2, 8 * UNIT, second))
ok(driver.cuCtxSynchronize())
print("pools")
