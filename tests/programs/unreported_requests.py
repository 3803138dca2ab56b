"""Serve the given number of requests with a pause after each, without reporting them."""

from __future__ import annotations

import sys
import time

from cuda.bindings import driver
from cuda_helpers import Gpu, ok

gpu = Gpu()
stream = ok(driver.cuStreamCreate(1))
for _ in range(int(sys.argv[1])):
    gpu.spin(int(sys.argv[2]), stream)
    gpu.spin(int(sys.argv[2]), stream)
    ok(driver.cuStreamSynchronize(stream))
    time.sleep(0.002)
