"""Lose contexts with a pending host function to faults, one after another; a host function of the last one runs."""

from __future__ import annotations

import ctypes
import sys
import threading

from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

ran = threading.Event()
note = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: ran.set())
address = ctypes.cast(note, ctypes.c_void_p).value

for _ in range(int(sys.argv[1])):
    gpu = Gpu()
    busy = ok(driver.cuStreamCreate(1))
    gpu.spin(3_600_000_000_000, busy, blocks=1)
    ok(driver.cuLaunchHostFunc(busy, address, 0))
    print("at work", flush=True)
    assert code(driver.cuStreamSynchronize(busy)) == "CUDA_ERROR_ASSERT"
    ok(driver.cuCtxDestroy(gpu.context))  # of all faults only an assert ends with its context
assert not ran.is_set()
gpu = Gpu()
stream = ok(driver.cuStreamCreate(1))
ok(driver.cuLaunchHostFunc(stream, address, 0))
ok(driver.cuStreamSynchronize(stream))
assert ran.is_set()
print("ran")
