"""Graphs and contexts: nodes of two contexts in one graph, and a graph after one of its contexts is destroyed."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

own, other = Gpu(), Gpu()
COUNT = 256
U64, F32 = ctypes.c_uint64, ctypes.c_float
other_pointer = ok(driver.cuMemAlloc(COUNT * 4))
other_fill = other.function("fill")
ok(driver.cuCtxSetCurrent(own.context))
pointer = ok(driver.cuMemAlloc(COUNT * 4))
fill = own.function("fill")
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


# Nodes alternate between contexts, in the order of the edges.
graph = ok(driver.cuGraphCreate(0))
first = ok(driver.cuGraphAddKernelNode(graph, None, 0, kernel(fill, own.context, pointer, 1.0)))
second = ok(driver.cuGraphAddKernelNode(graph, [first], 1, kernel(other_fill, other.context, other_pointer, 2.0)))
third = ok(driver.cuGraphAddKernelNode(graph, [second], 1, kernel(fill, own.context, pointer, 3.0)))
copied = ok(driver.cuGraphAddMemcpyNode(graph, [third], 1, line(out.ctypes.data, pointer), own.context))
ok(driver.cuGraphAddMemcpyNode(graph, [copied], 1, line(out.ctypes.data + COUNT * 4, other_pointer), other.context))
exec_graph = ok(driver.cuGraphInstantiate(graph, 0))
for handle in (stream, 0):
    out[:] = 0
    ok(driver.cuGraphLaunch(exec_graph, handle))
    ok(driver.cuStreamSynchronize(handle))
    assert (float(out[0]), float(out[COUNT])) == (3.0, 2.0)

# A function in a context that is not its own.
mismatched = kernel(fill, other.context, pointer, 1.0)
assert code(driver.cuGraphAddKernelNode(graph, None, 0, mismatched)) == "CUDA_ERROR_INVALID_VALUE"

# Launched from the other context: the same nodes.
ok(driver.cuCtxSetCurrent(other.context))
out[:] = 0
ok(driver.cuGraphLaunch(exec_graph, 0))
ok(driver.cuCtxSynchronize())
assert (float(out[0]), float(out[COUNT])) == (3.0, 2.0)

# After one context is destroyed, launches fail, but all objects can be destroyed.
ok(driver.cuCtxSetCurrent(own.context))
ok(driver.cuCtxDestroy(other.context))
assert code(driver.cuGraphLaunch(exec_graph, stream)) == "CUDA_ERROR_CONTEXT_IS_DESTROYED"
ok(driver.cuGraphExecDestroy(exec_graph))
ok(driver.cuGraphDestroy(graph))

# Nodes of an unloaded module are invalid.
graph = ok(driver.cuGraphCreate(0))
ok(driver.cuGraphAddKernelNode(graph, None, 0, kernel(fill, own.context, pointer, 1.0)))
exec_graph = ok(driver.cuGraphInstantiate(graph, 0))
ok(driver.cuModuleUnload(own.module))
assert code(driver.cuGraphLaunch(exec_graph, stream)) == "CUDA_ERROR_INVALID_HANDLE"

# A capture ends with its context.
ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
ok(driver.cuMemsetD32Async(pointer, 0, COUNT, stream))
ok(driver.cuCtxDestroy(own.context))
last = Gpu()
ok(driver.cuMemFree(ok(driver.cuMemAlloc(64))))
print("taken apart")
