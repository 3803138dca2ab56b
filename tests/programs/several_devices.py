"""Use all visible devices from one thread, print what each reports, and then launch until asked to end.

Arguments: a file of words for the test to read, and the kernel to launch. Its first eight bytes count rounds of one
kernel per device; the program ends when the ninth is not 0.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from pathlib import Path
from typing import Any

from cuda.bindings import driver

MIB = 1 << 20
STEP = 64 * MIB
KEPT_BYTES = 16 * MIB


def ok(answer: tuple[Any, ...]) -> Any:
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]


def fill(context: Any) -> int:
    """Allocate until the quota is reached, and return how many steps that took; everything is freed elsewhere."""
    ok(driver.cuCtxSetCurrent(context))
    pointers = []
    while True:
        result, pointer = driver.cuMemAlloc(STEP)
        if result != driver.CUresult.CUDA_SUCCESS:
            break
        pointers.append(pointer)
    return hold(pointers)


def hold(pointers: list[Any]) -> int:
    """Free memory of one device while a context of another one is current, as unified addressing permits."""
    ok(driver.cuCtxSetCurrent(contexts[0]))
    for pointer in pointers:
        ok(driver.cuMemFree(pointer))
    return len(pointers)


path, kernel = Path(sys.argv[1]), sys.argv[2]
ok(driver.cuInit(0))
devices = [ok(driver.cuDeviceGet(number)) for number in range(ok(driver.cuDeviceGetCount()))]
contexts = [ok(driver.cuDevicePrimaryCtxRetain(device)) for device in devices]
image = f"softgpu-image 1\nkernel {kernel}\n  block_ns 20000\n".encode()
functions, totals, free = [], [], []
for context in contexts:
    ok(driver.cuCtxSetCurrent(context))
    functions.append(ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(image)), kernel.encode())))
    totals.append(ok(driver.cuMemGetInfo())[1])
    free.append(ok(driver.cuMemGetInfo())[0])
steps = [fill(context) for context in contexts]
again = [fill(context) for context in contexts]
for context in contexts:
    ok(driver.cuCtxSetCurrent(context))
    ok(driver.cuMemAlloc(KEPT_BYTES))
print(json.dumps({"totals": totals, "free": free, "steps": steps, "again": again}), flush=True)
with path.open("r+b") as file:
    shown = mmap.mmap(file.fileno(), 16)
rounds = 0
while shown[8] == 0:
    for context, function in zip(contexts, functions, strict=True):
        ok(driver.cuCtxSetCurrent(context))
        ok(driver.cuLaunchKernel(function, 80, 1, 1, 128, 1, 1, 0, 0, 0, 0))
    for context in contexts:
        ok(driver.cuCtxSetCurrent(context))
        ok(driver.cuCtxSynchronize())
    rounds += 1
    shown[0:8] = rounds.to_bytes(8, "little")
    time.sleep(0.001)
