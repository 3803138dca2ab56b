"""Follow commands line by line (kernel, together, thread, graph, chain, forked, copy, ..., end)."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, ok

gpu = Gpu()
stream = ok(driver.cuStreamCreate(1))
words = np.zeros(1024, np.uint32)
pointer = gpu.upload(words)
function = gpu.function("spin")
argument = ctypes.c_uint64(10_000)
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


def capture_kernel() -> driver.CUgraph:
    ok(driver.cuStreamBeginCapture(stream, RELAXED))
    gpu.launch(function, (10_000,), (ctypes.c_uint64,), stream=stream)
    return ok(driver.cuStreamEndCapture(stream))


def capture_graph(*, is_forked: bool) -> driver.CUgraph:
    """Return a graph of kernels of four and of twelve blocks, in sequence or concurrent."""
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


exec_graph = ok(driver.cuGraphInstantiate(capture_kernel(), 0))
graphs = {
    name: ok(driver.cuGraphInstantiate(capture_graph(is_forked=name == "forked"), 0)) for name in ("chain", "forked")
}
ok(driver.cuCtxSynchronize())
print("ready", flush=True)
for line in sys.stdin:
    command = line.strip()
    if command == "end":
        break
    if command == "kernel":
        gpu.launch(function, (10_000,), (ctypes.c_uint64,), stream=stream)
    elif command == "together":
        value = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        unit_extent = (1, 1, 1)
        ok(driver.cuLaunchCooperativeKernel(function, *unit_extent, *unit_extent, 0, stream, ctypes.addressof(value)))
    elif command == "thread":
        gpu.launch(function, (10_000,), (ctypes.c_uint64,), stream=driver.CUstream(driver.CU_STREAM_PER_THREAD))
    elif command == "graph":
        ok(driver.cuGraphLaunch(exec_graph, stream))
    elif command in graphs:
        ok(driver.cuGraphLaunch(graphs[command], stream))
    elif command == "copy":
        ok(driver.cuMemcpyHtoDAsync(pointer, words.ctypes.data, words.nbytes, stream))
    elif command == "memset":
        ok(driver.cuMemsetD32Async(pointer, 1, words.size, stream))
    elif command == "capture":
        capture_kernel()
    print(command, flush=True)
ok(driver.cuCtxSynchronize())
print("ended")
