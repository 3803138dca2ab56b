"""Launch one kernel of 100 ms when a line arrives on the standard input, wait for it, and print a line."""

from __future__ import annotations

import ctypes
import sys

from cuda.bindings import driver
from cuda_helpers import IMAGE, ok

ok(driver.cuInit(0))
ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
spin = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(IMAGE)), b"spin"))
print("ready", flush=True)
sys.stdin.readline()
ok(driver.cuLaunchKernel(spin, 40, 1, 1, 256, 1, 1, 0, 0, ((100_000_000,), (ctypes.c_uint64,)), 0))
ok(driver.cuCtxSynchronize())
print("done", flush=True)
