"""Launch kernels that spin until kernels of other devices run: spin.py FILE FIRST LAST RANKS LIMIT_NS.

This process is the ranks FIRST to LAST of RANKS, each on the device of its number. The counter is in FILE. It prints
the counter after each launch, whether the kernel had ended, and how all of them end.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
import time
from pathlib import Path

from cuda.bindings import driver
from cuda_helpers import ok

path, first, last, ranks, limit_ns = Path(sys.argv[1]), *map(int, sys.argv[2:])
with path.open("r+b") as file:
    memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
counter = ctypes.c_uint32.from_buffer(memory)
ok(driver.cuInit(0))
image = f"softgpu-image 1\nkernel meet\n  params 8 4\n  spin 0 1\n  duration_ns 300000\n  spin_limit_ns {limit_ns}\n"
shown: list[object] = []
contexts = []
for rank in range(first, last + 1):
    context = ok(driver.cuCtxCreate(None, 0, ok(driver.cuDeviceGet(rank))))
    contexts.append(context)
    if rank == first:
        ok(driver.cuMemHostRegister(ctypes.addressof(counter), mmap.PAGESIZE, driver.CU_MEMHOSTREGISTER_PORTABLE))
    function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(image.encode())), b"meet"))
    values = (ctypes.c_uint64(ctypes.addressof(counter)), ctypes.c_uint32(ranks))
    addresses = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    before = counter.value
    ok(driver.cuLaunchKernel(function, 16, 1, 1, 256, 1, 1, 0, 0, ctypes.addressof(addresses), 0))
    while counter.value == before:
        time.sleep(0.001)
    shown.append([rank, driver.cuStreamQuery(0)[0].name])
for context in contexts:
    ok(driver.cuCtxSetCurrent(context))
    shown.append(driver.cuCtxSynchronize()[0].name)
print(json.dumps({"shown": shown, "counter": counter.value}))
