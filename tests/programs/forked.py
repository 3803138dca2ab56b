"""A child after fork is not initialised and leaves its parent's device alone."""

from __future__ import annotations

import os

from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
gpu.spin(2_000_000)
child = os.fork()
if child == 0:
    answers = {code(driver.cuCtxSynchronize()), code(driver.cuMemAlloc(16)), code(driver.cuInit(0))}
    os._exit(0 if answers == {"CUDA_ERROR_NOT_INITIALIZED"} else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
ok(driver.cuCtxSynchronize())
gpu.spin(1000)
ok(driver.cuCtxSynchronize())
print("parent goes on")
