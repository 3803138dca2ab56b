"""A kernel that fails ends its context with the error of a real device: the argument selects the fault."""

from __future__ import annotations

import ctypes
import sys

from cuda.bindings import driver
from cuda_helpers import code, ok

BODIES = {
    "endless": "LOOP: bra LOOP;",
    "illegal": "st.global.u32 [%d+1048576], 1;",
    "misaligned": "st.global.u32 [%d+2], 1;",
    "trap": "trap;",
}
TEXT = """.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 a)
{{ .reg .b64 %d; ld.param.u64 %d, [a];
  {body}
  ret; }}
"""
ok(driver.cuInit(0))
ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
function = ok(
    driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(TEXT.format(body=BODIES[sys.argv[1]]).encode())), b"k")
)
pointer = int(ok(driver.cuMemAlloc(1024)))
ok(driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, ((pointer,), (ctypes.c_uint64,)), 0))
first = code(driver.cuCtxSynchronize())
assert first == code(driver.cuMemAlloc(4)), "the error does not stay"
print(first)
