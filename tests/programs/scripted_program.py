"""Follow commands about device memory, call by call, through the descriptor in the argument."""

from __future__ import annotations

import ctypes
import itertools
import json
import socket
import sys
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver
from cuda_helpers import IMAGE, Gpu, code, ok

POSIX = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
PINNED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
PROTECTION = driver.CUmemAccess_flags
EVENT_FLAGS = driver.CUevent_flags.CU_EVENT_INTERPROCESS | driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
OPAQUE_BYTES = 64

gpu = Gpu()
events: dict[int, Any] = {}
holds: list[Any] = []


def location() -> Any:
    result = driver.CUmemLocation()
    result.type = DEVICE
    result.id = 0
    return result


def create(size: int, *, exportable: bool = True) -> Any:
    props = driver.CUmemAllocationProp()
    props.type = PINNED
    props.location = location()
    if exportable:
        props.requestedHandleTypes = POSIX
    return driver.cuMemCreate(size, props, 0)


def access(address: int, size: int, flags: str = "READWRITE") -> Any:
    options = driver.CUmemAccessDesc()
    options.location = location()
    options.flags = getattr(PROTECTION, f"CU_MEM_ACCESS_FLAGS_PROT_{flags}")
    return driver.cuMemSetAccess(address, size, [options], 1)


def pool_make(*, exportable: bool = True) -> Any:
    props = driver.CUmemPoolProps()
    props.allocType = PINNED
    props.location = location()
    if exportable:
        props.handleTypes = POSIX
    return driver.cuMemPoolCreate(props)


def pool_get(pool: int, name: str) -> Any:
    return driver.cuMemPoolGetAttribute(
        driver.CUmemoryPool(pool), getattr(driver.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{name}")
    )


def pool_threshold(pool: int, size: int) -> Any:
    attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    return driver.cuMemPoolSetAttribute(driver.CUmemoryPool(pool), attribute, driver.cuuint64_t(size))


def opaque(kind: type, text: str) -> Any:
    """Return one of the driver's opaque structures of 64 bytes."""
    structure = kind()
    ctypes.memmove(structure.getPtr(), bytes.fromhex(text), OPAQUE_BYTES)
    return structure


def import_pointer(pool: int, text: str) -> Any:
    data = opaque(driver.CUmemPoolPtrExportData, text)
    return driver.cuMemPoolImportPointer(driver.CUmemoryPool(pool), data)


def ipc_open(text: str) -> Any:
    return driver.cuIpcOpenMemHandle(opaque(driver.CUipcMemHandle, text), 1)


def event_open(text: str) -> Any:
    return keep_event(driver.cuIpcOpenEventHandle(opaque(driver.CUipcEventHandle, text)))


def keep_event(answer: tuple[Any, ...]) -> Any:
    if answer[0] == driver.CUresult.CUDA_SUCCESS:
        events[int(answer[1])] = answer[1]
    return answer


def read(address: int, size: int) -> Any:
    data = bytearray(size)
    answer = driver.cuMemcpyDtoH((ctypes.c_char * size).from_buffer(data), address, size)
    return (*answer, bytes(data))


def spin(nanoseconds: int) -> Any:
    gpu.spin(nanoseconds, blocks=1)
    return (driver.CUresult.CUDA_SUCCESS,)


def hold() -> Any:
    """Hold back work queued from now on until it is released, however long that takes."""
    holds.append(gpu.hold(0))
    holds[-1].__enter__()
    return (driver.CUresult.CUDA_SUCCESS,)


def let_go() -> Any:
    holds.pop().__exit__(None, None, None)
    return (driver.CUresult.CUDA_SUCCESS,)


def array(width: int) -> Any:
    options = driver.CUDA_ARRAY_DESCRIPTOR()
    options.Width, options.NumChannels = width, 1
    options.Format = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
    return driver.cuArrayCreate(options)


def box(width: int, height: int, depth: int, *, levels: int = 0) -> Any:
    """Create a three-dimensional array, or a mipmap with this number of levels."""
    options = driver.CUDA_ARRAY3D_DESCRIPTOR()
    options.Width, options.Height, options.Depth, options.NumChannels = width, height, depth, 4
    options.Format = driver.CUarray_format.CU_AD_FORMAT_HALF
    return driver.cuMipmappedArrayCreate(options, levels) if levels else driver.cuArray3DCreate(options)


def launch_of(library: int) -> Any:
    answer = driver.cuLibraryGetKernel(driver.CUlibrary(library), b"spin")
    kernel = driver.CUfunction(int(answer[1]))
    return driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, ((1000,), (ctypes.c_uint64,)), 0)


def graph(*sizes: int, frees: bool = True, uploads: bool = False) -> Any:
    """Instantiate a graph that allocates these sizes, and optionally frees them; optionally uploaded at once."""
    new_graph = driver.cuGraphCreate(0)[1]
    for size in sizes:
        options = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
        options.poolProps.allocType = PINNED
        options.poolProps.location = location()
        options.bytesize = size
        node = driver.cuGraphAddMemAllocNode(new_graph, [], 0, options)[1]
        if frees:
            driver.cuGraphAddMemFreeNode(new_graph, [node], 1, options.dptr)
    if uploads:
        params = driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
        params.flags = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
        return driver.cuGraphInstantiateWithParams(new_graph, params)
    return driver.cuGraphInstantiate(new_graph, 0)


def captured(size: int) -> Any:
    """Instantiate such a graph by capturing a stream."""
    stream = driver.cuStreamCreate(1)[1]
    driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    pointer = driver.cuMemAllocAsync(size, stream)[1]
    driver.cuMemFreeAsync(pointer, stream)
    return driver.cuGraphInstantiate(driver.cuStreamEndCapture(stream)[1], 0)


def host_pool() -> Any:
    host_location = driver.CUmemLocation()
    host_location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    return driver.cuMemGetDefaultMemPool(host_location, PINNED)


def lock(pid: int, timeout_ms: int = 0) -> Any:
    options = driver.CUcheckpointLockArgs()
    options.timeoutMs = timeout_ms
    return driver.cuCheckpointProcessLock(pid, options)


def restore(pid: int, *pairs: tuple[str, str]) -> Any:
    options = driver.CUcheckpointRestoreArgs()
    gpu_pairs = []
    for old, new in pairs:
        pair = driver.CUcheckpointGpuPair()
        pair.oldUuid, pair.newUuid = uuid_of(old), uuid_of(new)
        gpu_pairs.append(pair)
    options.gpuPairs, options.gpuPairsCount = gpu_pairs, len(gpu_pairs)
    return driver.cuCheckpointProcessRestore(pid, options)


def uuid_of(text: str) -> Any:
    uuid = driver.CUuuid()
    ctypes.memmove(uuid.getPtr(), bytes.fromhex(text), 16)
    return uuid


def churn(size: int) -> Any:
    """Allocate and free memory until the process is killed."""
    while True:
        ok(driver.cuMemFree(ok(driver.cuMemAlloc(size))))


def cycle(pid: int) -> Any:
    """Suspend and resume a process until it has ended; send a byte after each cycle."""
    for call in itertools.cycle((lock, OPERATIONS["checkpoint"], restore, OPERATIONS["unlock"])):
        answer = call(pid)
        if code(answer) != "CUDA_SUCCESS":
            return answer
        if call is restore:
            line.send(b".")
    raise AssertionError


OPERATIONS: dict[str, Callable[..., Any]] = {
    "alloc": driver.cuMemAlloc,
    "alloc_async": lambda size: driver.cuMemAllocAsync(size, 0),
    "host_pool": host_pool,
    "graph": graph,
    "captured": captured,
    "launch": lambda made: driver.cuGraphLaunch(driver.CUgraphExec(made), 0),
    "end_graph": lambda made: driver.cuGraphExecDestroy(driver.CUgraphExec(made)),
    "free": driver.cuMemFree,
    "free_async": lambda pointer: driver.cuMemFreeAsync(pointer, 0),
    "range": driver.cuMemGetAddressRange,
    "create": create,
    "release": driver.cuMemRelease,
    "retain": driver.cuMemRetainAllocationHandle,
    "reserve": lambda size: driver.cuMemAddressReserve(size, 0, 0, 0),
    "unreserve": driver.cuMemAddressFree,
    "map": lambda address, size, handle, offset=0: driver.cuMemMap(address, size, offset, handle, 0),
    "unmap": driver.cuMemUnmap,
    "access": access,
    "get_access": lambda address: driver.cuMemGetAccess(location(), address),
    "export": lambda handle: driver.cuMemExportToShareableHandle(handle, POSIX, 0),
    "import": lambda descriptor: driver.cuMemImportFromShareableHandle(descriptor, POSIX),
    "pool_make": pool_make,
    "pool_destroy": lambda pool: driver.cuMemPoolDestroy(driver.CUmemoryPool(pool)),
    "pool_alloc": lambda pool, size: driver.cuMemAllocFromPoolAsync(size, driver.CUmemoryPool(pool), 0),
    "pool_trim": lambda pool, size: driver.cuMemPoolTrimTo(driver.CUmemoryPool(pool), size),
    "pool_get": pool_get,
    "pool_threshold": pool_threshold,
    "pool_export": lambda pool: driver.cuMemPoolExportToShareableHandle(driver.CUmemoryPool(pool), POSIX, 0),
    "pool_import": lambda descriptor: driver.cuMemPoolImportFromShareableHandle(descriptor, POSIX, 0),
    "export_pointer": driver.cuMemPoolExportPointer,
    "import_pointer": import_pointer,
    "ipc_get": driver.cuIpcGetMemHandle,
    "ipc_open": ipc_open,
    "ipc_close": driver.cuIpcCloseMemHandle,
    "event_make": lambda flags=int(EVENT_FLAGS): keep_event(driver.cuEventCreate(flags)),
    "event_get": lambda event: driver.cuIpcGetEventHandle(events[event]),
    "event_open": event_open,
    "event_record": lambda event: driver.cuEventRecord(events[event], 0),
    "event_wait": lambda event: driver.cuStreamWaitEvent(0, events[event], 0),
    "event_query": lambda event: driver.cuEventQuery(events[event]),
    "event_sync": lambda event: driver.cuEventSynchronize(events[event]),
    "event_destroy": lambda event: driver.cuEventDestroy(events[event]),
    "fill": lambda address, value, size: driver.cuMemsetD8Async(address, value, size, 0),
    "read": read,
    "spin": spin,
    "hold": hold,
    "let_go": let_go,
    "sync": driver.cuCtxSynchronize,
    "destroy_context": lambda: driver.cuCtxDestroy(gpu.context),
    "new_context": lambda: driver.cuCtxCreate(None, 0, gpu.device),
    "end_context": lambda context: driver.cuCtxDestroy(driver.CUcontext(context)),
    "load": lambda: driver.cuModuleLoadData(IMAGE),
    "unload": lambda module: driver.cuModuleUnload(driver.CUmodule(module)),
    "load_library": lambda: driver.cuLibraryLoadData(IMAGE, [], [], 0, [], [], 0),
    "unload_library": lambda library: driver.cuLibraryUnload(driver.CUlibrary(library)),
    "launch_of": launch_of,
    "array": array,
    "array_end": lambda name: driver.cuArrayDestroy(driver.CUarray(name)),
    "managed": lambda size: driver.cuMemAllocManaged(size, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL),
    "churn": churn,
    "cycle": cycle,
    "state": driver.cuCheckpointProcessGetState,
    "restore_thread": driver.cuCheckpointProcessGetRestoreThreadId,
    "lock": lock,
    "checkpoint": lambda pid: driver.cuCheckpointProcessCheckpoint(pid, None),
    "restore": restore,
    "unlock": lambda pid: driver.cuCheckpointProcessUnlock(pid, None),
    "free_bytes": lambda: driver.cuMemGetInfo()[:2],
    "total_bytes": lambda: driver.cuDeviceTotalMem(gpu.device),
    "pitch": lambda width, height: driver.cuMemAllocPitch(width, height, 16),
    "box": box,
    "mipmap_end": lambda name: driver.cuMipmappedArrayDestroy(driver.CUmipmappedArray(name)),
    "retain_primary": lambda: driver.cuDevicePrimaryCtxRetain(gpu.device),
    "release_primary": lambda: driver.cuDevicePrimaryCtxRelease(gpu.device),
    "reset_primary": lambda: driver.cuDevicePrimaryCtxReset(gpu.device),
    "use_context": lambda context: driver.cuCtxSetCurrent(driver.CUcontext(context)),
}


def plain(value: Any) -> Any:
    """Return a driver's value as JSON."""
    if isinstance(value, bytes | str | list | tuple):
        return value.hex() if isinstance(value, bytes) else value
    if isinstance(value, driver.CUipcMemHandle | driver.CUipcEventHandle | driver.CUmemPoolPtrExportData):
        return ctypes.string_at(value.getPtr(), OPAQUE_BYTES).hex()
    return int(value)


line = socket.socket(fileno=int(sys.argv[1]))
while True:
    message, descriptors, _, _ = socket.recv_fds(line, 65536, 1)
    if not message:
        break
    name, arguments, options = json.loads(message)
    answer = OPERATIONS[name](*descriptors, *arguments, **options)
    for descriptor in descriptors:
        socket.close(descriptor)
    values = [plain(value) for value in answer[1:]] if code(answer) == "CUDA_SUCCESS" else []
    sent = [values[0]] if name in {"export", "pool_export"} and values else []
    socket.send_fds(line, [json.dumps([code(answer), *values]).encode()], sent)
    for descriptor in sent:
        socket.close(descriptor)
