"""A GPU in simulated time: the model behind the software libcuda, driven by instants.

Step by step (`Device`), or whole launch scripts in one call (`Device.run`). Errors of the model are exceptions:
LookupError for an unknown handle, BufferError at a limit, MemoryError without device memory, ValueError otherwise.
"""

import enum
import struct
from array import array
from collections.abc import Iterable, Sequence

import msgspec

from cotenant import _native

FULL_SPEED = 2**30
"""For `Device.set_speed`: the speed of a device whose clocks are not slowed."""

OWN_GROUP = 2**32 - 1
"""Group label of a client that shares its time slices with no other client."""

_NEVER_NS = 2**64 - 1
_NO_KERNEL = 2**32 - 1
_KERNEL = struct.Struct("=QQQIIIIII")
_STEP = struct.Struct("=QIHH")
_STREAM = struct.Struct("=ii")


class StreamKind(enum.IntEnum):
    """How a stream synchronizes with its context's legacy default stream."""

    BLOCKING = 0
    NONBLOCKING = 1
    LEGACY = 2


class OpKind(enum.IntEnum):
    """Kind of operation; the numbers are the model's."""

    KERNEL = 0
    COPY_HTOD = 1
    COPY_DTOH = 2
    COPY_DTOD = 3
    MEMSET = 4
    HOST = 5
    EVENT_RECORD = 6
    EVENT_WAIT = 7
    MARKER = 8


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a device. Meanings and sources: native/device/device.h and presets.c."""

    name: str
    key: str
    compute_major: int
    compute_minor: int
    sm_count: int
    threads_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int
    shared_bytes_per_sm: int
    threads_per_block: int
    registers_per_thread: int
    shared_bytes_per_block: int
    shared_bytes_per_block_optin: int
    shared_reserved_bytes: int
    shared_granularity_bytes: int
    register_granularity: int
    resident_kernels: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    l2_bytes: int
    copy_engines: int
    memory_bytes: int
    memory_bytes_per_s: int
    host_bytes_per_s: int
    priority_least: int
    priority_greatest: int
    slice_ns: int
    switch_ns: int
    copy_latency_ns: int
    context_bytes: int
    launch_ns: int
    issue_full_ppm: int
    cache_contention_ppm: int
    dram_contention_ppm: int
    clock_drop_ppm: int
    priority_effect_ppm: int

    def occupancy(self, threads: int, registers: int = 0, shared_bytes: int = 0) -> int:
        """Return how many blocks of this shape fit on one empty SM; 0: none."""
        return _native.device_occupancy(msgspec.structs.asdict(self), threads, registers, shared_bytes)


def preset_keys() -> list[str]:
    """Return the names of the device presets."""
    return _native.device_preset_keys()


def preset(key: str) -> DeviceConfig:
    """Return the preset of this name; "v100" and "a100" are the smaller ones. Raises LookupError if there is none."""
    return msgspec.convert(_native.device_preset(key), DeviceConfig)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Largest numbers of clients, contexts, streams, events, operations and records."""

    clients: int = 8
    contexts: int = 16
    streams: int = 128
    events: int = 256
    ops: int = 8192
    records: int = 16384


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A grid of equal blocks, each `block_ns` long at full speed. blocks_per_sm 0: computed from the shape.

    A limit of its own (`sm_cap`; 0: none) holds for all running kernels of the client with such a limit together.
    """

    blocks: int
    block_ns: int
    bytes_per_block: int = 0
    threads_per_block: int = 256
    registers_per_thread: int = 0
    shared_bytes_per_block: int = 0
    blocks_per_sm: int = 0
    sm_cap: int = 0

    def shape(self) -> tuple[int, int, int, int, int, int, int]:
        """Return all but the limit, as `_native.Device.launch` takes it."""
        return (
            self.blocks,
            self.block_ns,
            self.bytes_per_block,
            self.threads_per_block,
            self.registers_per_thread,
            self.shared_bytes_per_block,
            self.blocks_per_sm,
        )


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A completed operation, or (ready) a host function that may run now. Times as in struct ct_device_record."""

    op: int
    tag: int
    client: int
    context: int
    stream: int
    kind: OpKind
    ready: bool
    submit_ns: int
    ready_ns: int
    start_ns: int
    end_ns: int
    delayed_ns: int


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a device, client or context; meanings as in struct ct_device_counters."""

    kernels: int
    blocks: int
    copies: int
    memsets: int
    host_functions: int
    killed_ops: int
    busy_ns: int
    sm_ns: int
    thread_ns: int
    traffic_bytes: int
    host_bytes: int
    delayed_ns: int
    memory_bytes: int
    memory_peak_bytes: int
    switches: int
    late_calls: int
    dropped_records: int
    merged_chunks: int


class Step(msgspec.Struct, frozen=True):
    """A step of a script: after host_ns the host launches (kernel is an index; None: nothing) and optionally waits."""

    host_ns: int
    kernel: int | None
    stream: int = 0
    sync: bool = False


class ScriptClient(msgspec.Struct, frozen=True, kw_only=True):
    """A process in a script: its steps, their repetitions, and optionally the earliest start of each repetition."""

    steps: tuple[Step, ...]
    repeats: int = 1
    arrivals_ns: tuple[int, ...] | None = None
    streams: tuple[tuple[StreamKind, int], ...] = ((StreamKind.BLOCKING, 0),)
    group_label: int = OWN_GROUP
    sm_cap: int = 0
    ahead_limit: int = 0
    start_ns: int = 0


class ScriptResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a script's client. None in finished_ns, or the largest 64-bit value for a launch: not completed."""

    client: int
    launches: int
    completions: int
    finished_ns: int | None
    blocked_ns: int
    repeat_ends_ns: Sequence[int]
    starts_ns: Sequence[int]
    ends_ns: Sequence[int]
    delays_ns: Sequence[int]


class Device:
    """One device. Every method with now_ns first advances the device to that instant."""

    def __init__(self, config: DeviceConfig, limits: Limits | None = None, now_ns: int = 0) -> None:
        bounds = limits or Limits()
        self.config = config
        self._native = _native.Device(
            msgspec.structs.asdict(config),
            (bounds.clients, bounds.contexts, bounds.streams, bounds.events, bounds.ops, bounds.records),
            now_ns,
        )

    def add_client(self, now_ns: int, group_label: int = OWN_GROUP) -> int:
        return self._native.client_add(now_ns, group_label)

    def kill_client(self, now_ns: int, client: int) -> None:
        self._native.client_kill(now_ns, client)

    def stop_client(self, now_ns: int, client: int) -> None:
        """Apply a fatal fault: the client's work is dropped as by a kill, its contexts and memory stay."""
        self._native.client_stop(now_ns, client)

    def set_speed(self, now_ns: int, speed: int) -> None:
        """Run every grid at `speed` of FULL_SPEED from now on."""
        self._native.set_speed(now_ns, speed)

    def set_slice(self, now_ns: int, slice_ns: int) -> None:
        """Set the length of time slices from now on."""
        self._native.set_slice(now_ns, slice_ns)

    @property
    def slice_ns(self) -> int:
        """The present length of time slices."""
        return self._native.slice_ns()

    def cut(self, now_ns: int, op: int) -> None:
        """End the kernel: it is complete now, or when it would start."""
        self._native.op_cut(now_ns, op)

    def create_context(self, now_ns: int, client: int, sm_cap: int = 0) -> int:
        return self._native.context_create(now_ns, client, sm_cap)

    def destroy_context(self, now_ns: int, context: int) -> None:
        self._native.context_destroy(now_ns, context)

    def cap_client(self, now_ns: int, client: int, sm_cap: int) -> None:
        """Limit the client to this many SMs' worth of blocks over all its contexts; 0: no limit."""
        self._native.client_cap(now_ns, client, sm_cap)

    def cap_context(self, now_ns: int, context: int, sm_cap: int) -> None:
        self._native.context_cap(now_ns, context, sm_cap)

    def take_memory(self, context: int, memory_bytes: int) -> None:
        self._native.memory_take(context, memory_bytes)

    def give_memory(self, context: int, memory_bytes: int) -> None:
        self._native.memory_give(context, memory_bytes)

    def free_memory_bytes(self) -> int:
        return self._native.memory_free()

    def create_stream(
        self, now_ns: int, context: int, kind: StreamKind = StreamKind.BLOCKING, priority: int = 0
    ) -> int:
        return self._native.stream_create(now_ns, context, kind, priority)

    def destroy_stream(self, now_ns: int, stream: int) -> None:
        self._native.stream_destroy(now_ns, stream)

    def create_event(self, context: int) -> int:
        return self._native.event_create(context)

    def launch(self, now_ns: int, stream: int, kernel: Kernel, tag: int = 0) -> int:
        return self._native.launch(now_ns, stream, kernel.shape(), tag, kernel.sm_cap)

    def copy(self, now_ns: int, stream: int, kind: OpKind, copy_bytes: int, tag: int = 0) -> int:
        """Enqueue a copy to, from or within the device, or a memset."""
        return self._native.copy(now_ns, stream, kind, copy_bytes, tag)

    def host(self, now_ns: int, stream: int, tag: int = 0) -> int:
        """Enqueue a host function: a record reports when it may run, and `host_done` that it has run."""
        return self._native.host(now_ns, stream, tag)

    def host_done(self, now_ns: int, op: int) -> None:
        self._native.host_done(now_ns, op)

    def record_event(self, now_ns: int, stream: int, event: int, tag: int = 0) -> int:
        return self._native.event_record(now_ns, stream, event, tag)

    def wait_event(self, now_ns: int, stream: int, event: int, tag: int = 0) -> int:
        return self._native.event_wait(now_ns, stream, event, tag)

    def event_instant_ns(self, event: int) -> int | None:
        """Return the instant of the event's latest record; None if it has not completed."""
        return self._native.event_time(event)

    def advance(self, now_ns: int) -> None:
        self._native.advance(now_ns)

    def now_ns(self) -> int:
        return self._native.now()

    def is_done(self, op: int) -> bool:
        return self._native.op_done(op)

    def next_change_ns(self) -> int | None:
        return self._native.next_change()

    def project_ns(self, op: int) -> int | None:
        """Return when the operation completes as enqueued: 0 if it has, None if that depends on the host."""
        return self._native.project_op(op)

    def project_context_ns(self, context: int) -> int | None:
        return self._native.project_context(context)

    def drain(self) -> list[Record]:
        """Return the records since the last call in order of completion."""
        return [msgspec.convert(row, Record, strict=False) for row in self._native.drain()]

    def count(self) -> Counters:
        return Counters(**self._native.count())

    def count_client(self, client: int) -> Counters:
        return Counters(**self._native.count_client(client))

    def count_context(self, context: int) -> Counters:
        return Counters(**self._native.count_context(context))

    def delay_ns(self, waiter: int, culprit: int) -> int:
        """Return how long kernels of one client were delayed by another; defined in native/device/device.h."""
        return self._native.delay(waiter, culprit)

    def check(self) -> str | None:
        """Return which invariant of the model is violated; None: none."""
        return self._native.check()

    def run(
        self, kernels: Sequence[Kernel], clients: Iterable[ScriptClient], until_ns: int = _NEVER_NS - 1
    ) -> list[ScriptResult]:
        """Run whole scripts without a Python call per kernel; the clients stay on the device with their counters."""
        packed, rows, buffers = b"".join(_KERNEL.pack(*kernel.shape(), kernel.sm_cap, 0) for kernel in kernels), [], []
        for client in clients:
            launches = client.repeats * sum(step.kernel is not None for step in client.steps)
            starts, ends, delays = (array("Q", bytes(8 * launches)) for _ in range(3))
            repeat_ends = array("Q", bytes(8 * client.repeats))
            buffers.append((starts, ends, delays, repeat_ends))
            rows.append(
                (
                    _aligned(b"".join(_packed_step(step) for step in client.steps)),
                    client.repeats,
                    None if client.arrivals_ns is None else array("Q", client.arrivals_ns),
                    _aligned(b"".join(_STREAM.pack(kind, priority) for kind, priority in client.streams)),
                    client.group_label,
                    client.sm_cap,
                    client.ahead_limit,
                    client.start_ns,
                    starts,
                    ends,
                    delays,
                    repeat_ends,
                )
            )
        outcomes = self._native.run_script(_aligned(packed), rows, until_ns)
        return [
            ScriptResult(
                client=handle,
                launches=launches,
                completions=completions,
                finished_ns=finished_ns,
                blocked_ns=blocked_ns,
                starts_ns=starts,
                ends_ns=ends,
                delays_ns=delays,
                repeat_ends_ns=repeat_ends,
            )
            for (launches, completions, finished_ns, blocked_ns, handle), (starts, ends, delays, repeat_ends) in zip(
                outcomes, buffers, strict=True
            )
        ]


def _packed_step(step: Step) -> bytes:
    return _STEP.pack(step.host_ns, _NO_KERNEL if step.kernel is None else step.kernel, step.stream, int(step.sync))


def _aligned(data: bytes) -> "array[int]":
    """Return the same bytes as 64-bit words, which C may read in place."""
    return array("Q", data)
