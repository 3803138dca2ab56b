"""Follow commands line by line (kernel, together, thread, graph, chain, forked, copy, ..., end)."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from cuda.bindings import driver
from face import Gpu, ok

gpu = Gpu()
stream = ok(driver.cuStreamCreate(1))
words = np.zeros(1024, np.uint32)
pointer = gpu.upload(words)
function = gpu.function("spin")
argument = ctypes.c_uint64(10_000)
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


def captured() -> driver.CUgraph:
    ok(driver.cuStreamBeginCapture(stream, RELAXED))
    gpu.launch(function, (10_000,), (ctypes.c_uint64,), stream=stream)
    return ok(driver.cuStreamEndCapture(stream))


def several(*, is_forked: bool) -> driver.CUgraph:
    """Kernels of four and of twelve blocks, one after the other or side by side."""
    second, fork, join = ok(driver.cuStreamCreate(1)), ok(driver.cuEventCreate(2)), ok(driver.cuEventCreate(2))
    ok(driver.cuStreamBeginCapture(stream, RELAXED))
    gpu.launch(function, (10_000,), (ctypes.c_uint64,), stream=stream)
    if is_forked:
        ok(driver.cuEventRecord(fork, stream))
        ok(driver.cuStreamWaitEvent(second, fork, 0))
    gpu.launch(function, (10_000,), (ctypes.c_uint64,), blocks=12, stream=second if is_forked else stream)
    gpu.launch(function, (10_000,), (ctypes.c_uint64,), blocks=8, stream=stream)
    if is_forked:
        ok(driver.cuEventRecord(join, second))
        ok(driver.cuStreamWaitEvent(stream, join, 0))
        gpu.launch(function, (10_000,), (ctypes.c_uint64,), stream=stream)
    return ok(driver.cuStreamEndCapture(stream))


exec_graph = ok(driver.cuGraphInstantiate(captured(), 0))
graphs = {name: ok(driver.cuGraphInstantiate(several(is_forked=name == "forked"), 0)) for name in ("chain", "forked")}
ok(driver.cuCtxSynchronize())
print("ready", flush=True)
for line in sys.stdin:
    order = line.strip()
    if order == "end":
        break
    if order == "kernel":
        gpu.launch(function, (10_000,), (ctypes.c_uint64,), stream=stream)
    elif order == "together":
        value = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        one = (1, 1, 1)
        ok(driver.cuLaunchCooperativeKernel(function, *one, *one, 0, stream, ctypes.addressof(value)))
    elif order == "thread":
        gpu.launch(function, (10_000,), (ctypes.c_uint64,), stream=driver.CUstream(driver.CU_STREAM_PER_THREAD))
    elif order == "graph":
        ok(driver.cuGraphLaunch(exec_graph, stream))
    elif order in graphs:
        ok(driver.cuGraphLaunch(graphs[order], stream))
    elif order == "copy":
        ok(driver.cuMemcpyHtoDAsync(pointer, words.ctypes.data, words.nbytes, stream))
    elif order == "memset":
        ok(driver.cuMemsetD32Async(pointer, 1, words.size, stream))
    elif order == "capture":
        captured()
    print(order, flush=True)
ok(driver.cuCtxSynchronize())
print("ended")
