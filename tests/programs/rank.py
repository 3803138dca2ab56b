"""Launch kernels until killed, and write their number to a file after each launch.

Usage: rank.py FILE NAME [PAUSE_MS]. The kernels have this name, so that one of NCCL is taken for a collective; on the
software GPU it waits for no other. Between two launches the program sleeps. The file has 16 bytes: the number of
launches, and that of the process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from pathlib import Path

from cuda.bindings import driver
from cuda_helpers import ok

KERNEL_NS = 100_000
IMAGE = """softgpu-image 1
kernel {name}
  params 8
  duration_param 0
  blocks_per_sm 8
"""

name, pause_s = sys.argv[2], float(sys.argv[3]) / 1000 if len(sys.argv) > 3 else 0.0
with Path(sys.argv[1]).open("r+b") as file:
    shown = mmap.mmap(file.fileno(), 16)
ok(driver.cuInit(0))
context = ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(0))))
module = ok(driver.cuModuleLoadData(IMAGE.format(name=name).encode()))
function = ok(driver.cuModuleGetFunction(module, name.encode()))
shown[8:16] = os.getpid().to_bytes(8, "little")
launches = 0
while True:
    ok(driver.cuLaunchKernel(function, 16, 1, 1, 256, 1, 1, 0, 0, ((KERNEL_NS,), (ctypes.c_uint64,)), 0))
    launches += 1
    shown[0:8] = launches.to_bytes(8, "little")
    ok(driver.cuCtxSynchronize())
    if pause_s:
        time.sleep(pause_s)
