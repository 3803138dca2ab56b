"""A client that reports when it works: hold memory and launch until killed or asked to end."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from cuda.bindings import driver
from cuda_helpers import Gpu, ok

gpu = Gpu()
streams = [ok(driver.cuStreamCreate(1)) for _ in range(3)]
memory = [ok(driver.cuMemAlloc(1 << 20)) for _ in range(8)]
print("at work", flush=True)


def must(answer: tuple[Any, ...]) -> Any:
    """Print the result code and exit if the call failed; otherwise return its value."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        print(answer[0].name, flush=True)
        sys.exit(0)
    return answer[-1]


spin = gpu.function("spin")
turn = 0
while True:
    turn += 1
    for stream in streams:
        must(driver.cuLaunchKernel(spin, 16, 1, 1, 256, 1, 1, 0, stream, ((50_000,), (ctypes.c_uint64,)), 0))
    if turn % 7 == 0:
        must(driver.cuMemFree(memory.pop(0)))
        memory.append(must(driver.cuMemAlloc(1 << 20)))
    if turn % 3 == 0:
        must(driver.cuStreamSynchronize(streams[turn % 3]))
