"""Children that launch without end and are killed at any instant, one after the other: shortlived.py COUNT SEED."""

from __future__ import annotations

import os
import random
import signal
import sys
import time

count, dice = int(sys.argv[1]), random.Random(int(sys.argv[2]))
for _ in range(count):
    child = os.fork()
    if child == 0:
        from face import Gpu, ok  # the driver is begun in the child alone

        gpu = Gpu()
        while True:
            for nanoseconds in (20_000, 100_000, 700_000):
                gpu.spin(nanoseconds)
            if dice.random() < 0.2:
                from cuda.bindings import driver

                ok(driver.cuCtxSynchronize())
    time.sleep(dice.uniform(0.0, 0.08))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print("all killed")
