"""Stream capture: work in a captured stream is not done but becomes a graph, forks and joins included."""

from __future__ import annotations

import ctypes

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, ok

gpu = Gpu()
NONBLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
GLOBAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
ACTIVE = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
NONE = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
Kind = driver.CUgraphNodeType
first, second, third = (ok(driver.cuStreamCreate(NONBLOCKING)) for _ in range(3))
COUNT = 1024
U64, F32 = ctypes.c_uint64, ctypes.c_float
a, b, c = (ok(driver.cuMemAlloc(COUNT * 4)) for _ in range(3))
pinned = ok(driver.cuMemHostAlloc(COUNT * 4, 0))
host = np.ctypeslib.as_array(ctypes.cast(int(pinned), ctypes.POINTER(ctypes.c_float)), (COUNT,))
fill, add = gpu.function("fill"), gpu.function("vecadd")
fork, join = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
calls: list[float] = []


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def note(_: object) -> None:
    calls.append(float(host[0]))


def kinds(graph: object) -> list[Kind]:
    _, count = ok(driver.cuGraphGetNodes(graph, 0))
    nodes, _ = ok(driver.cuGraphGetNodes(graph, count))
    return [ok(driver.cuGraphNodeGetType(node)) for node in nodes[:count]]


# Two concurrent streams, joined, copied to the host, followed by a host function.
host[:] = 0
ok(driver.cuStreamBeginCapture(first, GLOBAL))
assert ok(driver.cuStreamIsCapturing(first)) == ACTIVE
assert ok(driver.cuStreamIsCapturing(second)) == NONE
gpu.launch(fill, (int(a), 2.0, COUNT), (U64, F32, U64), stream=first)
ok(driver.cuEventRecord(fork, first))
ok(driver.cuStreamWaitEvent(second, fork, 0))
assert ok(driver.cuStreamIsCapturing(second)) == ACTIVE
gpu.launch(fill, (int(b), 3.0, COUNT), (U64, F32, U64), stream=second)
ok(driver.cuMemsetD32Async(c, 0, COUNT, first))
ok(driver.cuEventRecord(join, second))
ok(driver.cuStreamWaitEvent(first, join, 0))
gpu.launch(add, (int(a), int(b), int(c), COUNT), (U64, U64, U64, U64), stream=first)
ok(driver.cuMemcpyDtoHAsync(int(pinned), c, COUNT * 4, first))
ok(driver.cuLaunchHostFunc(first, ctypes.cast(note, ctypes.c_void_p).value, 0))
status, number, _, tips, _, count = ok(driver.cuStreamGetCaptureInfo(first))
assert (status, count) == (ACTIVE, 1)
assert int(number) > 0
graph = ok(driver.cuStreamEndCapture(first))
assert ok(driver.cuStreamIsCapturing(second)) == NONE
K, S, C, H = (
    Kind.CU_GRAPH_NODE_TYPE_KERNEL,
    Kind.CU_GRAPH_NODE_TYPE_MEMSET,
    Kind.CU_GRAPH_NODE_TYPE_MEMCPY,
    Kind.CU_GRAPH_NODE_TYPE_HOST,
)
assert kinds(graph) == [K, K, S, K, C, H]
ok(driver.cuCtxSynchronize())
assert (host == 0).all()  # nothing of it was done
assert calls == []
exec_graph = ok(driver.cuGraphInstantiate(graph, 0))
ok(driver.cuGraphDestroy(graph))
for _ in range(2):
    ok(driver.cuGraphLaunch(exec_graph, third))
ok(driver.cuStreamSynchronize(third))
assert (host == 5).all()
assert calls == [5.0, 5.0]

# Both streams are free again.
gpu.launch(fill, (int(a), 9.0, COUNT), (U64, F32, U64), stream=second)
ok(driver.cuStreamSynchronize(second))

# What pageable memory holds when the graph runs is copied, not what it held when captured.
source = np.full(COUNT, 1, np.float32)
ok(driver.cuStreamBeginCapture(first, RELAXED))
ok(driver.cuMemcpyHtoDAsync(a, source, source.nbytes, first))
graph = ok(driver.cuStreamEndCapture(first))
copies = ok(driver.cuGraphInstantiate(graph, 0))
source[:] = 4
ok(driver.cuGraphLaunch(copies, first))
ok(driver.cuStreamSynchronize(first))
out = np.empty(COUNT, np.float32)
ok(driver.cuMemcpyDtoH(out, a, out.nbytes))
assert (out == 4).all()

# Memory in stream order, alive in the graph only.
ok(driver.cuStreamBeginCapture(first, GLOBAL))
scratch = ok(driver.cuMemAllocAsync(COUNT * 4, first))
gpu.launch(fill, (int(scratch), 6.0, COUNT), (U64, F32, U64), stream=first)
ok(driver.cuMemcpyDtoHAsync(int(pinned), scratch, COUNT * 4, first))
ok(driver.cuMemFreeAsync(scratch, first))
graph = ok(driver.cuStreamEndCapture(first))
assert kinds(graph) == [Kind.CU_GRAPH_NODE_TYPE_MEM_ALLOC, K, C, Kind.CU_GRAPH_NODE_TYPE_MEM_FREE]
allocates = ok(driver.cuGraphInstantiate(graph, 0))
for _ in range(3):
    ok(driver.cuGraphLaunch(allocates, first))
ok(driver.cuStreamSynchronize(first))
assert (host == 6).all()

# External events: a node that records one, and a node that waits for one.
outside = ok(driver.cuEventCreate(0))
ok(driver.cuStreamBeginCapture(first, GLOBAL))
ok(driver.cuStreamWaitEvent(first, outside, 1))
gpu.launch(fill, (int(a), 12.0, COUNT), (U64, F32, U64), stream=first)
ok(driver.cuEventRecordWithFlags(join, first, 1))
graph = ok(driver.cuStreamEndCapture(first))
assert kinds(graph) == [Kind.CU_GRAPH_NODE_TYPE_WAIT_EVENT, K, Kind.CU_GRAPH_NODE_TYPE_EVENT_RECORD]
tied = ok(driver.cuGraphInstantiate(graph, 0))
gpu.spin(20_000_000, second)
ok(driver.cuEventRecord(outside, second))
ok(driver.cuGraphLaunch(tied, first))
ok(driver.cuEventSynchronize(join))
ok(driver.cuEventQuery(outside))
ok(driver.cuMemcpyDtoH(out, a, out.nbytes))
assert (out == 12).all()

# Capture into an existing graph after one of its nodes, with a manually added node among the captured ones.
graph = ok(driver.cuGraphCreate(0))
begin = ok(driver.cuGraphAddEmptyNode(graph, None, 0))
ok(driver.cuStreamBeginCaptureToGraph(first, graph, [begin], None, 1, GLOBAL))
gpu.launch(fill, (int(a), 1.0, COUNT), (U64, F32, U64), stream=first)
_, _, capture_graph, tips, _, count = ok(driver.cuStreamGetCaptureInfo(first))
assert int(capture_graph) == int(graph)
own_node = ok(driver.cuGraphAddEmptyNode(graph, tips, count))
ok(driver.cuStreamUpdateCaptureDependencies(first, [own_node], None, 1, 1))
gpu.launch(fill, (int(a), 2.0, COUNT), (U64, F32, U64), stream=first)
assert int(ok(driver.cuStreamEndCapture(first))) == int(graph)
E = Kind.CU_GRAPH_NODE_TYPE_EMPTY
assert kinds(graph) == [E, K, E, K]
_, _, _, edges = ok(driver.cuGraphGetEdges(graph, 0))
assert edges == 3

# A graph far longer than the driver's queue.
ok(driver.cuStreamBeginCapture(first, GLOBAL))
for _ in range(4000):
    gpu.spin(1000, first, blocks=1)
gpu.launch(fill, (int(a), 77.0, COUNT), (U64, F32, U64), stream=first)
long = ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(first)), 0))
ok(driver.cuGraphLaunch(long, first))
ok(driver.cuStreamSynchronize(first))
ok(driver.cuMemcpyDtoH(out, a, out.nbytes))
assert (out == 77).all()
print("captured")
