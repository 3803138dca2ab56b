"""Variables of modules and libraries, and the compiler log of a program that requests it."""

from __future__ import annotations

import ctypes

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

PTX = b"""
.version 8.0
.target sm_70
.address_size 64
.extern .global .align 4 .u32 elsewhere;
.visible .global .align 4 .u32 number;
.const .align 8 .b8 table[4][20] = {1, 2};
.global .align 16 .v4 .f32 quad;
.visible .entry kernel(.param .u64 .ptr .global .align 4 out) { ret; }
\0"""

Gpu()
libcuda = ctypes.CDLL("libcuda.so.1")
log = ctypes.create_string_buffer(b"what was there before", 64)
INFO_LOG, INFO_BYTES = 3, 4
keys = (ctypes.c_int * 2)(INFO_LOG, INFO_BYTES)
values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 64)
loaded = ctypes.c_void_p()
assert libcuda.cuModuleLoadDataEx(ctypes.byref(loaded), PTX, 2, keys, values) == 0
assert values[1] is None
assert log.value == b""
module = driver.CUmodule(loaded.value)

before, _ = ok(driver.cuMemGetInfo())
pointer, size = ok(driver.cuModuleGetGlobal(module, b"number"))
assert size == 4
assert int(ok(driver.cuModuleGetGlobal(module, b"number"))[0]) == int(pointer)
assert ok(driver.cuModuleGetGlobal(module, b"table"))[1] == 80
assert ok(driver.cuModuleGetGlobal(module, b"quad"))[1] == 16
for absent in (b"elsewhere", b"kernel", b"out"):
    assert code(driver.cuModuleGetGlobal(module, absent)) == "CUDA_ERROR_NOT_FOUND"
sent, got = np.array([42], np.uint32), np.zeros(1, np.uint32)
ok(driver.cuMemcpyDtoH(got, pointer, size))
assert got[0] == 0
ok(driver.cuMemcpyHtoD(pointer, sent, size))
ok(driver.cuMemcpyDtoH(got, pointer, size))
assert got[0] == 42
assert code(driver.cuMemFree(pointer)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuMemFreeAsync(pointer, 0)) == "CUDA_ERROR_INVALID_VALUE"
ok(driver.cuModuleUnload(module))
assert ok(driver.cuMemGetInfo())[0] == before
assert code(driver.cuMemcpyDtoH(got, pointer, size)) == "CUDA_ERROR_INVALID_VALUE"

# A library's variable is separate in each context, and ends with the context.
library = ok(driver.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
first, _ = ok(driver.cuLibraryGetGlobal(library, b"number"))
context = ok(driver.cuDevicePrimaryCtxRetain(0))
ok(driver.cuCtxPushCurrent(context))
second, _ = ok(driver.cuLibraryGetGlobal(library, b"number"))
assert int(first) != int(second)
ok(driver.cuDevicePrimaryCtxRelease(0))
ok(driver.cuCtxPopCurrent())
ok(driver.cuMemcpyHtoD(first, sent, size))
ok(driver.cuLibraryUnload(library))
assert code(driver.cuMemcpyDtoH(got, first, size)) == "CUDA_ERROR_INVALID_VALUE"
assert ok(driver.cuMemGetInfo())[0] == before
print("variables")
