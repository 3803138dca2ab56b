"""Many host functions that wait in one stream do not block one in another stream."""

from __future__ import annotations

import ctypes
import os

from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

ran: list[int] = []
note = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda number: ran.append(number or 0))
address = ctypes.cast(note, ctypes.c_void_p).value

gpu = Gpu()
busy, idle = (ok(driver.cuStreamCreate(1)) for _ in range(2))
gpu.spin(1_000_000_000_000, busy, blocks=1)
for number in range(1, 101):
    ok(driver.cuLaunchHostFunc(busy, address, number))
ok(driver.cuLaunchHostFunc(idle, address, 200))
ok(driver.cuStreamSynchronize(idle))
assert ran == [200]
assert code(driver.cuStreamQuery(busy)) == "CUDA_ERROR_NOT_READY"
print("not held up", flush=True)
os._exit(0)
