"""Take as many events, streams and contexts as possible, report it, and keep them until the input ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver
from cuda_helpers import Gpu, code

gpu = Gpu()


def take_all(create: Callable[[], Any]) -> int:
    taken = 0
    while code(answer := create()) == "CUDA_SUCCESS":
        taken += 1
    assert code(answer) == "CUDA_ERROR_OUT_OF_MEMORY", answer
    return taken


events = take_all(lambda: driver.cuEventCreate(0))
streams = take_all(lambda: driver.cuStreamCreate(1))
contexts = take_all(lambda: driver.cuCtxCreate(None, 0, gpu.device))
assert min(events, streams, contexts) > 100
print("at work", flush=True)
sys.stdin.read()
