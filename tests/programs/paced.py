"""Print the device time of a kernel of the given number of milliseconds, once per input line."""

from __future__ import annotations

import ctypes
import sys
import threading

from cuda.bindings import driver
from cuda_helpers import Gpu, ok

gpu = Gpu()
stream = ok(driver.cuStreamCreate(1))
begin, end = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
# The stream is held until all work is queued, so that the host's speed does not count.
queued = threading.Event()
hold = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: queued.wait() and None)
address = ctypes.cast(hold, ctypes.c_void_p).value
while True:
    queued.clear()
    ok(driver.cuLaunchHostFunc(stream, address, 0))
    ok(driver.cuEventRecord(begin, stream))
    gpu.spin(int(float(sys.argv[1]) * 1e6), stream)
    ok(driver.cuEventRecord(end, stream))
    queued.set()
    print("at work", flush=True)
    ok(driver.cuEventSynchronize(end))
    print(ok(driver.cuEventElapsedTime(begin, end)), flush=True)
    if not sys.stdin.readline():
        break
