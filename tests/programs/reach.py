"""Host memory that cannot be read or written is refused before anything is copied."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

PAGE, READ, WRITE, PRIVATE_ANONYMOUS = 4096, 1, 2, 0x22
INVALID = "CUDA_ERROR_INVALID_VALUE"

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def pages(count: int, rights: int) -> int:
    address = libc.mmap(None, count * PAGE, rights, PRIVATE_ANONYMOUS, -1, 0)
    assert address != ctypes.c_void_p(-1).value
    return int(address)


def tiles(pointer: Any, host: int, pitch: int, rows: int) -> driver.CUDA_MEMCPY2D:
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType, copy.srcDevice, copy.srcPitch = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE, pointer, 16
    copy.dstMemoryType, copy.dstHost, copy.dstPitch = driver.CUmemorytype.CU_MEMORYTYPE_HOST, host, pitch
    copy.WidthInBytes, copy.Height = 16, rows
    return copy


gpu = Gpu()
pointer = gpu.upload(np.full(2 * PAGE, 7, dtype=np.uint8))
none, readable, both = pages(1, 0), pages(1, READ), pages(2, READ | WRITE)
assert libc.mprotect(both + PAGE, PAGE, READ) == 0  # half of it can be written
for bad in (none, 0x10000):
    assert code(driver.cuMemcpyHtoD(pointer, bad, PAGE)) == INVALID
    assert code(driver.cuMemcpyHtoDAsync(pointer, bad, PAGE, 0)) == INVALID
    assert code(driver.cuMemHostRegister(bad, PAGE, 0)) == INVALID
for bad in (none, readable, both + PAGE // 2):
    assert code(driver.cuMemcpyDtoH(bad, pointer, PAGE)) == INVALID
    assert code(driver.cuMemcpyDtoHAsync(bad, pointer, PAGE, 0)) == INVALID
ok(driver.cuMemcpyHtoD(pointer, readable, PAGE))
ok(driver.cuMemcpyHtoD(pointer, both, 2 * PAGE))
ok(driver.cuMemcpyHtoD(pointer, np.full(2 * PAGE, 7, dtype=np.uint8), 2 * PAGE))
ok(driver.cuMemcpyDtoH(both, pointer, PAGE))
assert ctypes.string_at(both, PAGE) == bytes([7]) * PAGE

# Rows that are far apart: only the rows must be accessible, not the memory between them.
rows = pages(5, READ | WRITE)
assert libc.mprotect(rows + PAGE, PAGE, 0) == 0
ok(driver.cuMemcpy2D(tiles(pointer, rows, 2 * PAGE, 3)))
assert ctypes.string_at(rows + 4 * PAGE, 17) == bytes([7]) * 16 + b"\0"
assert libc.mprotect(rows + 4 * PAGE, PAGE, READ) == 0
assert code(driver.cuMemcpy2D(tiles(pointer, rows, 2 * PAGE, 3))) == INVALID

# The program may unmap registered memory.
assert code(driver.cuMemHostRegister(readable, PAGE, 0)) == INVALID
ok(driver.cuMemHostRegister(readable, PAGE, driver.CU_MEMHOSTREGISTER_READ_ONLY))
ok(driver.cuMemcpyHtoD(pointer, readable, PAGE))
assert libc.munmap(readable, PAGE) == 0
assert code(driver.cuMemcpyHtoD(pointer, readable, PAGE)) == INVALID
ok(driver.cuMemHostUnregister(readable))
print("reached")
