"""Simulation of a kernel scenario: read the loads, run every policy, and compare the results."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.gate.rules import Limit
from cotenant.profile.estimate.devices import find_gpu
from cotenant.profile.estimate.onnx_operators import onnx_operators
from cotenant.profile.estimate.stream import StreamOptions, estimate_stream, launches_of_stream
from cotenant.profile.import_files import read_recordings
from cotenant.simulate.data_files import find_data_file
from cotenant.simulate.kernels import Policy, RunSettings, SharedRun, Tenant, plan_oracle, play, play_alone
from cotenant.simulate.kernels_format import GeneratorConfig, KernelScenario, TenantConfig, decode_kernels
from cotenant.simulate.node import read_scenario
from cotenant.softgpu.costs import NAMED
from cotenant.softgpu.sim.device import preset, preset_keys
from cotenant.softgpu.sim.host import Costs
from cotenant.softgpu.sim.results import DeviceRun
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.launch_script import looks_like_script, read_script
from cotenant.workload.load import Launch, Workload, launches_of
from cotenant.workload.profile_launches import launches_of_profile
from cotenant.workload.timeline import Timeline

_GAP: Final = 2
"""CT_GATE_GAP in native/gate/gate.h."""
_ORACLES: Final[dict[str, Policy]] = {"oracle": "fill", "oracle-slice": "fill-slice"}
"""The policy whose delay each oracle may spend."""
Report = Callable[[str], None]


class PolicyOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one policy. For the oracle: its plan with the delay that the gate caused."""

    policy: str
    online_ms: float
    """Sum of the latencies of the first tenant's requests."""
    online_slowdown: float
    online_delay_ratio: float
    """Delay of its kernels by other tenants, relative to its latencies alone."""
    latency_p50_ms: float
    latency_p99_ms: float
    offline_kernel_ms: float
    """Kernel time that the other tenants completed."""
    offline_of_time: float
    filled: int
    """Launches admitted into gaps."""
    waits: int
    """Launches that had to wait."""


class KernelOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a scenario."""

    seed: int
    device: str
    online: str
    online_alone_ms: float
    gap_ratio: float
    policies: list[PolicyOutcome]
    fill_vs_oracle: dict[str, float]


def simulate_kernels_file(path: Path, seed: int | None, report: Report, data: str = "") -> KernelOutcome:
    """Simulate the scenario in a file, with another seed if given."""
    scenario = decode_kernels(read_scenario(path), str(path))
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
    return simulate_kernels(scenario, path, report, data)


def simulate_kernels(scenario: KernelScenario, where: Path, report: Report, data: str = "") -> KernelOutcome:
    """Run every policy of the scenario; data files are found by `find_data_file`."""
    setting = _setting(scenario)
    loads = [_load(config, scenario, where, data, report) for config in scenario.tenant]
    tenants = [
        Tenant(
            load=load,
            priority=config.priority,
            guaranteed_ppm=int(config.share),
            limit_ppm=int(config.share) * (config.limit is not Limit.OFF),
            static=config.limit is Limit.STATIC,
        )
        for load, config in zip(loads, scenario.tenant, strict=True)
    ]
    report(f"{tenants[0].load.name} alone")
    alone = play_alone(loads[0], setting)
    runs: dict[Policy, SharedRun] = {}

    def run(policy: Policy) -> SharedRun:
        if policy not in runs:
            report(f"{len(tenants)} tenants, {policy}")
            runs[policy] = play(policy, tenants, setting)
        return runs[policy]

    rows: list[PolicyOutcome] = []
    fill_vs_oracle: dict[str, float] = {}
    for policy in scenario.policies:
        fill: Policy | None = _ORACLES.get(policy)
        if fill is None:
            rows.append(_row(policy, run(msgspec.convert(policy, Policy)), alone))
            continue
        played = run(fill).played
        rows.append(_oracle(policy, alone, played, loads[1], setting))
        fill_vs_oracle[fill] = played.clients[1].done_ns / 1e6 / max(rows[-1].offline_kernel_ms, 1e-6)
    gap_ns = sum(close_ns - open_ns for open_ns, close_ns in alone.gaps_ns)
    return KernelOutcome(
        seed=scenario.seed,
        device=setting.device.name,
        online=loads[0].name,
        online_alone_ms=sum(alone.clients[0].latencies_ns) / 1e6,
        gap_ratio=gap_ns / alone.wall_ns,
        policies=rows,
        fill_vs_oracle=fill_vs_oracle,
    )


def _setting(scenario: KernelScenario) -> RunSettings:
    try:
        device = NAMED[scenario.device.costs].device.applied(preset(scenario.device.preset))
    except LookupError:
        remedy = f"choose one of {', '.join(preset_keys())}, v100, a100"
        raise ConfigError("device.preset", scenario.device.preset, remedy) from None
    host = scenario.host
    costs = Costs(call_ns=int(host.call), wake_ns=int(host.wake), jitter_ppm=int(host.jitter))
    return RunSettings(device=device, rules=scenario.gate.rules(), costs=costs, seed=scenario.seed)


def _row(policy: str, shared: SharedRun, alone: DeviceRun) -> PolicyOutcome:
    played = shared.played
    online = played.clients[0]
    latencies = sorted(online.latencies_ns)
    alone_ns = sum(alone.clients[0].latencies_ns)
    done_ns = sum(client.done_ns for client in played.clients[1:])
    return PolicyOutcome(
        policy=policy,
        online_ms=sum(latencies) / 1e6,
        online_slowdown=sum(latencies) / alone_ns,
        online_delay_ratio=online.delayed_ns / alone_ns,
        latency_p50_ms=statistics.median(latencies) / 1e6,
        latency_p99_ms=latencies[min(round(0.99 * len(latencies)), len(latencies) - 1)] / 1e6,
        offline_kernel_ms=done_ns / 1e6,
        offline_of_time=done_ns / played.wall_ns,
        filled=shared.passes(_GAP),
        waits=sum(client.waits for client in played.clients[1:]),
    )


def _oracle(policy: str, alone: DeviceRun, fill: DeviceRun, offline: Workload, setting: RunSettings) -> PolicyOutcome:
    spent_ns = fill.clients[0].delayed_ns
    plan = plan_oracle(alone, offline, setting, spent_ns, sliced=policy.endswith("-slice"))
    latencies = sorted(alone.clients[0].latencies_ns)
    alone_ns = sum(latencies)
    return PolicyOutcome(
        policy=policy,
        online_ms=(alone_ns + plan.delay_ns) / 1e6,
        online_slowdown=1 + plan.delay_ns / alone_ns,
        online_delay_ratio=plan.delay_ns / alone_ns,
        latency_p50_ms=statistics.median(latencies) / 1e6,
        latency_p99_ms=latencies[min(round(0.99 * len(latencies)), len(latencies) - 1)] / 1e6,
        offline_kernel_ms=plan.done_ns / 1e6,
        offline_of_time=plan.done_ns / alone.wall_ns,
        filled=plan.kernels,
        waits=0,
    )


# ---- loads ----------------------------------------------------------------------------------------------------------


def _load(config: TenantConfig, scenario: KernelScenario, where: Path, data: str, report: Report) -> Workload:
    if config.generator:
        launches = _generate_launches(config.generator)
    elif config.file.endswith(".onnx"):
        launches = _estimate_launches(config, scenario.device.preset, where, data, report)
    else:
        launches = _read(config, where, data)
    host_ns, scale = int(config.host), int(config.scale) / 1e6
    launches = tuple(
        msgspec.structs.replace(
            launch,
            interval_ns=host_ns or round(launch.interval_ns * scale),
            has_ptx=launch.has_ptx if config.ptx == "recorded" else config.ptx == "all",
        )
        for launch in launches
    )
    load = Workload(config.name, launches, config.arrivals(scenario.seed), max(int(config.requests), 1), config.graph)
    if config.requests or load.arrival.kind == "training":
        return load
    each_ns = int(config.period) or max(load.device_ns, load.host_ns, 1)
    return msgspec.structs.replace(load, requests=max(round(int(scenario.duration) / each_ns), 3))


def _generate_launches(config: GeneratorConfig) -> tuple[Launch, ...]:
    kernel = KernelIdentity("made up", (max(int(config.blocks), 1), 1, 1), (1024, 1, 1))
    return (Launch(kernel, int(config.kernel), int(config.interval), registers=64),) * int(config.kernels)


def _estimate_launches(config: TenantConfig, device: str, where: Path, data: str, report: Report) -> tuple[Launch, ...]:
    """Return the estimated launches of a model on the scenario's device."""
    path = find_data_file(config.file, "tenant.file", where, data)
    try:
        model = onnx_operators(
            path, max(int(config.batch), 1), {name: int(size) for name, size in config.sizes.items()}
        )
    except ConfigError as error:
        if error.field != "--dim":
            raise
        remedy = "the model leaves this open; give it as in sizes = { NAME = 128 }"
        raise ConfigError("tenant.sizes", error.value, remedy, where=str(where)) from None
    options = StreamOptions(mode=config.mode, train=config.train, graph=config.graph)
    stream = estimate_stream(config.name, model, find_gpu(device, "device.preset"), options)
    for remark in stream.remarks:
        report(f"{config.name}: {remark}")
    return launches_of_stream(stream)


def _read(config: TenantConfig, where: Path, data: str) -> tuple[Launch, ...]:
    path = find_data_file(config.file, "tenant.file", where, data)
    with path.open("rb") as file:
        is_script = looks_like_script(file.read(2))
    if is_script:
        return read_script(path.read_bytes(), str(path))
    recording = next(iter(read_recordings(path)), None)
    if isinstance(recording, Timeline):
        launches = launches_of(recording)
    elif recording is not None:
        launches = launches_of_profile(recording)
    else:
        launches = ()
    if not launches:
        raise ConfigError("tenant.file", config.file, "it holds no launch; record the program again", where=str(where))
    return launches
