"""Kernels on memory that was mapped: they compute where they have access, and fault where they have none."""

from __future__ import annotations

import ctypes

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

UNIT = 2 << 20
gpu = Gpu()
props = driver.CUmemAllocationProp()
props.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
props.location.id = 0
minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
assert ok(driver.cuMemGetAllocationGranularity(props, minimum)) == UNIT
handle = ok(driver.cuMemCreate(UNIT, props, 0))
assert ok(driver.cuMemGetAllocationPropertiesFromHandle(handle)).location.id == 0
address = int(ok(driver.cuMemAddressReserve(4 * UNIT, 4 * UNIT, 0, 0)))
assert address % (4 * UNIT) == 0
ok(driver.cuMemMap(address, UNIT, 0, handle, 0))
access = driver.CUmemAccessDesc()
access.location = props.location
access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
ok(driver.cuMemSetAccess(address, UNIT, [access], 1))

fill = gpu.function("fill")
types = (ctypes.c_void_p, ctypes.c_float, ctypes.c_uint64)
gpu.launch(fill, (address, 2.5, 1000), types)
result = np.zeros(1001, np.float32)
ok(driver.cuMemcpyDtoH(result, address, result.nbytes))
assert (result[:1000] == 2.5).all()
assert result[1000] == 0

attribute = driver.CUpointer_attribute
expected = {
    attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE: 2,
    attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: address,
    attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE: UNIT,
    attribute.CU_POINTER_ATTRIBUTE_MAPPED: True,
    attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: 0,
    attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: False,
}
for name, value in expected.items():
    assert int(ok(driver.cuPointerGetAttribute(name, address + 5))) == int(value), name
assert code(driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_HOST_POINTER, address)) != "CUDA_SUCCESS"
assert code(driver.cuIpcGetMemHandle(address)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuMemExportToShareableHandle(handle, driver.CUmemAllocationHandleType(1), 0)) != "CUDA_SUCCESS"

# Queued work completes before its memory is unmapped.
gpu.launch(fill, (address, 4.0, 10), types)
ok(driver.cuMemUnmap(address, UNIT))
ok(driver.cuMemMap(address + UNIT, UNIT, 0, handle, 0))
ok(driver.cuMemSetAccess(address + UNIT, UNIT, [access], 1))
ok(driver.cuMemcpyDtoH(result, address + UNIT, result.nbytes))
assert (result[:10] == 4.0).all()
assert result[10] == 2.5

# A device that may only read faults when it writes.
access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
ok(driver.cuMemSetAccess(address + UNIT, UNIT, [access], 1))
gpu.launch(fill, (address + UNIT, 1.0, 10), types)
assert code(driver.cuCtxSynchronize()) == "CUDA_ERROR_ILLEGAL_ADDRESS"
print("faulted")
