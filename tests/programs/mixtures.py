"""Combinations of driver features: captures, pools, arrays, shared events, mappings, green contexts."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda_helpers import IMAGE, code, ok

UNIT = 2 << 20
NONBLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
VOID = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED
UNSUPPORTED = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
INVALID = "CUDA_ERROR_INVALID_VALUE"
Access = driver.CUmemAccess_flags
ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
primary = ok(driver.cuDevicePrimaryCtxRetain(device))
ok(driver.cuCtxSetCurrent(primary))
start_bytes = ok(driver.cuMemGetInfo())[0]
module = ok(driver.cuModuleLoadData(IMAGE))
fill, spin = (ok(driver.cuModuleGetFunction(module, name)) for name in (b"fill", b"spin"))
stream, other = (ok(driver.cuStreamCreate(NONBLOCKING)) for _ in range(2))


def free_bytes() -> int:
    return int(ok(driver.cuMemGetInfo())[0])


def read(address: int, count: int = 1) -> list[int]:
    back = np.zeros(count, np.uint32)
    ok(driver.cuMemcpyDtoHAsync(back, address, back.nbytes, other))
    ok(driver.cuStreamSynchronize(other))
    return [int(word) for word in back]


def assert_voids(expected: str, call: Any) -> None:
    """Assert that the call returns this code during a capture and invalidates the capture."""
    ok(driver.cuStreamBeginCapture(stream, RELAXED))
    result = code(call())
    assert result == expected, result
    assert ok(driver.cuStreamIsCapturing(stream)) == VOID
    assert code(driver.cuStreamEndCapture(stream)) == "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"


def mapped_memory() -> tuple[int, Any]:
    """Return a mapping without access, and the descriptor with which access is set."""
    props = driver.CUmemAllocationProp()
    props.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    props.location.id = 0
    handle = ok(driver.cuMemCreate(UNIT, props, 0))
    address = int(ok(driver.cuMemAddressReserve(UNIT, UNIT, 0, 0)))
    ok(driver.cuMemMap(address, UNIT, 0, handle, 0))
    ok(driver.cuMemRelease(handle))
    access = driver.CUmemAccessDesc()
    access.location = props.location
    return address, access


def memory_values_respect_access() -> None:
    """Value operations of a stream respect the read and write access of its device."""
    address, access = mapped_memory()
    assert code(driver.cuStreamWaitValue32(stream, address, 0, 0)) == INVALID
    assert code(driver.cuStreamWriteValue32(stream, address, 5, 0)) == INVALID
    access.flags = Access.CU_MEM_ACCESS_FLAGS_PROT_READ
    ok(driver.cuMemSetAccess(address, UNIT, [access], 1))
    ok(driver.cuStreamWaitValue32(stream, address, 0, 0))
    assert code(driver.cuStreamWriteValue32(stream, address, 5, 0)) == INVALID
    ok(driver.cuStreamSynchronize(stream))
    access.flags = Access.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(driver.cuMemSetAccess(address, UNIT, [access], 1))
    ok(driver.cuStreamWriteValue32(stream, address, 5, 0))
    ok(driver.cuStreamSynchronize(stream))
    assert read(address) == [5]
    # A graph finds out at each launch, and one that fails leaves none of its memory behind.
    ok(driver.cuStreamBeginCapture(stream, RELAXED))
    inside = ok(driver.cuMemAllocAsync(UNIT, stream))
    ok(driver.cuMemsetD32Async(inside, 9, 4, stream))
    ok(driver.cuMemcpyDtoDAsync(address, inside, 16, stream))
    ok(driver.cuMemFreeAsync(inside, stream))
    graph = ok(driver.cuStreamEndCapture(stream))
    run = ok(driver.cuGraphInstantiate(graph, 0))
    before = free_bytes()
    ok(driver.cuGraphLaunch(run, stream))
    assert code(driver.cuIpcGetMemHandle(inside)) == INVALID
    ok(driver.cuStreamSynchronize(stream))
    assert read(address, 4) == [9] * 4
    access.flags = Access.CU_MEM_ACCESS_FLAGS_PROT_READ
    ok(driver.cuMemSetAccess(address, UNIT, [access], 1))
    for _ in range(2):
        assert code(driver.cuGraphLaunch(run, stream)) == INVALID
        ok(driver.cuStreamSynchronize(stream))
        assert free_bytes() == before
    access.flags = Access.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(driver.cuMemSetAccess(address, UNIT, [access], 1))
    ok(driver.cuGraphLaunch(run, stream))
    ok(driver.cuMemUnmap(address, UNIT))  # waits for the launch
    assert code(driver.cuGraphLaunch(run, stream)) == INVALID
    ok(driver.cuGraphExecDestroy(run))
    ok(driver.cuGraphDestroy(graph))
    ok(driver.cuMemAddressFree(address, UNIT))


def predicted_waits_do_not_end_early() -> None:
    """A wait that is predicted to follow a kernel does not end with the kernel."""
    word = int(ok(driver.cuMemAlloc(4096)))
    ok(driver.cuMemsetD32(word, 0, 16))
    ok(driver.cuCtxSynchronize())
    ok(driver.cuLaunchKernel(spin, 8, 1, 1, 256, 1, 1, 0, stream, ((3_000_000,), (ctypes.c_uint64,)), 0))
    ok(driver.cuStreamWaitValue32(stream, word, 1, 0))
    ok(driver.cuMemsetD32Async(word + 4, 7, 1, stream))
    time.sleep(0.02)  # nothing is submitted meanwhile, so the forecast holds
    assert code(driver.cuStreamQuery(stream)) == "CUDA_ERROR_NOT_READY"
    assert read(word + 4) == [0]
    # Meanwhile memory is mapped and opened to the device: only taking it away has to wait.
    address, access = mapped_memory()
    access.flags = Access.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(driver.cuMemSetAccess(address, UNIT, [access], 1))
    ok(driver.cuStreamWriteValue32(other, word, 1, 0))
    ok(driver.cuStreamSynchronize(stream))
    assert read(word + 4) == [7]
    ok(driver.cuMemUnmap(address, UNIT))
    ok(driver.cuMemAddressFree(address, UNIT))
    ok(driver.cuMemFree(word))


def captures_reject_unsupported_calls() -> None:
    """Calls that cannot become a node are rejected and invalidate the capture."""
    word = int(ok(driver.cuMemAlloc(4096)))
    assert_voids(UNSUPPORTED, lambda: driver.cuStreamWaitValue32(stream, word, 0, 0))
    assert_voids(UNSUPPORTED, lambda: driver.cuStreamWriteValue32(stream, word, 0, 0))
    managed = ok(driver.cuMemAllocManaged(UNIT, 1))
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    assert_voids(UNSUPPORTED, lambda: driver.cuMemPrefetchAsync(managed, UNIT, location, 0, stream))
    # An event of other processes cannot be a captured one; it is waited for as a node.
    flags = driver.CUevent_flags.CU_EVENT_INTERPROCESS | driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
    shared = ok(driver.cuEventCreate(int(flags)))
    assert_voids("CUDA_ERROR_STREAM_CAPTURE_ISOLATION", lambda: driver.cuStreamWaitEvent(stream, shared, 0))
    # An event that stands for all streams of a context would stand for a captured one, too.
    event = ok(driver.cuEventCreate(0))
    assert_voids(UNSUPPORTED, lambda: driver.cuCtxRecordEvent(primary, event))
    assert_voids(UNSUPPORTED, lambda: driver.cuCtxWaitEvent(primary, event))
    for each in (event, shared):
        ok(driver.cuEventDestroy(each))
    ok(driver.cuMemFree(managed))
    ok(driver.cuMemFree(word))


def captures_support_pools_arrays_and_events() -> None:
    """Pools, arrays and shared events in a capture: the nodes do the same as the calls."""
    flags = driver.CUevent_flags.CU_EVENT_INTERPROCESS | driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
    shared = ok(driver.cuEventCreate(int(flags)))
    props = driver.CUmemPoolProps()
    props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    pool = ok(driver.cuMemPoolCreate(props))
    props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    host_pool = ok(driver.cuMemPoolCreate(props))
    assert_voids(UNSUPPORTED, lambda: driver.cuMemAllocFromPoolAsync(4096, host_pool, stream))
    shape = driver.CUDA_ARRAY_DESCRIPTOR()
    shape.Width, shape.NumChannels = 16, 1
    shape.Format = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT32
    array = ok(driver.cuArrayCreate(shape))
    source, target = (ok(driver.cuMemHostAlloc(64, 0)) for _ in range(2))
    numbers, back = (
        np.ctypeslib.as_array(ctypes.cast(int(each), ctypes.POINTER(ctypes.c_uint32)), (16,))
        for each in (source, target)
    )
    ok(driver.cuStreamBeginCapture(stream, RELAXED))
    inside = ok(driver.cuMemAllocFromPoolAsync(4096, pool, stream))
    ok(driver.cuMemcpyHtoAAsync(array, 0, source, 64, stream))
    ok(driver.cuMemcpyAtoHAsync(target, array, 0, 64, stream))
    ok(driver.cuMemFreeAsync(inside, stream))
    ok(driver.cuEventRecordWithFlags(shared, stream, 1))  # external: a node
    graph = ok(driver.cuStreamEndCapture(stream))
    dead = ok(driver.cuMemPoolCreate(props))
    ok(driver.cuMemPoolDestroy(dead))
    ok(driver.cuStreamBeginCapture(stream, RELAXED))
    assert code(driver.cuMemAllocFromPoolAsync(4096, dead, stream)) == INVALID
    ok(driver.cuGraphDestroy(ok(driver.cuStreamEndCapture(stream))))
    run = ok(driver.cuGraphInstantiate(graph, 0))
    for first in (100, 200):
        numbers[:] = range(first, first + 16)
        back[:] = 0
        ok(driver.cuGraphLaunch(run, stream))
        ok(driver.cuEventSynchronize(shared))
        assert list(back) == list(range(first, first + 16))
    ok(driver.cuArrayDestroy(array))
    assert code(driver.cuGraphLaunch(run, stream)) == INVALID
    ok(driver.cuGraphExecDestroy(run))
    ok(driver.cuGraphDestroy(graph))
    for each in (pool, host_pool):
        ok(driver.cuMemPoolDestroy(each))
    ok(driver.cuEventDestroy(shared))
    for each in (source, target):
        ok(driver.cuMemFreeHost(each))


def green_contexts_share_with_the_primary() -> None:
    """Code, events and memory of the primary context in a green one's captured stream; its allocations outlive it."""
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    parts, _, _ = ok(driver.cuDevSmResourceSplitByCount(1, ok(driver.cuDeviceGetDevResource(device, kind)), 0, 8))
    green = ok(driver.cuGreenCtxCreate(ok(driver.cuDevResourceGenerateDesc(parts[:1], 1)), device, 1))
    context = ok(driver.cuCtxFromGreenCtx(green))
    narrow = ok(driver.cuGreenCtxStreamCreate(green, NONBLOCKING, 0))
    event = ok(driver.cuEventCreate(0))
    memory = int(ok(driver.cuMemAlloc(4096)))
    ok(driver.cuStreamBeginCapture(narrow, RELAXED))
    types = (ctypes.c_uint64, ctypes.c_float, ctypes.c_uint64)
    ok(driver.cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, narrow, ((memory, 1.0, 8), types), 0))
    ok(driver.cuEventRecord(event, narrow))
    ok(driver.cuStreamWaitEvent(stream, event, 0))  # a stream of the primary joins
    ok(driver.cuMemcpyDtoDAsync(memory + 64, memory, 32, stream))
    ok(driver.cuEventRecord(event, stream))
    ok(driver.cuStreamWaitEvent(narrow, event, 0))
    graph = ok(driver.cuStreamEndCapture(narrow))
    run = ok(driver.cuGraphInstantiate(graph, 0))
    for where in (stream, narrow):
        ok(driver.cuMemsetD8Async(memory, 0, 4096, where))
        ok(driver.cuGraphLaunch(run, where))
        ok(driver.cuStreamSynchronize(where))
        assert read(memory + 64, 8) == [0x3F800000] * 8
    ok(driver.cuCtxPushCurrent(context))
    shape = driver.CUDA_ARRAY_DESCRIPTOR()
    shape.Width, shape.NumChannels = 1 << 16, 4
    shape.Format = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT32
    arrays = [ok(driver.cuArrayCreate(shape)) for _ in range(2)]
    pooled = ok(driver.cuMemAllocAsync(4 * UNIT, narrow))
    ok(driver.cuStreamBeginCapture(narrow, RELAXED))
    inside = ok(driver.cuMemAllocAsync(UNIT, narrow))
    kept = ok(driver.cuStreamEndCapture(narrow))
    leaving = ok(driver.cuGraphInstantiate(kept, 0))
    ok(driver.cuGraphLaunch(leaving, narrow))
    ok(driver.cuStreamSynchronize(narrow))
    ok(driver.cuCtxPopCurrent())
    held = start_bytes - free_bytes()
    ok(driver.cuGreenCtxDestroy(green))
    assert start_bytes - free_bytes() == held
    assert code(driver.cuGraphLaunch(run, stream)) == "CUDA_ERROR_CONTEXT_IS_DESTROYED"
    for pointer in (pooled, inside):
        ok(driver.cuMemsetD32(pointer, 3, 4))
        assert read(int(pointer), 4) == [3] * 4
    ok(driver.cuMemFreeAsync(pooled, stream))
    ok(driver.cuMemFree(inside))
    for each in (leaving, run):
        ok(driver.cuGraphExecDestroy(each))
    for each in (graph, kept):
        ok(driver.cuGraphDestroy(each))
    for array in arrays:
        ok(driver.cuArrayDestroy(array))
    ok(driver.cuMemFree(memory))


def green_context_does_not_release_a_new_primary() -> None:
    """A primary context made anew after a reset is not the green context's to release."""
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = ok(driver.cuDevResourceGenerateDesc([ok(driver.cuDeviceGetDevResource(device, kind))], 1))
    green = ok(driver.cuGreenCtxCreate(whole, device, 1))
    ok(driver.cuDevicePrimaryCtxReset(device))
    again = ok(driver.cuDevicePrimaryCtxRetain(device))
    ok(driver.cuCtxSetCurrent(again))
    ok(driver.cuGreenCtxDestroy(green))
    assert ok(driver.cuDevicePrimaryCtxGetState(device))[1] == 1
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(4096))))


for part in (
    memory_values_respect_access,
    predicted_waits_do_not_end_early,
    captures_reject_unsupported_calls,
    captures_support_pools_arrays_and_events,
    green_contexts_share_with_the_primary,
    green_context_does_not_release_a_new_primary,  # last: it resets the device
):
    part()
    ok(driver.cuCtxSynchronize())
    assert free_bytes() == start_bytes, (part.__name__, start_bytes - free_bytes())
print("mixed")
