"""Allocate every kind of device memory until none is left and free it; the counters must be as before."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver
from cuda_helpers import Gpu, code, ok

UNIT = 2 << 20
gpu = Gpu()
rng = random.Random(int(sys.argv[1]))
NONBLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
streams = [ok(driver.cuStreamCreate(NONBLOCKING)) for _ in range(3)]
start_bytes, total_bytes = ok(driver.cuMemGetInfo())
FULL = "CUDA_ERROR_OUT_OF_MEMORY"
DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
PINNED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
pool_props = driver.CUmemPoolProps()
pool_props.allocType, pool_props.location.type = PINNED, DEVICE
pool = ok(driver.cuMemPoolCreate(pool_props))
Release = Callable[[], Any]


def value_unless_full(answer: tuple[Any, ...]) -> Any:
    """Return the value of a call; None if the device is full."""
    return None if code(answer) == FULL else ok(answer)


def plain(size: int) -> Release | None:
    pointer = value_unless_full(driver.cuMemAlloc(size))
    return None if pointer is None else lambda: ok(driver.cuMemFree(pointer))


def pooled(size: int) -> Release | None:
    stream = rng.choice(streams)
    if rng.random() < 0.5:
        pointer = value_unless_full(driver.cuMemAllocFromPoolAsync(size, pool, stream))
    else:
        pointer = value_unless_full(driver.cuMemAllocAsync(size, stream))
    if pointer is None:
        return None
    ok(driver.cuMemsetD8Async(pointer, 1, 64, stream))
    return lambda: ok(driver.cuMemFreeAsync(pointer, stream))


def array(size: int) -> Release | None:
    shape = driver.CUDA_ARRAY_DESCRIPTOR()
    shape.Width, shape.Height, shape.NumChannels = 16384, max(1, min(size // 262144, 16384)), 4
    shape.Format = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT32
    handle = value_unless_full(driver.cuArrayCreate(shape))
    return None if handle is None else lambda: ok(driver.cuArrayDestroy(handle))


def mapped(size: int) -> Release | None:
    size = -(-size // UNIT) * UNIT
    props = driver.CUmemAllocationProp()
    props.type, props.location.type = PINNED, DEVICE
    handle = value_unless_full(driver.cuMemCreate(size, props, 0))
    if handle is None:
        return None
    addresses = [int(ok(driver.cuMemAddressReserve(size, UNIT, 0, 0))) for _ in range(rng.randrange(3))]
    for address in addresses:
        ok(driver.cuMemMap(address, size, 0, handle, 0))

    def end() -> None:
        if rng.random() < 0.5:
            ok(driver.cuMemRelease(handle))
            for address in addresses:
                ok(driver.cuMemUnmap(address, size))
        else:
            for address in addresses:
                ok(driver.cuMemUnmap(address, size))
            ok(driver.cuMemRelease(handle))
        for address in addresses:
            ok(driver.cuMemAddressFree(address, size))

    return end


def of_graph(size: int) -> Release | None:
    """Launch a graph with three allocations of which it frees the middle one; it allocates all or none."""
    stream, other_stream = rng.sample(streams, 2)
    ok(driver.cuStreamBeginCapture(stream, RELAXED))
    allocations = [ok(driver.cuMemAllocFromPoolAsync(size // 3 + 1, pool, stream)) for _ in range(3)]
    ok(driver.cuMemsetD8Async(allocations[1], 1, 64, stream))
    ok(driver.cuMemFreeAsync(allocations[1], stream))
    graph = ok(driver.cuStreamEndCapture(stream))
    run = ok(driver.cuGraphInstantiate(graph, 0))
    has_launched = code(driver.cuGraphLaunch(run, stream)) != FULL
    destroys_graph_first = rng.random() < 0.5

    def end_graph() -> None:
        ok(driver.cuGraphExecDestroy(run))
        ok(driver.cuGraphDestroy(graph))

    def end() -> None:
        if destroys_graph_first:
            end_graph()
        ok(driver.cuStreamSynchronize(stream))
        ok(driver.cuMemFree(allocations[0]))
        ok(driver.cuMemFreeAsync(allocations[2], other_stream))
        if not destroys_graph_first:
            end_graph()

    if has_launched:
        return end
    end_graph()
    return None


kinds = (plain, pooled, array, mapped, of_graph)
releases: list[Release] = []
refused = dict.fromkeys(kinds, 0)
for _ in range(400):
    if releases and rng.random() < 0.3:
        releases.pop(rng.randrange(len(releases)))()
        continue
    kind = rng.choice(kinds)
    end = kind(rng.randrange(1, total_bytes // 12))
    refused[kind] += end is None
    if end:
        releases.append(end)
assert all(refused.values()), refused
rng.shuffle(releases)
for end in releases:
    end()
ok(driver.cuCtxSynchronize())
ok(driver.cuMemPoolDestroy(pool))
assert ok(driver.cuMemGetInfo())[0] == start_bytes, start_bytes - ok(driver.cuMemGetInfo())[0]
used = driver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
assert int(ok(driver.cuDeviceGetGraphMemAttribute(gpu.device, used))) == 0
print("given back")
