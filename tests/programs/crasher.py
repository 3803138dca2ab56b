"""A client to be killed at any instant; plain ctypes, so that two hundred of them start quickly."""

from __future__ import annotations

import ctypes
import random
import sys

cuda = ctypes.CDLL("libcuda.so.1")
IMAGE = b"softgpu-image 1\nkernel k\n block_ns 30000\nkernel f\n builtin fill\n"
rng = random.Random(int(sys.argv[1]))


def ok(result: int) -> None:
    assert result == 0, result


P, U64 = ctypes.c_void_p, ctypes.c_uint64
context, module, kernel, fill = P(), P(), P(), P()
ok(cuda.cuInit(0))
ok(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
ok(cuda.cuModuleLoadData(ctypes.byref(module), IMAGE))
ok(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"k"))
ok(cuda.cuModuleGetFunction(ctypes.byref(fill), module, b"f"))
streams = [P() for _ in range(4)]
events = [P() for _ in range(4)]
for stream, event in zip(streams, events, strict=True):
    ok(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    ok(cuda.cuEventCreate(ctypes.byref(event), 0))
memory: list[ctypes.c_uint64] = []
note = ctypes.CFUNCTYPE(None, P)(lambda _: None)
while True:
    choice, index = rng.randrange(8), rng.randrange(4)
    if choice < 3:
        ok(cuda.cuLaunchKernel(kernel, rng.randrange(1, 400), 1, 1, 128, 1, 1, 0, streams[index], None, None))
    elif choice == 3:
        pointer = U64()
        ok(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(rng.randrange(1, 1 << 22))))
        memory.append(pointer)
        if len(memory) > 20:
            ok(cuda.cuMemFree_v2(memory.pop(0)))
    elif choice == 4:
        ok(cuda.cuEventRecord(events[index], streams[index]))
        ok(cuda.cuStreamWaitEvent(streams[rng.randrange(4)], events[index], 0))
    elif choice == 5:
        ok(cuda.cuStreamSynchronize(streams[index]))
    elif choice == 6:
        ok(cuda.cuLaunchHostFunc(streams[index], note, None))
    elif memory:
        values = (P * 3)(*(ctypes.cast(ctypes.byref(v), P) for v in (memory[0], ctypes.c_float(1), U64(1))))
        ok(cuda.cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, streams[index], values, None))
