"""A program for any driver: compiles PTX, launches, copies, waits, times, and prints its results."""

from __future__ import annotations

import ctypes
import zlib

from cuda.bindings import driver

PTX = rb"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry twice(.param .u64 data, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p, %r2, %r1;
    @%p bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r5, [%rd3];
    shl.b32 %r5, %r5, 1;
    st.global.u32 [%rd3], %r5;
DONE:
    ret;
}
"""
COUNT = 4096


def ok(answer: tuple) -> object:
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]


ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
context = ok(driver.cuDevicePrimaryCtxRetain(device))
ok(driver.cuCtxSetCurrent(context))
module = ok(driver.cuModuleLoadData(PTX))
function = ok(driver.cuModuleGetFunction(module, b"twice"))
numbers = (ctypes.c_uint32 * COUNT)(*range(COUNT))
data = ok(driver.cuMemAlloc(ctypes.sizeof(numbers)))
ok(driver.cuMemcpyHtoD(data, ctypes.addressof(numbers), ctypes.sizeof(numbers)))
stream = ok(driver.cuStreamCreate(1))
for _ in range(200):
    arguments = ((int(data), COUNT), (ctypes.c_uint64, ctypes.c_uint32))
    ok(driver.cuLaunchKernel(function, COUNT // 256, 1, 1, 256, 1, 1, 0, stream, arguments, 0))
ok(driver.cuStreamSynchronize(stream))
ok(driver.cuMemcpyDtoH(ctypes.addressof(numbers), data, ctypes.sizeof(numbers)))
print("crc", zlib.crc32(bytes(numbers)))
print("free of nothing", driver.cuMemFree(0)[0].name)
print("no such function", driver.cuModuleGetFunction(module, b"none")[0].name)
ok(driver.cuMemFree(data))
ok(driver.cuModuleUnload(module))
ok(driver.cuDevicePrimaryCtxRelease(device))
