"""Serve without end: twenty requests a second, each reported and each a kernel of 0.1 ms."""

from __future__ import annotations

import time

from cuda.bindings import driver
from cuda_helpers import Gpu, ok

import cotenant

gpu = Gpu()
stream = ok(driver.cuStreamCreate(1))
while True:
    with cotenant.request():
        gpu.spin(100_000, stream)
        ok(driver.cuStreamSynchronize(stream))
    time.sleep(0.05)
