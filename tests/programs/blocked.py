"""Wait for work that never ends, in the given mode, holding memory of every kind; print the result."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

HOUR_NS = 3500 * 10**9
RING_SLOTS = 1024

gpu = Gpu()
stream = ok(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))
event = ok(driver.cuEventCreate(0))
memory = ok(driver.cuMemAlloc(1 << 20))
pooled = ok(driver.cuMemAllocAsync(1 << 20, stream))
ok(driver.cuStreamSynchronize(stream))
shape = driver.CUDA_ARRAY_DESCRIPTOR()
shape.Width, shape.Height, shape.NumChannels = 256, 256, 4
shape.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
array = ok(driver.cuArrayCreate(shape))
traits = driver.CUmemAllocationProp()
traits.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
traits.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
physical = ok(driver.cuMemCreate(2 << 20, traits, 0))
calls: list[int] = []


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def function(_data: int) -> None:
    calls.append(1)


def graph() -> str:
    """The second launch of one graph waits for the first."""
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    gpu.spin(HOUR_NS, stream)
    executable = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(stream)), 0))
    for _ in range(2):
        ok(driver.cuGraphLaunch(executable, stream))
    print("at work", flush=True)
    return code(driver.cuStreamSynchronize(stream))


def value() -> str:
    ok(driver.cuMemsetD32(memory, 0, 1))
    ok(driver.cuStreamWaitValue32(stream, memory, 1, 0))
    print("at work", flush=True)
    return code(driver.cuStreamSynchronize(stream))


def ring() -> str:
    """Launch until the ring is full, and then wait for a free entry."""
    gpu.spin(HOUR_NS, stream)
    answer = "CUDA_SUCCESS"
    spin, types = gpu.function("spin"), (ctypes.c_uint64,)
    for count in range(4 * RING_SLOTS):
        if count == RING_SLOTS:
            print("at work", flush=True)
        answer = code(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, ((1,), types), 0))
        if answer != "CUDA_SUCCESS":
            break
    return answer


def after_spin() -> str:
    gpu.spin(HOUR_NS, stream)
    ok(driver.cuEventRecord(event, stream))
    if kind == "function":
        ok(driver.cuLaunchHostFunc(stream, ctypes.cast(function, ctypes.c_void_p).value, 0))
    if kind == "copy":
        gpu.spin(HOUR_NS)
    print("at work", flush=True)
    match kind:
        case "event":
            return code(driver.cuEventSynchronize(event))
        case "context":
            return code(driver.cuCtxSynchronize())
        case "copy":
            return code(driver.cuMemcpyDtoH(np.empty(4), memory, 16))
        case "free":
            return code(driver.cuMemFree(memory))
        case _:
            return code(driver.cuStreamSynchronize(stream))


kind = sys.argv[1]
answer = {"graph": graph, "value": value, "ring": ring}.get(kind, after_spin)()
print(answer, code(driver.cuCtxSynchronize()), len(calls), flush=True)
