"""Graphs built node by node: what they compute, in which order, how often, and how they are asked about and changed."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver
from face import Gpu, code, ok

gpu = Gpu()
NONBLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
first, second = ok(driver.cuStreamCreate(NONBLOCKING)), ok(driver.cuStreamCreate(NONBLOCKING))
COUNT = 1024
U64, F32 = ctypes.c_uint64, ctypes.c_float
a, b, c = (ok(driver.cuMemAlloc(COUNT * 4)) for _ in range(3))
out = np.empty(COUNT, np.float32)
FILL, ADD, SPIN = (gpu.function(name) for name in ("fill", "vecadd", "spin"))


def kernel(function: Any, values: tuple[Any, ...], types: tuple[Any, ...]) -> Any:
    """The parameters of a kernel node; the values are kept alive with them."""
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = function
    params.gridDimX, params.gridDimY, params.gridDimZ = 4, 1, 1
    params.blockDimX, params.blockDimY, params.blockDimZ = 256, 1, 1
    params.kernelParams = (values, types)
    return params


def fill(pointer: Any, value: float) -> Any:
    return kernel(FILL, (int(pointer), value, COUNT), (U64, F32, U64))


def line(target: int, source: int, count: int) -> Any:
    """A copy of so many bytes, whichever side each is on."""
    copy = driver.CUDA_MEMCPY3D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    copy.srcDevice, copy.dstDevice = source, target
    copy.WidthInBytes, copy.Height, copy.Depth = count, 1, 1
    return copy


# A diamond: two fills side by side, then their sum, then out to the host.
graph = ok(driver.cuGraphCreate(0))
start = ok(driver.cuGraphAddEmptyNode(graph, None, 0))
left = ok(driver.cuGraphAddKernelNode(graph, [start], 1, fill(a, 2.0)))
right = ok(driver.cuGraphAddKernelNode(graph, [start], 1, fill(b, 3.0)))
total = ok(
    driver.cuGraphAddKernelNode(
        graph, [left, right], 2, kernel(ADD, (int(a), int(b), int(c), COUNT), (U64, U64, U64, U64))
    )
)
copied = ok(driver.cuGraphAddMemcpyNode(graph, [total], 1, line(out.ctypes.data, int(c), out.nbytes), gpu.context))
exec_graph = ok(driver.cuGraphInstantiate(graph, 0))
for _ in range(3):
    out[:] = 0
    ok(driver.cuGraphLaunch(exec_graph, first))
    ok(driver.cuStreamSynchronize(first))
    assert (out == 5).all()

# What stands behind it in the stream waits for all of it; the same graph in another stream waits its turn.
with gpu.held(first):
    ok(driver.cuGraphLaunch(exec_graph, first))
    ok(driver.cuGraphLaunch(exec_graph, second))
    assert code(driver.cuStreamQuery(second)) == "CUDA_ERROR_NOT_READY"
    ok(driver.cuMemsetD32Async(c, 0, COUNT, second))
ok(driver.cuStreamSynchronize(second))
ok(driver.cuMemcpyDtoH(out, c, out.nbytes))
assert (out == 0).all()
ok(driver.cuStreamQuery(first))

# Asked about: nodes in the order made, roots, edges, neighbours, kinds, parameters.
_, count = ok(driver.cuGraphGetNodes(graph, 0))
assert count == 5
nodes, _ = ok(driver.cuGraphGetNodes(graph, count))
assert [int(node) for node in nodes] == [int(node) for node in (start, left, right, total, copied)]
_, count = ok(driver.cuGraphGetRootNodes(graph, 0))
assert count == 1
_, _, _, count = ok(driver.cuGraphGetEdges(graph, 0))
assert count == 5
before, _, count = ok(driver.cuGraphNodeGetDependencies(total, 2))
assert [int(node) for node in before] == [int(left), int(right)]
_, _, count = ok(driver.cuGraphNodeGetDependentNodes(start, 0))
assert count == 2
assert ok(driver.cuGraphNodeGetType(total)) == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
assert ok(driver.cuGraphNodeGetType(start)) == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_EMPTY
assert int(ok(driver.cuGraphKernelNodeGetParams(left)).func) == int(FILL)
assert ok(driver.cuGraphMemcpyNodeGetParams(copied)).WidthInBytes == out.nbytes

# A change of the graph is none of what was made of it before; a change of that is none of the graph.
ok(driver.cuGraphKernelNodeSetParams(left, fill(a, 10.0)))
ok(driver.cuGraphLaunch(exec_graph, first))
ok(driver.cuStreamSynchronize(first))
assert (out == 5).all()
ok(driver.cuGraphExecKernelNodeSetParams(exec_graph, right, fill(b, 30.0)))
ok(driver.cuGraphLaunch(exec_graph, first))
ok(driver.cuStreamSynchronize(first))
assert (out == 32).all()
with gpu.held(first):
    ok(driver.cuGraphLaunch(exec_graph, first))
    ok(driver.cuGraphExecKernelNodeSetParams(exec_graph, right, fill(b, 50.0)))  # not of the launch that still waits
ok(driver.cuStreamSynchronize(first))
assert (out == 32).all()

# Switched off: the others keep their order.
ok(driver.cuMemsetD32(b, 0, COUNT))
ok(driver.cuGraphNodeSetEnabled(exec_graph, right, 0))
assert ok(driver.cuGraphNodeGetEnabled(exec_graph, right)) == 0
ok(driver.cuGraphLaunch(exec_graph, first))
ok(driver.cuStreamSynchronize(first))
assert (out == 2).all()

# A clone is a graph of its own; its nodes are found by those of the first.
clone = ok(driver.cuGraphClone(graph))
twin = ok(driver.cuGraphNodeFindInClone(right, clone))
assert int(twin) != int(right)
ok(driver.cuGraphKernelNodeSetParams(twin, fill(b, 7.0)))
of_clone = ok(driver.cuGraphInstantiate(clone, 0))
ok(driver.cuGraphDestroy(clone))
ok(driver.cuGraphLaunch(of_clone, first))
ok(driver.cuStreamSynchronize(first))
assert (out == 17).all()

# A graph in a graph: a copy of it, run between what is before and behind.
seen: list[float] = []


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def note(_: object) -> None:
    seen.append(float(out[0]))


host = driver.CUDA_HOST_NODE_PARAMS()
host.fn = driver.CUhostFn(ctypes.cast(note, ctypes.c_void_p).value)
parent = ok(driver.cuGraphCreate(0))
early = ok(driver.cuGraphAddHostNode(parent, None, 0, host))
child = ok(driver.cuGraphAddChildGraphNode(parent, [early], 1, graph))
late = ok(driver.cuGraphAddHostNode(parent, [child], 1, host))
assert int(ok(driver.cuGraphChildGraphNodeGetGraph(child))) != int(graph)
ok(driver.cuGraphDestroy(graph))
whole = ok(driver.cuGraphInstantiate(parent, 0))
ok(driver.cuGraphLaunch(whole, first))
ok(driver.cuStreamSynchronize(first))
assert seen == [17.0, 13.0], seen

# Destroyed in flight: it still ends what it began.
seen.clear()
with gpu.held(second):
    ok(driver.cuGraphLaunch(whole, second))
    ok(driver.cuGraphExecDestroy(whole))
    ok(driver.cuGraphDestroy(parent))
ok(driver.cuStreamSynchronize(second))
assert seen == [13.0, 13.0], seen

# Events: a graph waits for one and records another.
event, mark = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
graph = ok(driver.cuGraphCreate(0))
waits = ok(driver.cuGraphAddEventWaitNode(graph, None, 0, event))
filled = ok(driver.cuGraphAddKernelNode(graph, [waits], 1, fill(a, 21.0)))
ok(driver.cuGraphAddEventRecordNode(graph, [filled], 1, mark))
exec_graph = ok(driver.cuGraphInstantiate(graph, 0))
with gpu.held(second):
    ok(driver.cuEventRecord(event, second))
    ok(driver.cuGraphLaunch(exec_graph, first))
    assert code(driver.cuEventQuery(mark)) == "CUDA_ERROR_NOT_READY"
ok(driver.cuEventSynchronize(mark))
ok(driver.cuStreamQuery(second))
ok(driver.cuMemcpyDtoH(out, a, out.nbytes))
assert (out == 21).all()

# Branches run side by side: the device needs the time of one, not of both.
graph = ok(driver.cuGraphCreate(0))
for _ in range(2):
    ok(driver.cuGraphAddKernelNode(graph, None, 0, kernel(SPIN, (50_000_000,), (U64,))))
both = ok(driver.cuGraphInstantiate(graph, 0))
start_mark, end_mark = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
with gpu.held(first):  # so that the host has no part in what lies between the marks
    gpu.spin(1_000_000, first)
    ok(driver.cuEventRecord(start_mark, first))
    ok(driver.cuGraphLaunch(both, first))
    ok(driver.cuEventRecord(end_mark, first))
ok(driver.cuStreamSynchronize(first))
assert 50.0 <= ok(driver.cuEventElapsedTime(start_mark, end_mark)) < 100.0

# A circle is refused when it is to be made executable, and the node is named.
graph = ok(driver.cuGraphCreate(0))
one, two = ok(driver.cuGraphAddEmptyNode(graph, None, 0)), ok(driver.cuGraphAddEmptyNode(graph, None, 0))
edge = [driver.CUgraphEdgeData()]
ok(driver.cuGraphAddDependencies(graph, [one], [two], edge, 1))
assert code(driver.cuGraphAddDependencies(graph, [one], [two], edge, 1)) == "CUDA_ERROR_INVALID_VALUE"
ok(driver.cuGraphAddDependencies(graph, [two], [one], edge, 1))
assert code(driver.cuGraphInstantiate(graph, 0)) == "CUDA_ERROR_INVALID_VALUE"
params = driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
assert code(driver.cuGraphInstantiateWithParams(graph, params)) == "CUDA_ERROR_INVALID_VALUE"
assert params.result_out == driver.CUgraphInstantiateResult.CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
assert int(params.hErrNode_out) in {int(one), int(two)}
ok(driver.cuGraphRemoveDependencies(graph, [two], [one], edge, 1))
ok(driver.cuGraphInstantiate(graph, 0))

# A picture; and what is gone is gone.
with tempfile.NamedTemporaryFile() as picture:
    ok(driver.cuGraphDebugDotPrint(graph, picture.name.encode(), 0))
    assert Path(picture.name).read_text().count("->") == 1
ok(driver.cuGraphDestroy(graph))
assert code(driver.cuGraphDestroy(graph)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuGraphNodeGetType(one)) == "CUDA_ERROR_INVALID_VALUE"
print("graphs go")
