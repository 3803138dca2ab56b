"""Launch kernels whose order shows in their result, over three streams of the primary context.

With the argument `hold` keep the device busy instead, until the standard input ends.
"""

from __future__ import annotations

import ctypes
import select
import sys

import numpy as np
from cuda.bindings import driver
from cuda_helpers import IMAGE, ok

U64, F32 = ctypes.c_uint64, ctypes.c_float
COUNT, ROUNDS = 4096, 60

ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
module = ok(driver.cuModuleLoadData(IMAGE))
spin, fill, saxpy = (ok(driver.cuModuleGetFunction(module, name)) for name in (b"spin", b"fill", b"saxpy"))


def launch(function: object, values: tuple[object, ...], types: tuple[type, ...], stream: object, blocks: int) -> None:
    ok(driver.cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, (values, types), 0))


def hold() -> None:
    print("holding", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(4):
            launch(spin, (200_000,), (U64,), 0, 40)
        ok(driver.cuCtxSynchronize())


def download(pointer: object, stream: object) -> np.ndarray:
    out = np.empty(COUNT, np.float32)
    ok(driver.cuMemcpyDtoHAsync(out, pointer, out.nbytes, stream))
    ok(driver.cuStreamSynchronize(stream))
    return out


def compute() -> None:
    x, y = ok(driver.cuMemAlloc(4 * COUNT)), ok(driver.cuMemAlloc(4 * COUNT))
    one = np.ones(COUNT, np.float32)
    ok(driver.cuMemcpyHtoD(x, one, one.nbytes))
    streams = [0, ok(driver.cuStreamCreate(0)), ok(driver.cuStreamCreate(1))]
    event = ok(driver.cuEventCreate(2))
    for number in range(ROUNDS):
        first, second = streams[number % 3], streams[(number + 1) % 3]
        launch(spin, (100_000,), (U64,), first, 640)
        launch(fill, (int(y), float(number), COUNT), (U64, F32, U64), first, 640)
        ok(driver.cuEventRecord(event, first))
        ok(driver.cuStreamWaitEvent(second, event, 0))
        launch(saxpy, (2.0, int(x), int(y), COUNT), (F32, U64, U64, U64), second, 640)
        assert (download(y, second) == number + 2).all(), number
    ok(driver.cuCtxSynchronize())
    print("computed", flush=True)
    sys.stdin.readline()
    ok(driver.cuDevicePrimaryCtxRelease(device))
    print("released", flush=True)


hold() if sys.argv[1:] == ["hold"] else compute()
