"""Prints how many devices there are, or what initialisation answers."""

from __future__ import annotations

from cuda.bindings import driver
from face import code, ok

answer = driver.cuInit(0)
print(ok(driver.cuDeviceGetCount()) if code(answer) == "CUDA_SUCCESS" else code(answer))
