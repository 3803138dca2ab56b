"""Graphs built node by node: results, order, repeated launches, queries and changes."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
NONBLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
first, second = ok(driver.cuStreamCreate(NONBLOCKING)), ok(driver.cuStreamCreate(NONBLOCKING))
COUNT = 1024
U64, F32 = ctypes.c_uint64, ctypes.c_float
a, b, c = (ok(driver.cuMemAlloc(COUNT * 4)) for _ in range(3))
out = np.empty(COUNT, np.float32)
FILL, ADD, SPIN = (gpu.function(name) for name in ("fill", "vecadd", "spin"))


def kernel(function: Any, values: tuple[Any, ...], types: tuple[Any, ...]) -> Any:
    """Return the parameters of a kernel node; they keep the values alive."""
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = function
    params.gridDimX, params.gridDimY, params.gridDimZ = 4, 1, 1
    params.blockDimX, params.blockDimY, params.blockDimZ = 256, 1, 1
    params.kernelParams = (values, types)
    return params


def fill(pointer: Any, value: float) -> Any:
    return kernel(FILL, (int(pointer), value, COUNT), (U64, F32, U64))


def line(target: int, source: int, count: int) -> Any:
    """Return parameters of a copy of `count` bytes between any two memories."""
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

# Later work of the stream waits for the whole graph; the same executable in another stream waits for its turn.
with gpu.hold(first):
    ok(driver.cuGraphLaunch(exec_graph, first))
    ok(driver.cuGraphLaunch(exec_graph, second))
    assert code(driver.cuStreamQuery(second)) == "CUDA_ERROR_NOT_READY"
    ok(driver.cuMemsetD32Async(c, 0, COUNT, second))
ok(driver.cuStreamSynchronize(second))
ok(driver.cuMemcpyDtoH(out, c, out.nbytes))
assert (out == 0).all()
ok(driver.cuStreamQuery(first))

# Queries: nodes in the order of creation, roots, edges, neighbours, kinds, parameters.
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

# Changing a graph does not change its executable, and changing the executable does not change the graph.
ok(driver.cuGraphKernelNodeSetParams(left, fill(a, 10.0)))
ok(driver.cuGraphLaunch(exec_graph, first))
ok(driver.cuStreamSynchronize(first))
assert (out == 5).all()
ok(driver.cuGraphExecKernelNodeSetParams(exec_graph, right, fill(b, 30.0)))
ok(driver.cuGraphLaunch(exec_graph, first))
ok(driver.cuStreamSynchronize(first))
assert (out == 32).all()
with gpu.hold(first):
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

# A child graph is a copy, and runs between its dependencies and dependents.
values: list[float] = []


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def note(_: object) -> None:
    values.append(float(out[0]))


host = driver.CUDA_HOST_NODE_PARAMS()
host.fn = driver.CUhostFn(ctypes.cast(note, ctypes.c_void_p).value)
parent = ok(driver.cuGraphCreate(0))
early = ok(driver.cuGraphAddHostNode(parent, None, 0, host))
child = ok(driver.cuGraphAddChildGraphNode(parent, [early], 1, graph))
late = ok(driver.cuGraphAddHostNode(parent, [child], 1, host))
assert int(ok(driver.cuGraphChildGraphNodeGetGraph(child))) != int(graph)
ok(driver.cuGraphDestroy(graph))
parent_exec = ok(driver.cuGraphInstantiate(parent, 0))
ok(driver.cuGraphLaunch(parent_exec, first))
ok(driver.cuStreamSynchronize(first))
assert values == [17.0, 13.0], values

# Destroyed in flight: the launch still completes.
values.clear()
with gpu.hold(second):
    ok(driver.cuGraphLaunch(parent_exec, second))
    ok(driver.cuGraphExecDestroy(parent_exec))
    ok(driver.cuGraphDestroy(parent))
ok(driver.cuStreamSynchronize(second))
assert values == [13.0, 13.0], values

# Events: a graph waits for one and records another.
event, recorded = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
graph = ok(driver.cuGraphCreate(0))
waits = ok(driver.cuGraphAddEventWaitNode(graph, None, 0, event))
filled = ok(driver.cuGraphAddKernelNode(graph, [waits], 1, fill(a, 21.0)))
ok(driver.cuGraphAddEventRecordNode(graph, [filled], 1, recorded))
exec_graph = ok(driver.cuGraphInstantiate(graph, 0))
with gpu.hold(second):
    ok(driver.cuEventRecord(event, second))
    ok(driver.cuGraphLaunch(exec_graph, first))
    assert code(driver.cuEventQuery(recorded)) == "CUDA_ERROR_NOT_READY"
ok(driver.cuEventSynchronize(recorded))
ok(driver.cuStreamQuery(second))
ok(driver.cuMemcpyDtoH(out, a, out.nbytes))
assert (out == 21).all()

# Branches run side by side: the device needs the time of one, not of both.
graph = ok(driver.cuGraphCreate(0))
for _ in range(2):
    ok(driver.cuGraphAddKernelNode(graph, None, 0, kernel(SPIN, (50_000_000,), (U64,))))
exec_branches = ok(driver.cuGraphInstantiate(graph, 0))
start_event, end_event = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
with gpu.hold(first):  # so that the host does not affect the time between the events
    gpu.spin(1_000_000, first)
    ok(driver.cuEventRecord(start_event, first))
    ok(driver.cuGraphLaunch(exec_branches, first))
    ok(driver.cuEventRecord(end_event, first))
ok(driver.cuStreamSynchronize(first))
assert 50.0 <= ok(driver.cuEventElapsedTime(start_event, end_event)) < 100.0

# A cycle is refused at instantiation, and the node is reported.
graph = ok(driver.cuGraphCreate(0))
first_node, second_node = ok(driver.cuGraphAddEmptyNode(graph, None, 0)), ok(driver.cuGraphAddEmptyNode(graph, None, 0))
edge = [driver.CUgraphEdgeData()]
ok(driver.cuGraphAddDependencies(graph, [first_node], [second_node], edge, 1))
assert code(driver.cuGraphAddDependencies(graph, [first_node], [second_node], edge, 1)) == "CUDA_ERROR_INVALID_VALUE"
ok(driver.cuGraphAddDependencies(graph, [second_node], [first_node], edge, 1))
assert code(driver.cuGraphInstantiate(graph, 0)) == "CUDA_ERROR_INVALID_VALUE"
params = driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
assert code(driver.cuGraphInstantiateWithParams(graph, params)) == "CUDA_ERROR_INVALID_VALUE"
assert params.result_out == driver.CUgraphInstantiateResult.CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
assert int(params.hErrNode_out) in {int(first_node), int(second_node)}
ok(driver.cuGraphRemoveDependencies(graph, [second_node], [first_node], edge, 1))
ok(driver.cuGraphInstantiate(graph, 0))

# Dot output; and destroyed objects are invalid.
with tempfile.NamedTemporaryFile() as picture:
    ok(driver.cuGraphDebugDotPrint(graph, picture.name.encode(), 0))
    assert Path(picture.name).read_text().count("->") == 1
ok(driver.cuGraphDestroy(graph))
assert code(driver.cuGraphDestroy(graph)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuGraphNodeGetType(first_node)) == "CUDA_ERROR_INVALID_VALUE"
print("graphs go")
