"""Several simulated devices in one time, with the ranks of a training job whose collectives wait for each other.

A collective is a sequence of kernels in its stream: one that ends when its blocks are placed, and then, in turn, one
that spins until the kernels of all ranks have come this far, and one that moves a part of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from cotenant.softgpu.sim.device import DeviceConfig
from cotenant.softgpu.sim.host import AT_GATE, NEVER_NS, THROUGH, Client, Costs, LaunchGate
from cotenant.softgpu.sim.kernels import DeviceSimulation
from cotenant.units.instant import SECOND_NS, Duration, Instant

PARTS: Final = 2
"""Parts of a collective, before each of which the ranks wait for each other."""
_SPIN_NS: Final = 3600 * SECOND_NS
_STEP_BITS: Final = 24
_STEP_MASK: Final = (1 << _STEP_BITS) - 1
_INDEX_MASK: Final = 0x7FFF
_HOST_SHIFT: Final = 40
Op = tuple[int, ...]
Spin = tuple[int, int]
"""The number of a collective and of its part."""


class Job:
    """The ranks of one job, and what their collectives have cost."""

    def __init__(self) -> None:
        self.ranks: list[RankSimulation] = []
        self.spins: list[tuple[Duration, Duration]] = []
        """For each rank and collective: how long it spun, and for how much of that another rank waited at a gate."""
        self._reached: dict[Spin, dict[int, Instant]] = {}

    def reached(self, rank: int, spin: Spin, at_ns: Instant) -> None:
        """A rank spins; once all ranks that are alive do, none of them does any longer."""
        self._reached.setdefault(spin, {})[rank] = at_ns
        self._release(spin)

    def left(self, rank: int) -> None:
        """A rank has ended: the others go on without it, as an elastic job does."""
        for spin in list(self._reached):
            self._reached[spin].pop(rank, None)
            self._release(spin)

    def _release(self, spin: Spin) -> None:
        reached = self._reached[spin]
        alive = [rank for rank in self.ranks if rank.is_alive]
        if any(rank.number not in reached for rank in alive):
            return
        del self._reached[spin]
        end_ns = max((rank.now_ns for rank in alive), default=0)
        for rank in alive:
            if spin[1] == 0:
                begin_ns = reached[rank.number]
                held_ns = [other.held_between(begin_ns, end_ns) for other in self.ranks if other is not rank]
                self.spins.append((end_ns - begin_ns, max(held_ns, default=0)))
            rank.end_spin(spin, end_ns)


class _WatchedDevice:
    """The native device; shows which kernels were launched and have ended."""

    def __init__(self, device: Any, launched: Callable[[int, int], None], ended: Callable[[int, int], None]) -> None:
        self._device = device
        self._launched, self._ended = launched, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def launch(self, now_ns: int, stream: int, kernel: Op, tag: int, sm_cap: int) -> int:
        op: int = self._device.launch(now_ns, stream, kernel, tag, sm_cap)
        self._launched(tag, op)
        return op

    def drain(self) -> list[Any]:
        records: list[Any] = self._device.drain()
        for record in records:
            self._ended(record[1], record[10])
        return records


class RankSimulation(DeviceSimulation):
    """One device, the last client of which is a rank of the job."""

    def __init__(
        self,
        config: DeviceConfig,
        clients: Sequence[Client],
        gates: Sequence[LaunchGate],
        costs: Costs,
        seed: int,
        *,
        job: Job,
        collectives: Collection[int],
    ) -> None:
        """`collectives` are the steps of the rank that launch one. Without them the device has no rank."""
        super().__init__(config, clients, gates, costs, seed)
        self._records_gaps = False
        self.job = job
        self.number = len(job.ranks)
        self.is_alive = bool(collectives)
        self.now_ns: Instant = 0
        self.passed = 0
        """Collectives that the rank has finished."""
        self._steps = frozenset(collectives)
        self._launches = 0
        self._spinning: dict[Spin, int] = {}
        self._numbers: dict[int, list[int]] = {step: [] for step in self._steps}
        self._holds: list[tuple[Instant, Instant]] = []
        self._rank = self._hosts[-1]
        self._device: Any = _WatchedDevice(self._device, self._launched, self._ended)
        for step in self._steps:
            self._rank.ops[step] = _collective_ops(self._rank.ops[step][0])
        if collectives:
            job.ranks.append(self)

    # ---- time -----------------------------------------------------------------------------------------------------

    def next_ns(self) -> Instant:
        """Return the instant of the next event."""
        at_ns = min(self._next_tick_ns(), *(host.at_ns for host in self._hosts))
        if (
            self._spinning
            or any(numbers for numbers in self._numbers.values())
            or any(host.awaits for host in self._hosts)
        ):
            change_ns = self._device.next_change()
            if change_ns is not None:
                at_ns = min(at_ns, change_ns)
        return max(at_ns, self.now_ns)

    def step_at(self, now_ns: Instant) -> None:
        """Handle one event at this instant."""
        self.now_ns = now_ns
        change_ns = self._device.next_change()
        if change_ns is not None and change_ns <= now_ns:
            self._device.advance(now_ns)
            self._collect()
            return
        tick_ns = self._next_tick_ns()
        host = min(self._hosts, key=lambda each: each.at_ns)
        if host.at_ns >= tick_ns:
            self._tick(now_ns)
            return
        was_held = host.state == AT_GATE
        self._step(host, now_ns)
        if host is self._rank and was_held and host.state != AT_GATE:
            self._holds.append((host.since_ns, now_ns))

    def held_between(self, begin_ns: Instant, end_ns: Instant) -> Duration:
        """Return for how long within this time the rank waited at its gate."""
        holds = list(self._holds[-16:])
        if self._rank.state == AT_GATE:
            holds.append((self._rank.since_ns, end_ns))
        return sum(max(min(end_ns, until_ns) - max(begin_ns, since_ns), 0) for since_ns, until_ns in holds)

    def kill_rank(self, now_ns: Instant) -> None:
        """End the rank's process, as a kill does."""
        self._settle(now_ns)
        self.is_alive = False
        self._device.client_kill(now_ns, self._rank.client)
        self._rank.state, self._rank.at_ns, self._rank.awaits = THROUGH, NEVER_NS, False
        self._spinning.clear()
        for numbers in self._numbers.values():
            numbers.clear()
        self.job.left(self.number)

    # ---- collectives ----------------------------------------------------------------------------------------------

    def end_spin(self, spin: Spin, at_ns: Instant) -> None:
        """Let the kernel that spins end: all ranks have come this far."""
        op = self._spinning.pop(spin)
        self._device.op_cut(max(at_ns, self._device.now()), op)

    def _place_of(self, tag: int) -> tuple[int, int] | None:
        """Return step and index of a kernel of a collective of the rank; None: of another kernel."""
        step = tag & _STEP_MASK
        if tag >> _HOST_SHIFT != len(self._hosts) - 1 or step not in self._steps:
            return None
        return step, tag >> _STEP_BITS & _INDEX_MASK

    def _launched(self, tag: int, op: int) -> None:
        place = self._place_of(tag)
        if place is None:
            return
        step, index = place
        if index == 0:
            self._numbers[step].append(self._launches)
            self._launches += 1
        elif index % 2:
            self._spinning[self._numbers[step][-1], index // 2] = op

    def _ended(self, tag: int, at_ns: int) -> None:
        place = self._place_of(tag)
        if place is None or place[1] % 2 or not self.is_alive:
            return
        step, index = place
        if index < 2 * PARTS:
            self.job.reached(self.number, (self._numbers[step][0], index // 2), at_ns)
            return
        self._numbers[step].pop(0)
        self.passed += 1


def _collective_ops(op: tuple[Op, int, int]) -> list[tuple[Op, int, int]]:
    """Return the kernels of a collective that takes as long as this one if all ranks come at once."""
    kernel, stream, device_ns = op
    blocks, block_ns, traffic, *shape = kernel
    arrive = ((blocks, 1, 0, *shape), stream, 0)
    spin = ((blocks, _SPIN_NS, 0, *shape), stream, 0)
    part = ((blocks, max(block_ns // PARTS, 1), traffic // PARTS, *shape), stream, device_ns // PARTS)
    return [arrive, *[spin, part] * PARTS]


def play_together(simulations: Sequence[RankSimulation], until_ns: Instant) -> None:
    """Run all devices up to an instant; at each event, the others are not ahead of it."""
    while True:
        simulation = min(simulations, key=lambda each: each.next_ns())
        now_ns = simulation.next_ns()
        if now_ns > until_ns:
            return
        for other in simulations:
            other.now_ns = max(other.now_ns, now_ns)
        simulation.step_at(now_ns)
