"""Graph memory: a fixed address with memory from alloc to free; and user objects that live as long as their users."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

gpu = Gpu()
stream = ok(driver.cuStreamCreate(1))
BYTES = 1 << 20
Used = driver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
High = driver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH


def memory(attribute: Any) -> int:
    return int(ok(driver.cuDeviceGetGraphMemAttribute(gpu.device, attribute)))


def free_bytes() -> int:
    return int(ok(driver.cuMemGetInfo())[0])


params = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
params.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
params.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
params.poolProps.location.id = 0
params.bytesize = BYTES
untouched = free_bytes()
graph = ok(driver.cuGraphCreate(0))
alloc_node = ok(driver.cuGraphAddMemAllocNode(graph, None, 0, params))
pointer = int(params.dptr)
assert pointer
assert free_bytes() == untouched  # an address is not yet memory
assert code(driver.cuMemsetD8(pointer, 1, 16)) == "CUDA_ERROR_INVALID_VALUE"

# Not freed by the graph: it lives on, and the graph cannot run again until it is freed.
exec_graph = ok(driver.cuGraphInstantiate(graph, 0))
assert code(driver.cuGraphInstantiate(graph, 0)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuGraphClone(graph)) == "CUDA_ERROR_NOT_SUPPORTED"
assert code(driver.cuGraphDestroyNode(alloc_node)) == "CUDA_ERROR_NOT_SUPPORTED"
ok(driver.cuGraphLaunch(exec_graph, stream))
ok(driver.cuMemsetD8Async(pointer, 1, BYTES, stream))
assert (memory(Used), free_bytes()) == (BYTES, untouched - BYTES)
assert code(driver.cuGraphLaunch(exec_graph, stream)) == "CUDA_ERROR_INVALID_VALUE"
ok(driver.cuMemFreeAsync(pointer, stream))
ok(driver.cuGraphLaunch(exec_graph, stream))  # the same address, while the free may still be to come
ok(driver.cuMemsetD8Async(pointer, 1, BYTES, stream))
ok(driver.cuStreamSynchronize(stream))
assert memory(Used) == BYTES
ok(driver.cuMemFree(pointer))
assert (memory(Used), memory(High), free_bytes()) == (0, BYTES, untouched)
ok(driver.cuDeviceSetGraphMemAttribute(gpu.device, High, driver.cuuint64_t(0)))
assert memory(High) == 0
ok(driver.cuDeviceGraphMemTrim(gpu.device))
ok(driver.cuGraphExecDestroy(exec_graph))

# Freed by each launch of the graph itself, if requested.
automatic = ok(driver.cuGraphInstantiate(graph, 1))
for _ in range(3):
    ok(driver.cuGraphLaunch(automatic, stream))
ok(driver.cuStreamSynchronize(stream))
assert memory(Used) == BYTES

# Freed by a graph of its own, once.
ending = ok(driver.cuGraphCreate(0))
ok(driver.cuGraphAddMemFreeNode(ending, None, 0, pointer))
assert code(driver.cuGraphAddMemFreeNode(ending, None, 0, pointer)) == "CUDA_ERROR_INVALID_VALUE"
assert code(driver.cuGraphAddMemFreeNode(ending, None, 0, pointer + 512)) == "CUDA_ERROR_INVALID_VALUE"
ends = ok(driver.cuGraphInstantiate(ending, 0))
ok(driver.cuGraphLaunch(ends, stream))
ok(driver.cuStreamSynchronize(stream))
assert (memory(Used), free_bytes()) == (0, untouched)
assert code(driver.cuGraphLaunch(ends, stream)) == "CUDA_ERROR_INVALID_VALUE"

# A user object is destroyed with its last holder, and not while a launch still runs.
ended: list[int] = []


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def end(_: object) -> None:
    ended.append(1)


destroy = driver.CUhostFn(ctypes.cast(end, ctypes.c_void_p).value)
user_object = ok(driver.cuUserObjectCreate(0, destroy, 1, 1))
holder = ok(driver.cuGraphCreate(0))
ok(driver.cuGraphRetainUserObject(holder, user_object, 1, 1))  # moved: owned by the graph from now on
exec_holder = ok(driver.cuGraphInstantiate(holder, 0))
ok(driver.cuGraphDestroy(holder))
assert ended == []
with gpu.hold(stream):
    ok(driver.cuGraphLaunch(exec_holder, stream))
    ok(driver.cuGraphExecDestroy(exec_holder))
    assert ended == []
ok(driver.cuCtxSynchronize())
assert ended == [1]
user_object = ok(driver.cuUserObjectCreate(0, destroy, 2, 1))
ok(driver.cuUserObjectRelease(user_object, 1))
assert ended == [1]
ok(driver.cuUserObjectRelease(user_object, 1))
assert ended == [1, 1]
print("given back")
