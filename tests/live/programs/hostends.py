"""Ends faulty contexts with a host function still to run, one after another; the last one has its turn."""

from __future__ import annotations

import ctypes
import threading

from cuda.bindings import driver
from face import Gpu, code, ok

ROUNDS = 300  # more than the device server has places for
ran = threading.Event()
note = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: ran.set())
address = ctypes.cast(note, ctypes.c_void_p).value

for _ in range(ROUNDS):
    gpu = Gpu()
    bad, busy, brief = (ok(driver.cuStreamCreate(1)) for _ in range(3))
    gpu.launch(gpu.function("fill"), (64, 1.0, 4), (ctypes.c_uint64, ctypes.c_float, ctypes.c_uint64), stream=bad)
    gpu.spin(1_000, brief, blocks=1)
    gpu.spin(3_000_000, busy, blocks=1)
    ok(driver.cuLaunchHostFunc(busy, address, 0))
    assert code(driver.cuStreamSynchronize(bad)) == "CUDA_ERROR_ILLEGAL_ADDRESS"
    driver.cuCtxDestroy(gpu.context)  # a faulty context is not waited for
ran.clear()
gpu = Gpu()
stream = ok(driver.cuStreamCreate(1))
ok(driver.cuLaunchHostFunc(stream, address, 0))
ok(driver.cuStreamSynchronize(stream))
assert ran.is_set()
print("ran")
