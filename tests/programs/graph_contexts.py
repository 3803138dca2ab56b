"""Graphs and contexts: nodes of two contexts in one graph, and what is left of a graph when one of them ends."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver
from face import Gpu, code, ok

mine, other = Gpu(), Gpu()
COUNT = 256
U64, F32 = ctypes.c_uint64, ctypes.c_float
theirs = ok(driver.cuMemAlloc(COUNT * 4))
their_fill = other.function("fill")
ok(driver.cuCtxSetCurrent(mine.context))
pointer = ok(driver.cuMemAlloc(COUNT * 4))
fill = mine.function("fill")
stream = ok(driver.cuStreamCreate(0))
out = np.zeros(2 * COUNT, np.float32)


def kernel(function: Any, context: Any, target: Any, value: float) -> Any:
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func, params.ctx = function, context
    params.gridDimX = params.gridDimY = params.gridDimZ = 1
    params.blockDimX, params.blockDimY, params.blockDimZ = 256, 1, 1
    params.kernelParams = ((int(target), value, COUNT), (U64, F32, U64))
    return params


def line(target: int, source: Any) -> Any:
    copy = driver.CUDA_MEMCPY3D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    copy.srcDevice, copy.dstDevice = int(source), target
    copy.WidthInBytes, copy.Height, copy.Depth = COUNT * 4, 1, 1
    return copy


# There and back again: each node in its own context, in the order of the edges.
graph = ok(driver.cuGraphCreate(0))
first = ok(driver.cuGraphAddKernelNode(graph, None, 0, kernel(fill, mine.context, pointer, 1.0)))
second = ok(driver.cuGraphAddKernelNode(graph, [first], 1, kernel(their_fill, other.context, theirs, 2.0)))
third = ok(driver.cuGraphAddKernelNode(graph, [second], 1, kernel(fill, mine.context, pointer, 3.0)))
copied = ok(driver.cuGraphAddMemcpyNode(graph, [third], 1, line(out.ctypes.data, pointer), mine.context))
ok(driver.cuGraphAddMemcpyNode(graph, [copied], 1, line(out.ctypes.data + COUNT * 4, theirs), other.context))
exec_graph = ok(driver.cuGraphInstantiate(graph, 0))
for handle in (stream, 0):
    out[:] = 0
    ok(driver.cuGraphLaunch(exec_graph, handle))
    ok(driver.cuStreamSynchronize(handle))
    assert (float(out[0]), float(out[COUNT])) == (3.0, 2.0)

# A function in a context that is not its own.
wrong = kernel(fill, other.context, pointer, 1.0)
assert code(driver.cuGraphAddKernelNode(graph, None, 0, wrong)) == "CUDA_ERROR_INVALID_VALUE"

# Launched from the other side: the same nodes, placed anew.
ok(driver.cuCtxSetCurrent(other.context))
out[:] = 0
ok(driver.cuGraphLaunch(exec_graph, 0))
ok(driver.cuCtxSynchronize())
assert (float(out[0]), float(out[COUNT])) == (3.0, 2.0)

# One of them ends: no launch any more, but all can be taken apart.
ok(driver.cuCtxSetCurrent(mine.context))
ok(driver.cuCtxDestroy(other.context))
assert code(driver.cuGraphLaunch(exec_graph, stream)) == "CUDA_ERROR_CONTEXT_IS_DESTROYED"
ok(driver.cuGraphExecDestroy(exec_graph))
ok(driver.cuGraphDestroy(graph))

# A module that is gone takes its nodes' meaning along.
graph = ok(driver.cuGraphCreate(0))
ok(driver.cuGraphAddKernelNode(graph, None, 0, kernel(fill, mine.context, pointer, 1.0)))
exec_graph = ok(driver.cuGraphInstantiate(graph, 0))
ok(driver.cuModuleUnload(mine.module))
assert code(driver.cuGraphLaunch(exec_graph, stream)) == "CUDA_ERROR_INVALID_HANDLE"

# A capture ends with its context.
ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
ok(driver.cuMemsetD32Async(pointer, 0, COUNT, stream))
ok(driver.cuCtxDestroy(mine.context))
last = Gpu()
ok(driver.cuMemFree(ok(driver.cuMemAlloc(64))))
print("taken apart")
