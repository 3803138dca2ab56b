"""Runs of kernel streams on one simulated device under a sharing policy: alone, open, gated, and the oracle's plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from cotenant.gate import tenant_gate
from cotenant.gate.launch_estimate import LaunchEstimate, estimate_launch, free_part, granularity_of
from cotenant.gate.learned_times import KernelLayout, LearnedTimes
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules, ProcessEntry
from cotenant.gate.tenant_table import (
    WritableBuffer,
    device_memory,
    gate_page,
    read_page,
    set_clock,
    write_tenant_table,
)
from cotenant.simulate.oracle import OfflineKernels, Plan, plan_of
from cotenant.softgpu.sim.device import DeviceConfig
from cotenant.softgpu.sim.host import Client, Costs, LaunchGate, OpenGate
from cotenant.softgpu.sim.kernels import DeviceSimulation
from cotenant.softgpu.sim.results import DeviceRun
from cotenant.units.histogram import Recorder
from cotenant.units.share import WHOLE_PPM
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import Workload

Policy: TypeAlias = Literal[
    "open-slice", "open-mps", "open-gate", "open-gate-equal", "open-gate-slice", "strict", "strict-slice", "fill",
    "fill-slice",
]  # fmt: skip
"""How tenants share: by the driver alone, or with the gate, which is open, strict, or fills gaps. "Equal": offline
programs have CUDA_MPS_CLIENT_PRIORITY=0 in their environment, and so no lower MPS priority."""
Knowledge: TypeAlias = Literal["exact", "profiled", "none"]
"""What the gate of a program knows of its kernel times: all of them, a profile, or nothing; the latter two are
corrected by what it measures."""
_EQUAL: Final = "open-gate-equal"
_GATES: Final = {
    "open-gate": GatePolicy.OPEN,
    _EQUAL: GatePolicy.OPEN,
    "strict": GatePolicy.STRICT,
    "fill": GatePolicy.FILL,
}
_FIRST: Final = -1
"""Stream priority of the first tenant. Under MPS, offline programs run below normal priority; here the first runs
above."""
_LONGEST_NS: Final = 600 * 10**9
_SM_STEPS: Final = 20
"""Limits of the SMs of a launch differ by this part of the device, or by two SMs, as those of the hook."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A load and its entry in the tenant table. The first tenant of a run has priority over the others."""

    load: Workload
    priority: int
    guaranteed_ppm: int = 0
    limit_ppm: int = 0
    static: bool = False
    knowledge: Knowledge = "exact"
    cycle: int = 1
    """The launches of the load are those of this many requests in turn."""
    process_of: int = -1
    """The index of the tenant of which it is another process; -1: of none."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run depends on but the tenants and the policy."""

    device: DeviceConfig
    rules: GateRules = GateRules()
    costs: Costs = Costs()
    seed: int = 0
    warm: int = 1
    estimate_factor: float = 1.0
    """Kernel durations that the gate expects, over the true ones: profiles may be wrong."""


def shares_slices(policy: Policy) -> bool:
    """Return whether tenants alternate by time slice, rather than run as one group."""
    return policy.endswith("-slice")


def play_alone(load: Workload, setting: RunSettings, *, for_ns: int = _LONGEST_NS, seed: int = 0) -> DeviceRun:
    """Run a load without other tenants and without a gate; `seed` is that of the tenant's position in a run."""
    warm = 0 if load.arrival.kind == "training" else setting.warm
    client = Client(load, 0, _host_seed(setting, seed), warm)
    return DeviceSimulation(setting.device, [client], [OpenGate()], setting.costs, setting.seed).play(for_ns)


class SharedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of several tenants, and the gate pages of those that used the gate."""

    played: DeviceRun
    pages: tuple[dict[str, int | list[int]], ...] = ()

    def count(self, name: str) -> int:
        """Return the sum of a counter over the pages of all tenants but the first."""
        return sum(value for page in self.pages[1:] if isinstance(value := page[name], int))

    def passes(self, reason: int) -> int:
        """Return the launches of all tenants but the first admitted for this reason (native/gate/gate.h)."""
        return sum(value[reason] for page in self.pages[1:] if isinstance(value := page["passed"], list))


class ClockChange(msgspec.Struct, frozen=True):
    """From an instant on the device runs at a fraction of its highest clock."""

    at_ns: int
    clock_ppm: int


CLOCK_SAMPLE_NS: Final = 100 * 10**6
"""How often the node samples the clock of a device."""


def play(
    policy: Policy, tenants: Sequence[Tenant], setting: RunSettings, change: ClockChange | None = None
) -> SharedRun:
    """Run all tenants on one device; the first tenant, with its other processes, has priority over the others."""
    sliced = shares_slices(policy)
    base = policy.removesuffix("-slice")
    clients = [
        Client(
            tenant.load,
            (index if tenant.process_of < 0 else tenant.process_of) if sliced else 0,
            _host_seed(setting, index),
            setting.warm if index == 0 else 0,
            _FIRST if base in _GATES and base != _EQUAL and (index == 0 or tenant.process_of == 0) else 0,
            cycle=tenant.cycle,
        )
        for index, tenant in enumerate(tenants)
    ]
    memory = device_memory()
    gates: list[LaunchGate] = [OpenGate() for _ in tenants]
    if base in _GATES:
        rules = _rules(_GATES[base], tenants, setting, sliced=sliced)
        write_tenant_table(memory, rules, _processes(tenants, rules))
        sm_count = 0 if sliced else setting.device.sm_count
        gates = [_gate(memory, index, tenant, sm_count, setting) for index, tenant in enumerate(tenants)]
    simulation = DeviceSimulation(setting.device, clients, gates, setting.costs, setting.seed)
    if change is not None:
        _change_clock(simulation, memory, change)
    played = simulation.play(_LONGEST_NS)
    if base not in _GATES:
        return SharedRun(played=played)
    return SharedRun(played=played, pages=tuple(read_page(gate_page(memory, index)) for index in range(len(tenants))))


def _change_clock(simulation: DeviceSimulation, memory: WritableBuffer, change: ClockChange) -> None:
    """Change the clock at its instant; the node publishes it when it samples the clock the next time."""

    def sample(now_ns: int) -> None:
        if now_ns > change.at_ns:
            set_clock(memory, change.clock_ppm)

    def change_speed(now_ns: int) -> None:
        if now_ns == change.at_ns:
            simulation.set_speed(now_ns, change.clock_ppm)

    simulation.every(change.at_ns, change_speed)
    simulation.every(CLOCK_SAMPLE_NS, sample)


def _gate(
    memory: WritableBuffer, index: int, tenant: Tenant, sm_count: int, setting: RunSettings
) -> tenant_gate.TenantGate:
    works, steps = works_of(tenant.load, sm_count, setting.estimate_factor)
    times = None if tenant.knowledge == "exact" else _learned_times(tenant, sm_count, setting.seed + index)
    return tenant_gate.TenantGate(memory, (index, 1), works, steps, times=times, sm_step_ppm=sm_step_of(sm_count))


def _learned_times(tenant: Tenant, sm_count: int, seed: int) -> LearnedTimes:
    load = tenant.load
    if load.graph:
        layouts = [KernelLayout(load.name, 1, sm_count, len(load.launches))]
        profile = [(load.device_ns,) * 3]
    else:
        kernels = dict.fromkeys(launch.kernel for launch in load.launches)
        slots = {launch.kernel: launch.blocks_per_sm * sm_count for launch in load.launches}
        layouts = [KernelLayout(kernel.function, kernel.blocks, slots[kernel]) for kernel in kernels]
        recorders = {kernel: Recorder() for kernel in kernels}
        for launch in load.launches:
            recorders[launch.kernel].record(launch.device_ns)
        histograms = [recorder.histogram() for recorder in recorders.values()]
        profile = [(round(times.mean), times.quantile(0.9), times.quantile(0.99)) for times in histograms]
    times = LearnedTimes(layouts, seed)
    for number, values in enumerate(profile if tenant.knowledge == "profiled" else ()):
        times.profile(number, *values)
    return times


def _processes(tenants: Sequence[Tenant], rules: GateRules) -> tuple[ProcessEntry, ...]:
    return tuple(
        ProcessEntry(index, 1, owner, rules.entries[owner])
        for index, tenant in enumerate(tenants)
        for owner in (index if tenant.process_of < 0 else tenant.process_of,)
    )


def plan_oracle(alone: DeviceRun, offline: Workload, setting: RunSettings, allowance_ns: int, *, sliced: bool) -> Plan:
    """Return the oracle's plan: the most offline kernel time within this delay."""
    kernels = OfflineKernels(durations_ns=(offline.device_ns,), intervals_ns=(setting.costs.call_ns,))
    if not offline.graph:
        kernels = OfflineKernels(
            durations_ns=tuple(launch.device_ns for launch in offline.launches),
            intervals_ns=tuple(max(launch.interval_ns, setting.costs.call_ns) for launch in offline.launches),
        )
    switch_ns = setting.device.switch_ns if sliced else 0
    return plan_of(alone.gaps_ns, kernels, allowance_ns, switch_ns, setting.costs)


def works_of(load: Workload, sm_count: int = 0, factor: float = 1.0) -> tuple[list[LaunchEstimate], list[int]]:
    """Return what a profile of the load would contain for each kernel, and the kernel of each launch.

    With a number of SMs, also the preemption granularity of its blocks. `factor`: durations in the profile over the
    true ones.
    """
    kernel_count = len(load.launches)
    if load.graph:
        device_ns = round(load.device_ns * factor)
        granularity_ns = device_ns // kernel_count if sm_count else 0
        return [LaunchEstimate(device_ns, device_ns, granularity_ns=granularity_ns, kernel_count=kernel_count)], [0]
    numbers: dict[KernelIdentity, int] = {}
    steps = [numbers.setdefault(launch.kernel, len(numbers)) for launch in load.launches]
    times = [Recorder() for _ in numbers]
    for launch, number in zip(load.launches, steps, strict=True):
        times[number].record(round(launch.device_ns * factor))
    slots = {launch.kernel: launch.blocks_per_sm * sm_count for launch in load.launches}
    return [
        _work(recorder, kernel.blocks, slots[kernel]) for kernel, recorder in zip(numbers, times, strict=True)
    ], steps


def _work(recorder: Recorder, blocks: int, slots: int) -> LaunchEstimate:
    times = recorder.histogram()
    granularity_ns = granularity_of(times.mean, blocks, slots)
    free_ppm = free_part(blocks, slots)
    return estimate_launch(times.mean, times.quantile(0.9), times.quantile(0.99), granularity_ns, free_ppm)


def sm_step_of(sm_count: int) -> int | None:
    """Return the smallest part of the SMs to which a launch can be limited, with so many SMs; None: not under MPS."""
    return max(WHOLE_PPM // _SM_STEPS, WHOLE_PPM * 2 // sm_count) if sm_count else None


def _rules(policy: GatePolicy, tenants: Sequence[Tenant], setting: RunSettings, *, sliced: bool) -> GateRules:
    entries = tuple(
        GateEntry(
            *(index, 1, tenant.priority, index == 0),
            guaranteed_ppm=tenant.guaranteed_ppm,
            limit_ppm=tenant.limit_ppm,
            static=tenant.static,
        )
        for index, tenant in enumerate(tenants)
    )
    switch_ns = setting.rules.switch_ns if sliced else 0  # the gate's assumption, not the device's value
    return msgspec.structs.replace(setting.rules, policy=policy, switch_ns=switch_ns, entries=entries)


def _host_seed(setting: RunSettings, index: int) -> int:
    """Return the seed of a host's jitter, the same under every policy."""
    return setting.seed * 1_000_003 + index
