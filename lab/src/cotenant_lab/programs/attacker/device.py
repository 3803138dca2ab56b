"""Attacks by what a program asks of the device: work that never ends, that misleads, or that fills its tables."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from typing import Final

from cotenant_lab.programs.attacker.context import AttackContext
from cotenant_lab.programs.client import CudaClient

_MIB: Final = 1 << 20
_SHORT_NS: Final = 20_000
_LONG_NS: Final = 20_000_000
_MANY: Final = 256
_NON_BLOCKING: Final = 1
_GLOBAL_CAPTURE: Final = 0
_RELAXED_CAPTURE: Final = 2
_GEQ: Final = 0
_ATTACH_GLOBAL: Final = 1
_GRAPH_NODES: Final = 32
_HOST_FUNCTION: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def client_of(context: AttackContext) -> CudaClient:
    """Return the attacker's client of the device."""
    if context.client is None:
        raise OSError("the attacker has no device")
    return context.client


def _stream(client: CudaClient) -> ctypes.c_void_p:
    stream = ctypes.c_void_p()
    client.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
    return stream


# -- work that misleads ------------------------------------------------------------------------------------------
def change_durations(context: AttackContext) -> None:
    """Teach the gate that a kernel is short, then let the same kernel take a thousand times as long."""
    client = client_of(context)
    while context.has_time:
        for _ in range(20):
            client.launch(_SHORT_NS)
        client.wait()
        context.attempt(client.launch, _LONG_NS)
        client.wait()


def long_kernels(context: AttackContext, which: str) -> None:
    """Launch kernels as long as a request of the online tenant: `known` ones, short until now, or `new` ones."""
    client = client_of(context)
    blocks = {"known": 80, "new": 96}[which]
    while context.has_time:
        context.attempt(client.launch, _LONG_NS, blocks)
        client.wait()


def change_shapes(context: AttackContext) -> None:
    """Launch a long kernel with another grid each time, so that nothing is known about any launch."""
    client = client_of(context)
    for number in range(1 << 30):
        if not context.has_time:
            break
        context.attempt(client.launch, _LONG_NS // 4, 80 + number % 4000)
        if number % 8 == 7:
            client.wait()


def new_graphs(context: AttackContext) -> None:
    """Capture a long graph anew for each launch, so that its duration is never known."""
    client = client_of(context)
    stream = _stream(client)

    def launch() -> None:
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        client.call("cuStreamBeginCapture_v2", stream, _RELAXED_CAPTURE)
        for _ in range(_GRAPH_NODES):
            client.launch(_SHORT_NS * 10, stream=stream)
        client.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        client.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        client.call("cuGraphLaunch", executable, stream)
        client.call("cuGraphExecDestroy", executable)
        client.call("cuGraphDestroy", graph)

    while context.has_time:
        context.attempt(launch)
    client.wait()


def claim_priority(context: AttackContext) -> None:
    """Launch in streams of the highest priority that the device has."""
    client = client_of(context)
    least, greatest = ctypes.c_int(), ctypes.c_int()
    client.call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    stream = ctypes.c_void_p()
    client.call("cuStreamCreateWithPriority", ctypes.byref(stream), _NON_BLOCKING, greatest)
    while context.has_time:
        for _ in range(20):
            context.attempt(client.launch, _SHORT_NS * 10, 80, stream)
        client.wait()


def many_streams_launch(context: AttackContext) -> None:
    """Launch in hundreds of streams at the same time."""
    client = client_of(context)
    streams = [_stream(client) for _ in range(_MANY)]
    while context.has_time:
        for stream in streams:
            context.attempt(client.launch, _SHORT_NS, 80, stream)
    client.wait()


def flood_sets(context: AttackContext) -> None:
    """Set and copy large memory on the device without pause: that takes the device, and is no kernel."""
    client = client_of(context)
    source, target = client.allocate(256 * _MIB), client.allocate(256 * _MIB)
    size = ctypes.c_size_t(256 * _MIB)
    while context.has_time:
        for _ in range(16):
            context.attempt(client.call, "cuMemsetD8Async", ctypes.c_uint64(target), 7, size, None)
            context.attempt(
                client.call, "cuMemcpyDtoDAsync_v2", ctypes.c_uint64(target), ctypes.c_uint64(source), size, None
            )
        client.wait()


# -- work that does not end --------------------------------------------------------------------------------------
def wait_for_no_value(context: AttackContext) -> None:
    """Let streams wait for a value that never comes, with launches behind it."""
    client = client_of(context)
    word = client.allocate(4096)

    def wait(stream: ctypes.c_void_p) -> None:
        client.call("cuStreamWaitValue32_v2", stream, ctypes.c_uint64(word), ctypes.c_uint(77), ctypes.c_uint(_GEQ))
        for _ in range(4):
            client.launch(_SHORT_NS, stream=stream)

    def begin() -> None:
        client.use_in_thread()
        wait(_stream(client))

    for _ in range(8):
        threading.Thread(target=context.attempt, args=(begin,), daemon=True).start()
    context.wait_for_end()
    context.note("done", attempts=context.attempts, successes=context.successes, ended="exit")
    os._exit(3)


def block_in_host_function(context: AttackContext) -> None:
    """Let a function on the host block a stream, with launches behind it."""
    client = client_of(context)
    released = threading.Event()
    function = _HOST_FUNCTION(lambda _: released.wait(30) and None)
    stream = _stream(client)
    client.launch(_SHORT_NS, stream=stream)
    context.attempt(client.call, "cuLaunchHostFunc", stream, function, None)
    for _ in range(8):
        context.attempt(client.launch, _SHORT_NS, 80, stream)
    context.wait_for_end()
    released.set()
    client.wait()


def capture_without_end(context: AttackContext) -> None:
    """Begin captures in many streams, launch into them, and never end them."""
    client = client_of(context)
    for mode in (_RELAXED_CAPTURE, _GLOBAL_CAPTURE):
        for _ in range(32):
            stream = _stream(client)
            context.attempt(client.call, "cuStreamBeginCapture_v2", stream, mode)
            for _ in range(8):
                context.attempt(client.launch, _LONG_NS, 80, stream)
    for _ in context.rounds():
        context.attempt(client.launch, _SHORT_NS)


def collective_without_peers(context: AttackContext) -> None:
    """Launch collectives that have the name of a library's, for peers that never come."""
    client = client_of(context)
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    image = b"softgpu-image 1\nkernel ncclDevKernel_AllReduce_Sum_f32_RING_LL\n params 8\n duration_param 0\n"
    client.call("cuModuleLoadData", ctypes.byref(module), image)
    client.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    value = ctypes.c_uint64(_LONG_NS // 4)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    while context.has_time:
        context.attempt(client.call, "cuLaunchKernel", kernel, 80, 1, 1, 128, 1, 1, 0, None, parameters, None)
        client.wait()


# -- tables and memory -------------------------------------------------------------------------------------------
def many_objects(context: AttackContext, kind: str) -> None:
    """Create streams, events, contexts, modules or graphs until the driver refuses, and launch in between."""
    client = client_of(context)
    handle = ctypes.c_void_p()
    image = b"softgpu-image 1\nkernel spin\n params 8\n duration_param 0\n"
    calls: dict[str, tuple[object, ...]] = {
        "streams": ("cuStreamCreate", ctypes.byref(handle), _NON_BLOCKING),
        "events": ("cuEventCreate", ctypes.byref(handle), 0),
        "contexts": ("cuCtxCreate_v2", ctypes.byref(handle), 0, 0),
        "modules": ("cuModuleLoadData", ctypes.byref(handle), image),
        "graphs": ("cuGraphCreate", ctypes.byref(handle), 0),
    }
    name, *arguments = calls[kind]
    for _ in context.rounds():
        for _ in range(_MANY // 4):
            context.attempt(client.call, name, *arguments)
        if kind == "contexts":
            client.use_in_thread()


def fragment(context: AttackContext) -> None:
    """Fill the quota with small pieces and free every second one, again and again."""
    client = client_of(context)
    pieces: list[int] = []

    def allocate() -> None:
        pieces.append(client.allocate(_MIB))

    for number in context.rounds():
        for _ in range(64):
            if not context.attempt(allocate):
                break
        if number % 4 == 3:
            for pointer in pieces[::2]:
                client.free(pointer)
            del pieces[::2]


def hoard_by(context: AttackContext, way: str) -> Iterator[None]:
    """Allocate beyond the quota in a way that is no plain allocation."""
    client = client_of(context)
    pool, stream = ctypes.c_void_p(), _stream(client)
    pointer, host = ctypes.c_uint64(), ctypes.c_void_p()
    client.call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)
    size = ctypes.c_size_t(64 * _MIB)
    yield

    def pooled() -> None:
        client.call("cuMemAllocAsync", ctypes.byref(pointer), size, stream)

    def trimmed() -> None:
        pooled()
        client.call("cuMemFreeAsync", pointer, stream)
        pooled()
        client.call("cuMemPoolTrimTo", pool, ctypes.c_size_t(0))

    def managed() -> None:
        client.call("cuMemAllocManaged", ctypes.byref(pointer), size, _ATTACH_GLOBAL)
        client.call("cuMemPrefetchAsync", pointer, size, 0, stream)

    def pinned() -> None:
        client.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(_MIB), 0)

    def pitched() -> None:
        pitch = ctypes.c_size_t()
        client.call(
            "cuMemAllocPitch_v2",
            ctypes.byref(pointer),
            ctypes.byref(pitch),
            ctypes.c_size_t(_MIB),
            size.value // _MIB,
            4,
        )

    def reserved() -> None:
        client.call("cuMemAddressReserve", ctypes.byref(pointer), ctypes.c_size_t(1 << 36), size, pointer, 0)

    action = {
        "pool": pooled,
        "trim": trimmed,
        "managed": managed,
        "pinned": pinned,
        "pitch": pitched,
        "reserve": reserved,
    }[way]
    for _ in context.rounds():
        for _ in range(4):
            context.attempt(action)


def suspend_others(context: AttackContext) -> None:
    """Ask the driver to suspend unrelated processes: the checkpoint calls take any process number."""
    client = client_of(context)
    own, victim = os.getpid(), int(context.facts["victim_pid"])
    pids = [pid for pid in range(max(2, victim - 200), victim + 200) if pid != own]
    for pid in pids:
        if context.attempt(client.call, "cuCheckpointProcessLock", pid, None):
            context.note("suspended", victim=pid)
    for _ in context.rounds():
        pass


def query_storm(context: AttackContext) -> None:
    """Query events and streams from several threads without pause."""
    client = client_of(context)
    event = ctypes.c_void_p()
    client.call("cuEventCreate", ctypes.byref(event), 0)

    def query() -> None:
        client.use_in_thread()
        for _ in range(100):
            context.attempt(client.try_call, "cuEventQuery", event)
            context.attempt(client.try_call, "cuStreamQuery", None)

    for _ in range(4):
        context.in_background(query)
    for _ in context.rounds():
        client.call("cuEventRecord", event, None)
