"""What does a host do between two launches? Its steps as plain numbers, and where it is in them."""

from __future__ import annotations

import math
import random
from array import array
from collections import deque
from typing import Final, Protocol

from cotenant.domain.instant import MICROSECOND_NS, SECOND_NS
from cotenant.domain.kernel import Work
from cotenant.domain.load import Launch, Load
from cotenant.domain.value import Value
from cotenant.sim.device import DeviceConfig, OpKind

NEVER_NS: Final = 2**63
AHEAD_LIMIT: Final = 1024
"""Launches under way at most: then the host waits for the oldest, as a driver's queue makes it."""

_BYTES_PER_NS: Final = {OpKind.COPY_HTOD: 12.0, OpKind.COPY_DTOH: 12.0, OpKind.COPY_DTOD: 700.0, OpKind.MEMSET: 700.0}
"""How fast a copy of unknown size is taken to have been; as in a launch script."""

READY, AT_DOOR, SUBMITTING, ENTERING, IN_SYNC, RETURNING, AT_LIMIT, THROUGH = range(8)
"""Before a launch, asking to be let through, in the launch call, before the call that waits, inside it, coming out of
it, behind a full queue, and done."""


class Door(Protocol):
    """Who is asked before a launch. `sleeps`, `looks`: how it waits for the instant that it answered last."""

    sleeps: bool
    """It wakes up late, unless the bell rings."""
    looks: bool
    """It spins, and sees what others launch."""
    confirms: bool
    """It wants to know of the end of what passed last."""

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """May this launch go? `now_ns`: yes; a later instant: ask again then."""
        ...

    def submitted(self, now_ns: int) -> None:
        """The driver has taken it."""
        ...

    def ended(self, step: int, now_ns: int) -> None:
        """An event has shown the end of a launch."""
        ...

    def waits(self, now_ns: int) -> None:
        """The host goes into a call that waits for all its work."""
        ...

    def drained(self, now_ns: int) -> bool:
        """It comes out of it. Whether the bell is rung."""
        ...

    def began(self, due_ns: int, now_ns: int) -> None:
        """The host takes up a request that was due then."""
        ...

    def served(self, due_ns: int, now_ns: int) -> None:
        """It is through with it."""
        ...


class Open:
    """Everybody passes."""

    sleeps = looks = confirms = False

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Yes."""
        del step, since_ns
        return now_ns

    def submitted(self, now_ns: int) -> None:
        """Nobody wants to know."""

    def ended(self, step: int, now_ns: int) -> None:
        """Nobody wants to know."""

    def waits(self, now_ns: int) -> None:
        """Nobody wants to know."""

    def drained(self, now_ns: int) -> bool:
        """There is no bell."""
        del now_ns
        return False

    def began(self, due_ns: int, now_ns: int) -> None:
        """Nobody wants to know."""

    def served(self, due_ns: int, now_ns: int) -> None:
        """Nobody wants to know."""


class Costs(Value, frozen=True):
    """What a host pays. Our choices, in the range of a quiet machine."""

    call_ns: int = 1500
    """A launch call; the device has the kernel at its end."""
    sync_ns: int = 5 * MICROSECOND_NS
    """From the end of the work to the return from the call that waits for it."""
    query_ns: int = 1 * MICROSECOND_NS
    """From the end of a kernel to when a look at its event shows it."""
    poll_ns: int = 500
    """Between two looks of one that spins."""
    wake_ns: int = 20 * MICROSECOND_NS
    """By so much a sleeper is late at least."""
    wake_spread_ns: int = 10 * MICROSECOND_NS
    """And by this much more in the mean, exponentially distributed."""
    jitter_ppm: int = 50_000
    """A host's interval is uniform within so much of what its load says, to either side."""


class Client(Value, frozen=True):
    """A process on the device: its load, and the group that it shares time slices with."""

    load: Load
    group: int
    seed: int = 0
    warm: int = 0
    """Requests before anything is counted."""
    priority: int = 0
    """Of its streams; lower goes first."""
    sm_cap: int = 0
    """SMs' worth of blocks that it has on the device at most; 0: no cap."""


class Host:
    """One process: numbers only, for every kernel passes here."""

    __slots__ = (
        "at_ns",
        "awaits",
        "called_ns",
        "client",
        "done_ns",
        "door",
        "due_ns",
        "dues",
        "ended",
        "ends",
        "gaps",
        "idle_from_ns",
        "instants",
        "intervals",
        "jitter",
        "kernels",
        "kinds",
        "last_step",
        "ops",
        "outstanding",
        "period",
        "request",
        "requests",
        "rng",
        "runs",
        "since_ns",
        "state",
        "step",
        "streams",
        "tag",
        "training",
        "waited_ns",
        "waits",
        "warm",
    )

    def __init__(self, client: Client, door: Door, index: int, config: DeviceConfig, costs: Costs) -> None:
        """Lay out the steps; streams are made by the world."""
        load = client.load
        self.door = door
        self.tag = index << 40
        kernels = [device_op(launch, config) for launch in load.launches]
        streams = sorted({launch.stream for launch in load.launches})
        places = [streams.index(launch.stream) for launch in load.launches]
        durations = [launch.device_ns if launch.kernel.work is Work.KERNEL else 0 for launch in load.launches]
        each = list(zip(kernels, places, durations, strict=True))
        self.ops = [each] if load.graph else [[one] for one in each]
        self.intervals = [0] if load.graph else [launch.interval_ns for launch in load.launches]
        self.kinds = len(streams)
        self.last_step = len(self.ops) - 1
        self.streams: list[int] = []
        self.jitter = costs.jitter_ppm / 1e6
        self.rng = random.Random(client.seed)
        arrival = load.arrival
        self.training = arrival.kind == "training"
        self.period = _pauses(client)
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
        self.ended: deque[tuple[int, int]] = deque()
        self.dues = array("q")
        self.ends = array("q")
        self.done_ns = self.kernels = self.waits = self.waited_ns = 0
        self.gaps: list[tuple[int, int]] = []
        self.idle_from_ns = 0
        self.runs: list[tuple[int, int]] = []

    def interval_ns(self) -> int:
        """From this launch to the next."""
        interval_ns = self.intervals[self.step]
        if self.jitter and interval_ns:
            return round(interval_ns * (1 + self.jitter * (2 * self.rng.random() - 1)))
        return interval_ns

    def next_due_ns(self, now_ns: int) -> int:
        """When the next request is due."""
        if self.instants:
            return self.instants[self.request]
        mean_ns, rng = self.period
        if not mean_ns:
            return now_ns
        return self.due_ns + (round(-math.log1p(-rng.random()) * mean_ns) if rng is not None else mean_ns)


def _pauses(client: Client) -> tuple[int, random.Random | None]:
    arrival = client.load.arrival
    if arrival.kind == "periodic":
        return arrival.period_ns, None
    if arrival.kind == "poisson":
        return round(SECOND_NS / arrival.rate_per_s), random.Random(arrival.seed)
    return 0, None


def device_op(launch: Launch, config: DeviceConfig) -> tuple[int, ...]:
    """A kernel as the device takes it (seven numbers), or a copy (its kind and its bytes)."""
    kernel = launch.kernel
    if kernel.work is not Work.KERNEL:
        name = kernel.function.lower()
        kind = next((one for word, one in _DIRECTIONS.items() if word in name), OpKind.COPY_DTOD)
        if kernel.work is Work.MEMSET:
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
    rounds = -(-blocks // (fits * config.sm_count))
    return blocks, max(round(launch.device_ns / rounds), 1), 0, threads, registers, shared_bytes, fits


_DIRECTIONS: Final = {"htod": OpKind.COPY_HTOD, "dtoh": OpKind.COPY_DTOH}
