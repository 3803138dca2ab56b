"""Work in steps on two streams: kernels, memset, copy, wait; report the end, and exit when the input ends."""

from __future__ import annotations

import sys

from cuda.bindings import driver
from cuda_helpers import Gpu, ok

steps, kernel_ns = int(sys.argv[1]), int(sys.argv[2])
gpu = Gpu()
streams = [ok(driver.cuStreamCreate(1)) for _ in range(2)]
pinned = ok(driver.cuMemHostAlloc(1 << 16, 0))
pointer = ok(driver.cuMemAlloc(1 << 16))
for _ in range(steps):
    ok(driver.cuMemcpyHtoDAsync(pointer, int(pinned), 1 << 16, streams[0]))
    gpu.spin(kernel_ns, streams[0])
    ok(driver.cuMemsetD8Async(pointer, 0, 1 << 16, streams[1]))
    gpu.spin(2 * kernel_ns, streams[1])
    ok(driver.cuCtxSynchronize())
print("done", flush=True)
sys.stdin.read()
