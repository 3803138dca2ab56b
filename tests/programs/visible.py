"""Print the number of devices, or the error code of the initialization."""

from __future__ import annotations

from cuda.bindings import driver
from cuda_helpers import code, ok

answer = driver.cuInit(0)
print(ok(driver.cuDeviceGetCount()) if code(answer) == "CUDA_SUCCESS" else code(answer))
