"""Updates of executable graphs from graphs of the same shape; other differences are reported and change nothing."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
library = ctypes.CDLL("libcuda.so.1")
Why = driver.CUgraphExecUpdateResult
stream = ok(driver.cuStreamCreate(1))
COUNT = 256
U64, F32 = ctypes.c_uint64, ctypes.c_float
a, b = (ok(driver.cuMemAlloc(COUNT * 4)) for _ in range(2))
out = np.zeros(2 * COUNT, np.float32)
fill = gpu.function("fill")


def capture_fills(values: tuple[float, float], *, order: str = "ab", copies: bool = True) -> Any:
    """Return a captured graph that fills a and b and copies both to the host."""
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    for name in order:
        if name == "-":
            ok(driver.cuMemsetD32Async(a, 0, COUNT, stream))
            continue
        pointer, value = (a, values[0]) if name == "a" else (b, values[1])
        gpu.launch(fill, (int(pointer), value, COUNT), (U64, F32, U64), stream=stream)
    if copies:
        ok(driver.cuMemcpyDtoHAsync(out.ctypes.data, a, COUNT * 4, stream))
        ok(driver.cuMemcpyDtoHAsync(out.ctypes.data + COUNT * 4, b, COUNT * 4, stream))
    return ok(driver.cuStreamEndCapture(stream))


class Info(ctypes.Structure):
    """The reason why an update failed, which the bindings do not return."""

    _fields_ = (("result", ctypes.c_int), ("node", ctypes.c_void_p), ("from_node", ctypes.c_void_p))


def assert_update_fails(graph: Any) -> Info:
    info = Info()
    result = library.cuGraphExecUpdate_v2(
        ctypes.c_void_p(int(exec_graph)), ctypes.c_void_p(int(graph)), ctypes.byref(info)
    )
    assert result == int(driver.CUresult.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
    assert launch() == (3.0, 4.0)
    return info


def launch() -> tuple[float, float]:
    ok(driver.cuGraphLaunch(exec_graph, stream))
    ok(driver.cuStreamSynchronize(stream))
    return float(out[0]), float(out[COUNT])


exec_graph = ok(driver.cuGraphInstantiate(capture_fills((1.0, 2.0)), 0))
assert launch() == (1.0, 2.0)
info = ok(driver.cuGraphExecUpdate(exec_graph, capture_fills((3.0, 4.0))))
assert info.result == Why.CU_GRAPH_EXEC_UPDATE_SUCCESS
assert launch() == (3.0, 4.0)

for changed, why in (
    (capture_fills((5.0, 6.0), order="aba"), Why.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED),
    (capture_fills((5.0, 6.0), copies=False), Why.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED),
    (capture_fills((5.0, 6.0), order="-b"), Why.CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED),
):
    assert assert_update_fails(changed).result == int(why)

# The same nodes with other edges.
wide = capture_fills((7.0, 8.0))
nodes, count = ok(driver.cuGraphGetNodes(wide, 4))
ok(driver.cuGraphAddDependencies(wide, [nodes[0]], [nodes[2]], [driver.CUgraphEdgeData()], 1))
why = assert_update_fails(wide)
assert why.result == int(Why.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED)
assert why.node == int(nodes[2])

# One node at a time, and only as what it is.
source = capture_fills((1.0, 1.0))
nodes, count = ok(driver.cuGraphGetNodes(source, 4))
exec_graph = ok(driver.cuGraphInstantiate(source, 0))
params = ok(driver.cuGraphMemcpyNodeGetParams(nodes[3]))
params.dstHost = out.ctypes.data  # b's copy over a's
ok(driver.cuGraphExecMemcpyNodeSetParams(exec_graph, nodes[3], params, gpu.context))
out[:] = 0
assert launch() == (1.0, 0.0)
params.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE  # no longer to the host: another mapping
params.dstDevice = int(a)
assert code(driver.cuGraphExecMemcpyNodeSetParams(exec_graph, nodes[3], params, gpu.context)) == (
    "CUDA_ERROR_INVALID_VALUE"
)
zeros = driver.CUDA_MEMSET_NODE_PARAMS()
assert code(driver.cuGraphExecMemsetNodeSetParams(exec_graph, nodes[0], zeros, gpu.context)) == (
    "CUDA_ERROR_INVALID_VALUE"
)

# A child graph as a whole.
parent = ok(driver.cuGraphCreate(0))
child = ok(driver.cuGraphAddChildGraphNode(parent, None, 0, capture_fills((2.0, 2.0))))
exec_graph = ok(driver.cuGraphInstantiate(parent, 0))
assert launch() == (2.0, 2.0)
ok(driver.cuGraphExecChildGraphNodeSetParams(exec_graph, child, capture_fills((9.0, 8.0))))
assert launch() == (9.0, 8.0)
assert code(driver.cuGraphExecChildGraphNodeSetParams(exec_graph, child, capture_fills((1.0, 1.0), order="a"))) == (
    "CUDA_ERROR_INVALID_VALUE"
)
assert launch() == (9.0, 8.0)
print("updated")
