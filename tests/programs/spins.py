"""Launch a short and a long kernel in turn, and synchronize sometimes: spins.py ROUNDS [ask | die]."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from cuda.bindings import driver
from cuda_helpers import Gpu, ok

gpu = Gpu()
function = gpu.function("spin")
for number in range(int(sys.argv[1])):
    for threads, nanoseconds in ((128, 100_000), (256, 300_000)):
        values = ((nanoseconds,), (ctypes.c_uint64,))
        ok(driver.cuLaunchKernel(function, 80, 1, 1, threads, 1, 1, 0, 0, values, 0))
    if number % 4 == 3:
        ok(driver.cuCtxSynchronize())
if sys.argv[2:] == ["ask"]:
    print("launched", flush=True)
    input()
ok(driver.cuCtxSynchronize())
if sys.argv[2:] == ["die"]:
    os.kill(os.getpid(), signal.SIGKILL)
print("spun")
