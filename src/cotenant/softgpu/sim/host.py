"""Host processes of a simulated device: the steps between launches, and the state of each host."""

from __future__ import annotations

import math
import random
from array import array
from collections import deque
from typing import Final, Protocol

from cotenant.softgpu.sim.device import DeviceConfig, OpKind
from cotenant.units.instant import MICROSECOND_NS, SECOND_NS
from cotenant.units.value import Value
from cotenant.workload.kernel import WorkKind
from cotenant.workload.load import Launch, Workload

NEVER_NS: Final = 2**63
_DATA: Final = 1 << 40
"""Added to a host's seed for the data of its requests, so that its jitter stays the same."""
AHEAD_LIMIT: Final = 1024
"""Largest number of outstanding launches; then the host waits for the oldest, as with a driver's queue."""

_BYTES_PER_NS: Final = {OpKind.COPY_HTOD: 12.0, OpKind.COPY_DTOH: 12.0, OpKind.COPY_DTOD: 700.0, OpKind.MEMSET: 700.0}
"""Assumed rate of a copy of unknown size, as in a launch script."""

READY, AT_GATE, SUBMITTING, ENTERING, IN_SYNC, RETURNING, AT_LIMIT, THROUGH = range(8)
"""Before a launch, waiting for admission, in the launch call, before the synchronizing call, in it, returning from it,
blocked by a full queue, and finished."""


class LaunchGate(Protocol):
    """Admits launches. `sleeps` and `spins` say how it waits for the instant that `ask` returned."""

    sleeps: bool
    """It sleeps and wakes late, unless the wake word is signalled."""
    spins: bool
    """It spins, and observes launches of others."""
    confirms: bool
    """It must learn of the completion of the last admitted launch."""
    learns: bool
    """It learns how long each launch took on the device."""
    sm_ppm: int
    """Part of the SMs that the kernels of the launch just admitted may occupy, together with the host's other kernels
    with a limit; 0: all."""
    part_blocks: int
    """How many blocks of the launch just admitted to submit; 0: all. The host asks for the rest as for a launch."""

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Return `now_ns` to admit the launch, or a later instant at which to ask again."""
        ...

    def submitted(self, now_ns: int) -> None:
        """The driver has accepted the launch."""
        ...

    def ended(self, step: int, length_ns: int, now_ns: int) -> None:
        """An event has shown the completion of a launch, or of a part, which took this long on the device."""
        ...

    def waits(self, now_ns: int) -> None:
        """The host enters a call that waits for all its work."""
        ...

    def drained(self, now_ns: int) -> bool:
        """The host leaves that call. Returns whether waiting hosts are to be woken."""
        ...

    def began(self, due_ns: int) -> None:
        """The host starts a request that was due then."""
        ...

    def served(self, due_ns: int, now_ns: int) -> None:
        """The host has finished the request."""
        ...


class OpenGate:
    """Admits every launch at once."""

    sleeps = spins = confirms = learns = False
    sm_ppm = part_blocks = 0

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Admit the launch."""
        del step, since_ns
        return now_ns

    def submitted(self, now_ns: int) -> None:
        """Ignore it."""

    def ended(self, step: int, length_ns: int, now_ns: int) -> None:
        """Ignore it."""

    def waits(self, now_ns: int) -> None:
        """Ignore it."""

    def drained(self, now_ns: int) -> bool:
        """Wake no host."""
        del now_ns
        return False

    def began(self, due_ns: int) -> None:
        """Ignore it."""

    def served(self, due_ns: int, now_ns: int) -> None:
        """Ignore it."""


class Costs(Value, frozen=True):
    """Costs of a host. Our choices, as of a quiet machine."""

    call_ns: int = 1500
    """Duration of a launch call; the device has the kernel at its end."""
    sync_ns: int = 5 * MICROSECOND_NS
    """From the end of the work to the return from the synchronizing call."""
    query_ns: int = 1 * MICROSECOND_NS
    """From the end of a kernel to when a query of its event shows it."""
    poll_ns: int = 500
    """Interval between two polls of a spinning host."""
    wake_ns: int = 20 * MICROSECOND_NS
    """Smallest delay of a wakeup."""
    wake_spread_ns: int = 10 * MICROSECOND_NS
    """Mean of the additional, exponentially distributed delay."""
    jitter_ppm: int = 50_000
    """Relative half width of the uniform jitter of a host's intervals."""
    data_spread_ppm: int = 0
    """Standard deviation over mean of the factor by which the kernels of one request take longer than those of others,
    because they depend on its data."""


class Client(Value, frozen=True):
    """A process on the device: its load, and the group with which it shares time slices."""

    load: Workload
    group: int
    seed: int = 0
    warm: int = 0
    """Requests before measurement begins."""
    priority: int = 0
    """Priority of its streams; lower goes first."""
    sm_cap: int = 0
    """Limit in SMs' worth of blocks; 0: none."""
    cycle: int = 1
    """The launches of the load are those of this many requests in turn, with the same number of launches each."""


class Host:
    """State of one process, in plain numbers because every launch updates it."""

    __slots__ = (
        "asked_ns",
        "at_ns",
        "awaits",
        "begin_ns",
        "called_ns",
        "client",
        "cycle",
        "data_factor",
        "data_rng",
        "data_spread",
        "done_ns",
        "due_ns",
        "dues",
        "ended",
        "ends",
        "gaps",
        "gate",
        "idle_from_ns",
        "instants",
        "intervals",
        "jitter",
        "kernels",
        "kinds",
        "last_step",
        "ops",
        "outstanding",
        "part_number",
        "part_times",
        "period",
        "request",
        "request_steps",
        "requests",
        "rest_blocks",
        "rng",
        "runs",
        "since_ns",
        "started_ns",
        "starts",
        "state",
        "step",
        "streams",
        "tag",
        "training",
        "waited_ns",
        "waits",
        "warm",
    )

    def __init__(self, client: Client, gate: LaunchGate, index: int, config: DeviceConfig, costs: Costs) -> None:
        """Prepare the steps; the simulation creates the streams."""
        load = client.load
        self.gate = gate
        self.tag = index << 40
        kernels = [device_op(launch, config) for launch in load.launches]
        streams = sorted({launch.stream for launch in load.launches})
        stream_indexes = [streams.index(launch.stream) for launch in load.launches]
        durations = [launch.device_ns if launch.kernel.work is WorkKind.KERNEL else 0 for launch in load.launches]
        request_ops = list(zip(kernels, stream_indexes, durations, strict=True))
        self.ops = [request_ops] if load.graph else [[op] for op in request_ops]
        self.intervals = [0] if load.graph else [launch.interval_ns for launch in load.launches]
        self.kinds = len(streams)
        self.cycle = client.cycle
        self.request_steps = len(self.ops) // client.cycle
        self.last_step = self.request_steps - 1
        self.streams: list[int] = []
        self.jitter = costs.jitter_ppm / 1e6
        self.data_spread = costs.data_spread_ppm / 1e6
        self.data_rng = random.Random(client.seed + _DATA)
        self.data_factor = self._next_data()
        self.rng = random.Random(client.seed)
        arrival = load.arrival
        self.training = arrival.kind == "training"
        self.period = _mean_interval(client)
        self.instants = arrival.instants_ns
        self.requests = 2**62 if self.training else client.warm + load.requests
        if arrival.kind == "instants":
            self.requests = min(len(self.instants), self.requests)
        self.warm = client.warm
        self.client = self.request = self.step = self.since_ns = self.called_ns = 0
        self.state = READY if self.requests else THROUGH
        self.due_ns = self.instants[0] if self.instants else 0
        self.at_ns = self.due_ns if self.requests else NEVER_NS
        self.awaits = False
        self.outstanding = 0
        self.ended: deque[tuple[int, int, int]] = deque()
        self.begin_ns = 0
        self.started_ns = 0
        self.dues = array("q")
        self.starts = array("q")
        self.ends = array("q")
        self.done_ns = self.kernels = self.waits = self.waited_ns = 0
        self.gaps: list[tuple[int, int]] = []
        self.idle_from_ns = 0
        self.runs: list[tuple[int, int]] = []
        self.rest_blocks = self.part_number = self.asked_ns = 0
        self.part_times: dict[int, int] = {}

    def begin_request(self) -> None:
        """Go to the first launch of the next request."""
        self.step = self.request % self.cycle * self.request_steps
        self.last_step = self.step + self.request_steps - 1
        self.data_factor = self._next_data()

    def _next_data(self) -> float:
        """Return the factor of the kernels of the next request, uniform with the given spread."""
        if not self.data_spread:
            return 1.0
        return 1 + self.data_spread * math.sqrt(12) * (self.data_rng.random() - 0.5)

    def interval_ns(self) -> int:
        """Return the interval from this launch to the next."""
        interval_ns = self.intervals[self.step]
        if self.jitter and interval_ns:
            return round(interval_ns * (1 + self.jitter * (2 * self.rng.random() - 1)))
        return interval_ns

    def next_due_ns(self, now_ns: int) -> int:
        """Return when the next request is due."""
        if self.instants:
            return self.instants[self.request]
        mean_ns, rng = self.period
        if not mean_ns:
            return now_ns
        return self.due_ns + (round(-math.log1p(-rng.random()) * mean_ns) if rng is not None else mean_ns)


def _mean_interval(client: Client) -> tuple[int, random.Random | None]:
    arrival = client.load.arrival
    if arrival.kind == "periodic":
        return arrival.period_ns, None
    if arrival.kind == "poisson":
        return round(SECOND_NS / arrival.rate_per_s), random.Random(arrival.seed)
    return 0, None


def device_op(launch: Launch, config: DeviceConfig) -> tuple[int, ...]:
    """Return a kernel as the device takes it (seven numbers), or a copy (kind and bytes)."""
    kernel = launch.kernel
    if kernel.work is not WorkKind.KERNEL:
        name = kernel.function.lower()
        kind = next((direction for word, direction in _DIRECTIONS.items() if word in name), OpKind.COPY_DTOD)
        if kernel.work is WorkKind.MEMSET:
            kind = OpKind.MEMSET
        return int(kind), launch.moved_bytes or max(int(launch.device_ns * _BYTES_PER_NS[kind]), 1)
    threads = min(max(kernel.threads_per_block, 1), config.threads_per_block)
    registers = min(launch.registers, config.registers_per_thread)
    shared_bytes = min(kernel.shared_bytes, config.shared_bytes_per_block)
    fits = config.occupancy(threads, registers, shared_bytes)
    if not fits:
        registers = shared_bytes = 0
        fits = config.occupancy(threads)
    blocks = max(kernel.blocks, 1)
    slots = fits * config.sm_count
    block_ns = max(round(launch.device_ns / -(-blocks // slots)), 1)
    sms = min(blocks, config.sm_count) / config.sm_count
    traffic = launch.bandwidth_part * sms * config.memory_bytes_per_s / 1e9 * block_ns / min(blocks, slots)
    return blocks, block_ns, int(traffic), threads, registers, shared_bytes, fits


_DIRECTIONS: Final = {"htod": OpKind.COPY_HTOD, "dtoh": OpKind.COPY_DTOH}
