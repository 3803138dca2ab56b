"""Kernel streams under every way to share a device: alone, default sharing, the product's own gate, the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from cotenant.domain.gate import GatePolicy, GateRules, GateSeat
from cotenant.domain.histogram import Recorder
from cotenant.domain.kernel import KernelIdentity
from cotenant.domain.load import Load
from cotenant.experiment.kernels_oracle import Below, Plan, plan_of
from cotenant.policy.schedule import passage
from cotenant.policy.schedule.roster import file_bytes, format_roster, page_offset, read_page, write_roster
from cotenant.sim.device import DeviceConfig
from cotenant.sim.kernels import World
from cotenant.sim.kernels_host import Client, Costs, Door, Open
from cotenant.sim.kernels_played import Played

Policy: TypeAlias = Literal["open-slice", "open-mps", "strict", "strict-slice", "fill", "fill-slice"]
_GATES: Final = {"strict": GatePolicy.STRICT, "fill": GatePolicy.FILL}
_FIRST: Final = -1
"""Under MPS tenants start their offline programs below the normal priority of MPS clients: here the first is above."""
_LONGEST_NS: Final = 600 * 10**9


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A load and what the roster says of it. The first of a run is the one that the others are below."""

    load: Load
    priority: int
    least_ppm: int = 0
    limit_ppm: int = 0
    static: bool = False


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run depends on but the tenants and the policy."""

    device: DeviceConfig
    rules: GateRules = GateRules()
    costs: Costs = Costs()
    seed: int = 0
    warm: int = 1


def shares_slices(policy: Policy) -> bool:
    """Whether tenants take turns by time slice, rather than run as one group."""
    return policy.endswith("-slice")


def play_alone(load: Load, setting: Setting, *, for_ns: int = _LONGEST_NS, seed: int = 0) -> Played:
    """Nobody else, no gate; a training load for a while. `seed` is that of the tenant's place in a run."""
    warm = 0 if load.arrival.kind == "training" else setting.warm
    client = Client(load, 0, _host_seed(setting, seed), warm)
    return World(setting.device, [client], [Open()], setting.costs, setting.seed).play(for_ns)


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """A run of several, and of those that asked the gate what their pages say."""

    played: Played
    pages: tuple[dict[str, int | list[int]], ...] = ()

    def count(self, name: str) -> int:
        """A figure of the pages of all but the first tenant, in sum."""
        return sum(value for page in self.pages[1:] if isinstance(value := page[name], int))

    def passes(self, reason: int) -> int:
        """Launches of all but the first tenant that passed for this reason, by its number in native/gate/gate.h."""
        return sum(value[reason] for page in self.pages[1:] if isinstance(value := page["passed"], list))


def play(policy: Policy, tenants: Sequence[Tenant], setting: Setting) -> Shared:
    """All of them on one device."""
    sliced = shares_slices(policy)
    way = policy.removesuffix("-slice")
    clients = [
        Client(
            tenant.load,
            place if sliced else 0,
            _host_seed(setting, place),
            setting.warm if place == 0 else 0,
            _FIRST if way in _GATES and place == 0 else 0,
        )
        for place, tenant in enumerate(tenants)
    ]
    if way not in _GATES:
        doors: list[Door] = [Open() for _ in tenants]
        return Shared(played=World(setting.device, clients, doors, setting.costs, setting.seed).play(_LONGEST_NS))
    file = bytearray(file_bytes(len(tenants)))
    format_roster(file, len(tenants))
    write_roster(file, _rules(_GATES[way], tenants, setting, sliced=sliced))
    doors = [
        passage.Passage(file, (place, 1), *works_of(tenant.load, 0 if sliced else setting.device.sm_count))
        for place, tenant in enumerate(tenants)
    ]
    played = World(setting.device, clients, doors, setting.costs, setting.seed).play(_LONGEST_NS)
    pages = (bytes(file[page_offset(place) : page_offset(place + 1)]) for place in range(len(tenants)))
    return Shared(played=played, pages=tuple(read_page(page) for page in pages))


def plan_oracle(alone: Played, offline: Load, setting: Setting, allowance_ns: int, *, sliced: bool) -> Plan:
    """What the oracle would do: the most offline kernel time at no more delay than this."""
    below = Below(durations_ns=(offline.device_ns,), intervals_ns=(setting.costs.call_ns,))
    if not offline.graph:
        below = Below(
            durations_ns=tuple(launch.device_ns for launch in offline.launches),
            intervals_ns=tuple(max(launch.interval_ns, setting.costs.call_ns) for launch in offline.launches),
        )
    switch_ns = setting.device.switch_ns if sliced else 0
    return plan_of(alone.gaps_ns, below, allowance_ns, switch_ns, setting.costs)


def works_of(load: Load, sm_count: int = 0) -> tuple[list[passage.Work], list[int]]:
    """What a profile of the load would say of each piece of work, and which of them each launch is.

    With a number of SMs, also for how long its blocks hold these up.
    """
    pieces = len(load.launches)
    if load.graph:
        grain_ns = load.device_ns // pieces if sm_count else 0
        return [passage.Work(load.device_ns, load.device_ns, grain_ns=grain_ns, pieces=pieces)], [0]
    numbers: dict[KernelIdentity, int] = {}
    steps = [numbers.setdefault(launch.kernel, len(numbers)) for launch in load.launches]
    times = [Recorder() for _ in numbers]
    for launch, number in zip(load.launches, steps, strict=True):
        times[number].record(launch.device_ns)
    slots = {launch.kernel: launch.blocks_per_sm * sm_count for launch in load.launches}
    return [
        _work(recorder, kernel.blocks, slots[kernel]) for kernel, recorder in zip(numbers, times, strict=True)
    ], steps


def _work(recorder: Recorder, blocks: int, slots: int) -> passage.Work:
    seen = recorder.histogram()
    grain_ns = passage.grain_of(seen.mean, blocks, slots)
    return passage.work_of(seen.mean, seen.quantile(0.9), seen.quantile(0.99), grain_ns)


def _rules(policy: GatePolicy, tenants: Sequence[Tenant], setting: Setting, *, sliced: bool) -> GateRules:
    seats = tuple(
        GateSeat(
            *(place, 1, tenant.priority, place == 0),
            least_ppm=tenant.least_ppm,
            limit_ppm=tenant.limit_ppm,
            static=tenant.static,
        )
        for place, tenant in enumerate(tenants)
    )
    switch_ns = setting.device.switch_ns if sliced else 0
    return msgspec.structs.replace(setting.rules, policy=policy, switch_ns=switch_ns, seats=seats)


def _host_seed(setting: Setting, place: int) -> int:
    """Each host has jitter of its own, the same under every policy."""
    return setting.seed * 1_000_003 + place
