"""Advice about managed memory, page by page, and the attributes that return it."""

from __future__ import annotations

from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

PAGE = 4096
Advise = driver.CUmem_advise
Range = driver.CUmem_range_attribute
gpu = Gpu()
on_device = driver.CUmemLocation()
on_device.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
on_device.id = 0
on_host = driver.CUmemLocation()
on_host.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
pointer = int(ok(driver.cuMemAllocManaged(8 * PAGE, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)))


def ask(attribute: driver.CUmem_range_attribute, start: int, pages: int) -> int:
    return int(ok(driver.cuMemRangeGetAttribute(4, attribute, pointer + start * PAGE, pages * PAGE)))


PREFERRED = Range.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION
READ_MOSTLY = Range.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY
PREFETCHED = Range.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
assert ask(READ_MOSTLY, 0, 8) == 0
assert ask(PREFERRED, 0, 8) == -2
ok(driver.cuMemAdvise(pointer + 2 * PAGE, 3 * PAGE, Advise.CU_MEM_ADVISE_SET_READ_MOSTLY, on_device))
assert [ask(READ_MOSTLY, page, 1) for page in range(8)] == [0, 0, 1, 1, 1, 0, 0, 0]
assert ask(READ_MOSTLY, 2, 3) == 1
assert ask(READ_MOSTLY, 2, 4) == 0
ok(driver.cuMemAdvise(pointer + 3 * PAGE, PAGE, Advise.CU_MEM_ADVISE_UNSET_READ_MOSTLY, on_device))
assert [ask(READ_MOSTLY, page, 1) for page in range(8)] == [0, 0, 1, 0, 1, 0, 0, 0]
ok(driver.cuMemAdvise(pointer, 8 * PAGE, Advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_device))
assert ask(PREFERRED, 0, 8) == 0
ok(driver.cuMemAdvise(pointer, PAGE, Advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_host))
assert ask(PREFERRED, 0, 1) == -1
assert ask(PREFERRED, 0, 8) == -2
ok(driver.cuMemPrefetchAsync(pointer, 2 * PAGE, on_device, 0, 0))
assert ask(PREFETCHED, 0, 2) == 0
assert ask(PREFETCHED, 0, 3) == -2

on_device.id = 9
assert code(driver.cuMemPrefetchAsync(pointer, PAGE, on_device, 0, 0)) == "CUDA_ERROR_INVALID_DEVICE"
device = ok(driver.cuMemAlloc(PAGE))
assert (
    code(driver.cuMemAdvise(device, PAGE, Advise.CU_MEM_ADVISE_SET_READ_MOSTLY, on_host)) == "CUDA_ERROR_INVALID_VALUE"
)
assert code(driver.cuMemRangeGetAttribute(3, READ_MOSTLY, pointer, PAGE)) == "CUDA_ERROR_INVALID_VALUE"
ok(driver.cuMemFree(pointer))
second = int(ok(driver.cuMemAllocManaged(8 * PAGE, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)))
assert int(ok(driver.cuMemRangeGetAttribute(4, READ_MOSTLY, second, 8 * PAGE))) == 0
print("advised")
