"""Memory freed in stream order stays allocated until its stream reaches the free."""

from __future__ import annotations

import os

from cuda.bindings import driver
from cuda_helpers import Gpu, ok

MANY = 64 << 20


def free_bytes() -> int:
    return int(ok(driver.cuMemGetInfo())[0])


gpu = Gpu()
busy, brief, other = (ok(driver.cuStreamCreate(1)) for _ in range(3))
before = free_bytes()
held = ok(driver.cuMemAllocAsync(MANY, busy))
gpu.spin(1_000_000_000_000, busy, blocks=1)
ok(driver.cuMemFreeAsync(held, busy))
gpu.spin(1_000, other, blocks=1)
ok(driver.cuStreamSynchronize(other))
assert before - free_bytes() == MANY
done = ok(driver.cuMemAllocAsync(MANY, brief))
event = ok(driver.cuEventCreate(0))
gpu.spin(1_000, brief, blocks=1)
ok(driver.cuMemFreeAsync(done, brief))
ok(driver.cuEventRecord(event, brief))
assert before - free_bytes() == 2 * MANY
ok(driver.cuEventSynchronize(event))
assert before - free_bytes() == MANY
print("held and given back", flush=True)
os._exit(0)
