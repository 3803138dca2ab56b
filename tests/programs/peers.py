"""Two devices: peer access and the result codes of its calls."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver
from cuda_helpers import code, ok

ok(driver.cuInit(0))
assert ok(driver.cuDeviceGetCount()) == 2
first, second = (ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(i)))) for i in range(2))
assert [ok(driver.cuDeviceCanAccessPeer(0, peer)) for peer in range(2)] == [0, 1]
assert code(driver.cuDeviceCanAccessPeer(0, 2)) == "CUDA_ERROR_INVALID_DEVICE"
Attribute = driver.CUdevice_P2PAttribute
assert ok(driver.cuDeviceGetP2PAttribute(Attribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1)) == 1
assert code(driver.cuDeviceGetP2PAttribute(Attribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0)) != "CUDA_SUCCESS"

ok(driver.cuCtxSetCurrent(first))
assert code(driver.cuCtxDisablePeerAccess(second)) == "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"
assert code(driver.cuCtxEnablePeerAccess(first, 0)) == "CUDA_ERROR_INVALID_DEVICE"
assert code(driver.cuCtxEnablePeerAccess(second, 1)) == "CUDA_ERROR_INVALID_VALUE"
first_memory = ok(driver.cuMemAlloc(64))
ok(driver.cuCtxSetCurrent(second))
second_memory = ok(driver.cuMemAlloc(64))
access = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS
ok(driver.cuCtxSetCurrent(first))
assert int(ok(driver.cuPointerGetAttribute(access, second_memory))) == 0
ok(driver.cuCtxEnablePeerAccess(second, 0))
assert int(ok(driver.cuPointerGetAttribute(access, second_memory))) == 3
assert code(driver.cuCtxEnablePeerAccess(second, 0)) == "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"

numbers = np.arange(64, dtype=np.uint8)
ok(driver.cuMemcpyHtoD(first_memory, numbers, 64))
ok(driver.cuMemcpyPeer(second_memory, second, first_memory, first, 64))
ok(driver.cuCtxSynchronize())
back = np.zeros(64, np.uint8)
ok(driver.cuMemcpyDtoH(back, second_memory, 64))
assert (back == numbers).all()
ok(driver.cuCtxDisablePeerAccess(second))

# A pool of one device is accessible to the other only after access is set.
pool = ok(driver.cuDeviceGetDefaultMemPool(1))
device_location = driver.CUmemLocation()
device_location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
device_location.id = 0
Access = driver.CUmemAccess_flags
assert ok(driver.cuMemPoolGetAccess(pool, device_location)) == Access.CU_MEM_ACCESS_FLAGS_PROT_NONE
lent = ok(driver.cuMemAllocFromPoolAsync(64, pool, 0))
assert code(driver.cuMemcpyHtoD(lent, numbers, 64)) == "CUDA_ERROR_INVALID_VALUE"
access_desc = driver.CUmemAccessDesc()
access_desc.location = device_location
access_desc.flags = Access.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
ok(driver.cuMemPoolSetAccess(pool, [access_desc], 1))
ok(driver.cuMemcpyHtoD(lent, numbers, 64))
ok(driver.cuMemFreeAsync(lent, 0))
assert ok(driver.cuMemPoolGetAccess(pool, device_location)) == Access.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
device_location.id = 1
access_desc.location = device_location
access_desc.flags = Access.CU_MEM_ACCESS_FLAGS_PROT_NONE
assert code(driver.cuMemPoolSetAccess(pool, [access_desc], 1)) == "CUDA_ERROR_INVALID_VALUE"
print("peers")
