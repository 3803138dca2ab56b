"""Children that launch without end and are killed at any instant: killed_children.py COUNT SEED."""

from __future__ import annotations

import os
import random
import signal
import sys
import time

from cuda.bindings import driver
from cuda_helpers import Gpu, ok  # the first call initializes the driver, in the child only

count, rng = int(sys.argv[1]), random.Random(int(sys.argv[2]))
for _ in range(count):
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        gpu = Gpu()
        os.write(write_end, b".")
        while True:
            for nanoseconds in (20_000, 100_000, 700_000):
                gpu.spin(nanoseconds)
            if rng.random() < 0.2:
                ok(driver.cuCtxSynchronize())
    os.close(write_end)
    if rng.random() < 0.8:  # at the gate; otherwise during the start of the driver
        os.read(read_end, 1)
    time.sleep(rng.uniform(0.0, 0.08))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read_end)
print("all killed")
