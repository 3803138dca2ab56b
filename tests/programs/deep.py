"""An event before a deep queue of another stream is complete while that queue has hardly begun."""

from __future__ import annotations

import os

from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

DEEP = 1500  # more than the device takes at once, less than that and a ring

gpu = Gpu()
first, deep = (ok(driver.cuStreamCreate(1)) for _ in range(2))
event = ok(driver.cuEventCreate(0))
gpu.spin(1_000, first, blocks=1)
ok(driver.cuEventRecord(event, first))
for _ in range(DEEP):
    gpu.spin(1_000_000_000_000, deep, blocks=1)
ok(driver.cuEventSynchronize(event))
ok(driver.cuEventQuery(event))
ok(driver.cuStreamSynchronize(first))
ok(driver.cuStreamQuery(first))
assert code(driver.cuStreamQuery(deep)) == "CUDA_ERROR_NOT_READY"
print("not held up", flush=True)
os._exit(0)
