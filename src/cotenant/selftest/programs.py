"""Programs that the self-test runs with and without the hook: `python -m cotenant.selftest.programs NAME [ARGUMENT]`.

Each prints one line of JSON, which the self-test compares or checks.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import select
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from cotenant.runner.clock import monotonic_ns
from cotenant.selftest.driver import (
    ELEMENTS,
    KERNEL,
    PER_THREAD_STREAM,
    Context,
    DriverCallError,
    FatBinaryWrapper,
    fat_binary,
    ptx,
)

PLAIN_LAUNCHES: Final = 20
LIBRARY_LAUNCHES: Final = 4
GRAPH_KERNELS: Final = 3
GRAPH_LAUNCHES: Final = 2
MEMORY_GRAPH_LAUNCHES: Final = 2
_MIB: Final = 1 << 20
_GRANULE: Final = 2 * _MIB
_SMALL_BYTES: Final = 2 * _MIB
_NAME_BYTES: Final = 256
_GLOBAL: Final = 1  # CU_MEM_ATTACH_GLOBAL and CU_STREAM_CAPTURE_MODE_THREAD_LOCAL have this value
_PINNED: Final = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_ON_DEVICE: Final = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_READ_WRITE: Final = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_BYTE_FORMAT: Final = 1  # CU_AD_FORMAT_UNSIGNED_INT8
_COST_CALLS: Final = 200
_VERSIONS: Final = (10_000, 11_030, 12_000, 12_080, 13_000)
_ENTRY_POINTS: Final = (
    *("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch", "cuStreamBeginCapture"),
    *("cuMemAlloc", "cuMemAllocAsync", "cuMemcpyHtoDAsync", "cuMemcpyBatchAsync", "cuMemcpyWithAttributesAsync"),
    *("cuMemPrefetchBatchAsync", "cuMemDiscardBatchAsync", "cuMemDiscardAndPrefetchBatchAsync", "cuMemPrefetchAsync"),
    *("cuCtxCreate", "cuEventElapsedTime", "cuGraphInstantiate", "cuStreamWaitValue32", "cuLibraryLoadData"),
)
Undo = Callable[[], int]


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _PhysicalProperties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("security", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _AccessDescriptor(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _ArrayDescriptor(ctypes.Structure):
    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    )


class _Array3dDescriptor(ctypes.Structure):
    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


# ---- what the driver and the device are ----------------------------------------------------------------------------


def describe() -> dict[str, Any]:
    """Return the version of the driver and properties of the device that identify no machine."""
    context = Context()
    version, name, total = ctypes.c_int(), ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t()
    context.driver.call("cuDriverGetVersion", ctypes.byref(version))
    context.driver.call("cuDeviceGetName", name, _NAME_BYTES, context.device)
    context.driver.call("cuDeviceTotalMem", ctypes.byref(total), context.device)
    return {
        "driver_version": version.value,
        "name": name.value.decode(errors="replace"),
        "memory_bytes": total.value,
        "compute_capability": list(context.compute_capability()),
    }


# ---- the calls of the CUDA runtime and of PyTorch ------------------------------------------------------------------


def calls() -> dict[str, Any]:
    """Make the calls that the CUDA runtime and PyTorch make, and return results and result codes."""
    context = Context()
    driver = context.driver
    numbers = (ctypes.c_uint32 * ELEMENTS)(*range(ELEMENTS))
    size = ctypes.c_size_t(ctypes.sizeof(numbers))
    data = context.allocate(size.value)
    driver.call("cuMemcpyHtoD", data, numbers, size)
    codes = _abandoned_captures(context, data)  # first: afterwards launches are timed as before
    for number in range(PLAIN_LAUNCHES):
        flags = PER_THREAD_STREAM if number % 2 else 1
        codes[f"launch {number}"] = context.launch(data, flags=flags, extended=number % 4 > 1)
    context.wait()
    driver.call("cuMemcpyDtoH", numbers, data, size)
    factor = 1 << PLAIN_LAUNCHES
    is_computed = all(value == index * factor % (1 << 32) for index, value in enumerate(numbers))
    codes |= _graph_codes(context, data)
    codes |= _library_codes(context)
    codes |= _fat_binary_codes(context, data)
    codes |= _memory_graph_codes(context)
    codes |= _other_context_codes(context)
    codes |= _entry_point_codes(context)
    codes |= _pool_codes(context)
    codes |= _segment_codes(context)
    codes["free of nothing"] = driver.try_call("cuMemFree", ctypes.c_uint64(0))
    codes["unknown function"] = driver.try_call("cuNoSuchFunction")
    driver.call("cuMemFree", data)
    return {"codes": codes, "is_computed": is_computed, "checksum": sum(numbers)}


def _graph_codes(context: Context, data: ctypes.c_uint64) -> dict[str, int]:
    """Capture launches into a graph, and launch the graph."""
    driver, stream = context.driver, ctypes.c_void_p()
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuStreamCreate", ctypes.byref(stream), 1)
    codes = {"begin capture": driver.try_call("cuStreamBeginCapture", stream, _GLOBAL)}
    for number in range(GRAPH_KERNELS):
        codes[f"captured launch {number}"] = context.launch(data, stream=stream)
    codes["end capture"] = driver.try_call("cuStreamEndCapture", stream, ctypes.byref(graph))
    codes["instantiate"] = driver.try_call(
        "cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0)
    )
    for number in range(GRAPH_LAUNCHES):
        codes[f"graph launch {number}"] = driver.try_call("cuGraphLaunch", executable, stream)
    codes["stream wait"] = driver.try_call("cuStreamSynchronize", stream)
    driver.call("cuGraphExecDestroy", executable)
    driver.call("cuGraphDestroy", graph)
    driver.call("cuStreamDestroy", stream)
    return codes


def _library_codes(context: Context) -> dict[str, int]:
    """Load the kernel as a library, as the CUDA runtime of version 12 does."""
    driver, library, kernel = context.driver, ctypes.c_void_p(), ctypes.c_void_p()
    if not driver.has("cuLibraryLoadData"):
        return {}
    none = (None, None, 0)
    text = ptx(context.compute_capability())
    codes = {"load library": driver.try_call("cuLibraryLoadData", ctypes.byref(library), text, *none, *none)}
    codes["kernel of a library"] = driver.try_call("cuLibraryGetKernel", ctypes.byref(kernel), library, KERNEL)
    codes["no such kernel"] = driver.try_call("cuLibraryGetKernel", ctypes.byref(kernel), library, b"no_such_kernel")
    codes["unload library"] = driver.try_call("cuLibraryUnload", library)
    return codes


def _fat_binary_codes(context: Context, data: ctypes.c_uint64) -> dict[str, int]:
    """Load a fat binary as a library, and launch its kernel by both of its handles, which loads its code lazily."""
    driver, library, kernel, function = context.driver, ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    if not driver.has("cuLibraryLoadData"):
        return {}
    binary, none = fat_binary(context.compute_capability()), (None, None, 0)
    wrapper = ctypes.byref(FatBinaryWrapper.of(binary))
    codes = {"load fat binary": driver.try_call("cuLibraryLoadData", ctypes.byref(library), wrapper, *none, *none)}
    if any(codes.values()):
        return codes
    codes["its kernel"] = driver.try_call("cuLibraryGetKernel", ctypes.byref(kernel), library, KERNEL)
    codes["its function"] = driver.try_call("cuKernelGetFunction", ctypes.byref(function), kernel)
    for number in range(LIBRARY_LAUNCHES):
        handle = kernel if number % 2 else function
        codes[f"library launch {number}"] = context.launch(data, kernel=handle, extended=number > 1)
    context.wait()
    codes["unload fat binary"] = driver.try_call("cuLibraryUnload", library)
    return codes


def _memory_graph_codes(context: Context) -> dict[str, int]:
    """Launch a graph that allocates, uses and frees memory."""
    driver, stream, pointer = context.driver, ctypes.c_void_p(), ctypes.c_uint64()
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    size = ctypes.c_size_t(_SMALL_BYTES)
    driver.call("cuStreamCreate", ctypes.byref(stream), 1)
    driver.call("cuStreamBeginCapture", stream, _GLOBAL)
    codes = {"captured allocation": driver.try_call("cuMemAllocAsync", ctypes.byref(pointer), size, stream)}
    if not any(codes.values()):
        codes["captured launch on it"] = context.launch(pointer, stream=stream)
        codes["captured free"] = driver.try_call("cuMemFreeAsync", pointer, stream)
    codes["end of that capture"] = driver.try_call("cuStreamEndCapture", stream, ctypes.byref(graph))
    if not any(codes.values()):
        codes["instantiate with memory"] = driver.try_call(
            "cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0)
        )
        for number in range(MEMORY_GRAPH_LAUNCHES):
            codes[f"memory graph launch {number}"] = driver.try_call("cuGraphLaunch", executable, stream)
        codes["wait for it"] = driver.try_call("cuStreamSynchronize", stream)
        driver.call("cuGraphExecDestroy", executable)
        driver.call("cuGraphDestroy", graph)
    driver.call("cuStreamDestroy", stream)
    return codes


def _abandoned_captures(context: Context, data: ctypes.c_uint64) -> dict[str, int]:
    """End a capture that a forbidden call invalidated, and destroy a stream while it is captured."""
    driver, stream, graph = context.driver, ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuStreamCreate", ctypes.byref(stream), 1)
    driver.call("cuStreamBeginCapture", stream, _GLOBAL)
    codes = {"wait during a capture": driver.try_call("cuStreamSynchronize", stream)}
    codes["launch after that"] = context.launch(data, stream=stream)
    codes["end invalidated capture"] = driver.try_call("cuStreamEndCapture", stream, ctypes.byref(graph))
    codes["end it again"] = driver.try_call("cuStreamEndCapture", stream, ctypes.byref(graph))
    codes["capture again"] = driver.try_call("cuStreamBeginCapture", stream, _GLOBAL)
    codes["destroy a captured stream"] = driver.try_call("cuStreamDestroy", stream)
    return codes


def _other_context_codes(context: Context) -> dict[str, int]:
    """Record and wait for an event of another context, which drivers refuse."""
    driver, other, event = context.driver, ctypes.c_void_p(), ctypes.c_void_p()
    if driver.try_call("cuCtxCreate", ctypes.byref(other), None, 0, 0, context.device):
        return {}
    driver.call("cuEventCreate", ctypes.byref(event), 0)
    popped = ctypes.c_void_p()
    driver.call("cuCtxPopCurrent", ctypes.byref(popped))
    codes = {"record event of another context": driver.try_call("cuEventRecord", event, None)}
    codes["wait for that event"] = driver.try_call("cuStreamWaitEvent", None, event, 0)
    codes["destroy that context"] = driver.try_call("cuCtxDestroy", other)
    return codes


def _entry_point_codes(context: Context) -> dict[str, int]:
    """Ask for entry points of several interface versions, as runtimes of CUDA 11, 12 and 13 do."""
    codes = {}
    for name in _ENTRY_POINTS:
        for version in _VERSIONS:
            for flags in (1, PER_THREAD_STREAM):
                code, status = context.driver.query(name, version, flags)
                codes[f"{name} of version {version} with flags {flags}"] = 10 * code + status
    return codes


def _pool_codes(context: Context) -> dict[str, int]:
    """Allocate and free in stream order."""
    pointer = ctypes.c_uint64()
    code = context.driver.try_call("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(_SMALL_BYTES), None)
    codes = {"allocate in stream order": code}
    if not code:
        codes["free in stream order"] = context.driver.try_call("cuMemFreeAsync", pointer, None)
    context.wait()
    return codes


def _segment_codes(context: Context) -> dict[str, int]:
    """Map physical memory into a reserved range, as PyTorch's expandable segments do."""
    driver, address, handle = context.driver, ctypes.c_uint64(), ctypes.c_uint64()
    size, zero = ctypes.c_size_t(_GRANULE), ctypes.c_uint64(0)
    properties = _PhysicalProperties(_PINNED, 0, _Location(_ON_DEVICE, context.device))
    access = _AccessDescriptor(_Location(_ON_DEVICE, context.device), _READ_WRITE)
    codes = {"reserve": driver.try_call("cuMemAddressReserve", ctypes.byref(address), size, zero, zero, zero)}
    codes["create"] = driver.try_call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), zero)
    if any(codes.values()):
        return codes
    codes["map"] = driver.try_call("cuMemMap", address, size, zero, handle, zero)
    codes["set access"] = driver.try_call("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
    codes["unmap"] = driver.try_call("cuMemUnmap", address, size)
    codes["release"] = driver.try_call("cuMemRelease", handle)
    codes["free range"] = driver.try_call("cuMemAddressFree", address, size)
    return codes


# ---- quotas --------------------------------------------------------------------------------------------------------


def allocations(big_bytes: int) -> dict[str, Any]:
    """Allocate by every call, little and too much; return the result codes by call."""
    context = Context()
    driver = context.driver
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    results = {}
    for name, method in _METHODS.items():
        codes = [_allocate_and_free(context, method, size) for size in (_SMALL_BYTES, big_bytes, _SMALL_BYTES)]
        results[name] = codes
    return {"total_bytes": total.value, "free_bytes": free.value, "codes": results}


def _allocate_and_free(context: Context, method: Callable[[Context, int], Undo], size_bytes: int) -> int:
    try:
        undo = method(context, size_bytes)
    except DriverCallError as error:
        return error.code
    code = undo()
    context.wait()
    return code


def _plain(context: Context, size_bytes: int) -> Undo:
    pointer = context.allocate(size_bytes)
    return lambda: context.driver.try_call("cuMemFree", pointer)


def _pitch(context: Context, size_bytes: int) -> Undo:
    pointer, pitch = ctypes.c_uint64(), ctypes.c_size_t()
    shape = ctypes.c_size_t(4096), ctypes.c_size_t(-(-size_bytes // 4096)), ctypes.c_uint(4)
    context.driver.call("cuMemAllocPitch", ctypes.byref(pointer), ctypes.byref(pitch), *shape)
    return lambda: context.driver.try_call("cuMemFree", pointer)


def _managed(context: Context, size_bytes: int) -> Undo:
    pointer = ctypes.c_uint64()
    size, attach = ctypes.c_size_t(size_bytes), ctypes.c_uint(_GLOBAL)
    context.driver.call("cuMemAllocManaged", ctypes.byref(pointer), size, attach)
    return lambda: context.driver.try_call("cuMemFree", pointer)


def _stream_ordered(context: Context, size_bytes: int) -> Undo:
    pointer = ctypes.c_uint64()
    context.driver.call("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size_bytes), None)
    return lambda: context.driver.try_call("cuMemFreeAsync", pointer, None)


def _from_pool(context: Context, size_bytes: int) -> Undo:
    pool, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    context.driver.call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), context.device)
    size = ctypes.c_size_t(size_bytes)
    context.driver.call("cuMemAllocFromPoolAsync", ctypes.byref(pointer), size, pool, None)
    return lambda: context.driver.try_call("cuMemFreeAsync", pointer, None)


def _physical(context: Context, size_bytes: int) -> Undo:
    handle, properties = ctypes.c_uint64(), _PhysicalProperties(_PINNED, 0, _Location(_ON_DEVICE, context.device))
    size = ctypes.c_size_t(-(-size_bytes // _GRANULE) * _GRANULE)
    context.driver.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), ctypes.c_uint64(0))
    return lambda: context.driver.try_call("cuMemRelease", handle)


def _array(context: Context, size_bytes: int) -> Undo:
    array = ctypes.c_void_p()
    descriptor = _ArrayDescriptor(32_768, max(1, size_bytes // (4 * 32_768)), _BYTE_FORMAT, 4)
    context.driver.call("cuArrayCreate", ctypes.byref(array), ctypes.byref(descriptor))
    return lambda: context.driver.try_call("cuArrayDestroy", array)


def _array_3d(context: Context, size_bytes: int) -> Undo:
    array = ctypes.c_void_p()
    descriptor = _Array3dDescriptor(2048, 2048, max(1, size_bytes >> 24), _BYTE_FORMAT, 4, 0)
    context.driver.call("cuArray3DCreate", ctypes.byref(array), ctypes.byref(descriptor))
    return lambda: context.driver.try_call("cuArrayDestroy", array)


def _mipmapped(context: Context, size_bytes: int) -> Undo:
    array = ctypes.c_void_p()
    descriptor = _Array3dDescriptor(2048, 2048, max(1, size_bytes >> 24), _BYTE_FORMAT, 4, 0)
    context.driver.call("cuMipmappedArrayCreate", ctypes.byref(array), ctypes.byref(descriptor), ctypes.c_uint(2))
    return lambda: context.driver.try_call("cuMipmappedArrayDestroy", array)


_METHODS: Final[dict[str, Callable[[Context, int], Undo]]] = {
    "cuMemAlloc": _plain,
    "cuMemAllocPitch": _pitch,
    "cuMemAllocManaged": _managed,
    "cuMemAllocAsync": _stream_ordered,
    "cuMemAllocFromPoolAsync": _from_pool,
    "cuMemCreate": _physical,
    "cuArrayCreate": _array,
    "cuArray3DCreate": _array_3d,
    "cuMipmappedArrayCreate": _mipmapped,
}


# ---- tenants that run for a while ----------------------------------------------------------------------------------


def launches() -> dict[str, Any]:
    """Launch and wait until standard input is closed; print a line when it begins."""
    context = Context()
    data = context.allocate(4 * ELEMENTS)
    print("ready", flush=True)
    count = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(8):
            if code := context.launch(data):
                raise DriverCallError("cuLaunchKernel", code)
            count += 1
        context.wait()
    return {"launches": count}


def holders(count: int) -> dict[str, Any]:
    """Start this many child processes that each hold memory until standard input is closed."""
    command = [sys.executable, "-m", "cotenant.selftest.programs", "hold"]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    print("ready", flush=True)
    sys.stdin.read()
    outputs = [child.communicate()[0] for child in children]
    return {"held": [json.loads(output.splitlines()[-1])["held_bytes"] for output in outputs]}


def hold() -> dict[str, Any]:
    """Hold memory until standard input is closed."""
    context = Context()
    context.allocate(HELD_BYTES)
    print("ready", flush=True)
    sys.stdin.read()
    return {"held_bytes": HELD_BYTES}


HELD_BYTES: Final = 16 * _MIB
"""What each child of `holders` allocates."""


# ---- costs ---------------------------------------------------------------------------------------------------------


def costs() -> dict[str, Any]:
    """Return the median duration of driver calls, and the resolution of events, in nanoseconds."""
    context = Context()
    driver, data = context.driver, context.allocate(4 * ELEMENTS)
    event, other = ctypes.c_void_p(), ctypes.c_void_p()
    for made in (event, other):
        driver.call("cuEventCreate", ctypes.byref(made), 0)
    context.launch(data)
    context.wait()
    durations = {
        "launch_ns": _median_ns(lambda: context.launch(data), context.wait),
        "event_record_ns": _median_ns(lambda: driver.try_call("cuEventRecord", event, None), context.wait),
        "event_query_ns": _median_ns(lambda: driver.try_call("cuEventQuery", event), context.wait),
        "synchronize_ns": _median_ns(lambda: driver.try_call("cuCtxSynchronize"), context.wait),
    }
    return {**durations, "event_resolution_ns": _event_resolution_ns(context, data, event, other)}


def _median_ns(call: Callable[[], int], settle: Callable[[], None]) -> int:
    samples = []
    for number in range(_COST_CALLS):
        began_ns = monotonic_ns()
        call()
        samples.append(monotonic_ns() - began_ns)
        if number % 16 == 15:
            settle()
    return int(median(samples))


def _event_resolution_ns(
    context: Context, data: ctypes.c_uint64, event: ctypes.c_void_p, other: ctypes.c_void_p
) -> int:
    """Return the smallest difference between two measured durations, which is a multiple of the resolution."""
    elapsed, values = ctypes.c_float(), set()
    for blocks in range(1, 65):
        context.driver.call("cuEventRecord", event, None)
        context.launch(data, blocks=blocks)
        context.driver.call("cuEventRecord", other, None)
        context.driver.call("cuEventSynchronize", other)
        context.driver.call("cuEventElapsedTime", ctypes.byref(elapsed), event, other)
        values.add(round(elapsed.value * 1e6))
    ordered = sorted(values)
    steps = [later - earlier for earlier, later in itertools.pairwise(ordered)]
    return min(steps, default=0)


_PROGRAMS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "describe": describe,
    "calls": calls,
    "allocations": allocations,
    "launches": launches,
    "holders": holders,
    "hold": hold,
    "costs": costs,
}


def main(words: list[str]) -> int:
    """Run the program that the first word names, and print its result."""
    try:
        result = _PROGRAMS[words[0]](*map(int, words[1:]))
    except (DriverCallError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(result, sort_keys=True), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
