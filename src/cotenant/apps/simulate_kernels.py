"""Runs a scenario of kernels: reads the loads, plays every policy, and lays the outcomes side by side."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.apps.simulate import read_scenario
from cotenant.domain.gate import Limit
from cotenant.domain.instant import MICROSECOND_NS
from cotenant.domain.kernel import KernelIdentity
from cotenant.domain.load import Launch, Load, launches_of
from cotenant.domain.profile import Profile
from cotenant.domain.timeline import Timeline
from cotenant.errors import ConfigError
from cotenant.experiment.kernels import Policy, Setting, Shared, Tenant, plan_oracle, play, play_alone
from cotenant.format.launch_script import looks_like_script, read_script
from cotenant.format.scenario_kernels import GeneratorConfig, KernelScenario, TenantConfig, decode_kernels
from cotenant.live.profile.files import read_recordings
from cotenant.sim.device import preset, preset_keys
from cotenant.sim.kernels_host import Costs
from cotenant.sim.kernels_played import Played

_GAP: Final = 2
"""CT_GATE_GAP in native/gate/gate.h."""
_REPEATS_MOST: Final = 64
_ORACLES: Final[dict[str, Policy]] = {"oracle": "fill", "oracle-slice": "fill-slice"}
"""Whose delay each oracle may spend."""
_DATA: Final = "COTENANT_DATA"
Say = Callable[[str], None]


class PolicyOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one way to share comes to. Of the oracle, what it would do with the delay that the gate spent."""

    policy: str
    online_ms: float
    """Latencies of all requests of the first tenant, in sum."""
    online_slowdown: float
    online_delay_ratio: float
    """What its kernels waited because of others, over its latencies alone."""
    latency_p50_ms: float
    latency_p99_ms: float
    offline_kernel_ms: float
    """Kernel time that the others completed meanwhile."""
    offline_of_time: float
    filled: int
    """Launches into gaps."""
    waits: int
    """Launches that did not pass at once."""


class KernelOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario, played."""

    seed: int
    device: str
    online: str
    online_alone_ms: float
    gap_ratio: float
    policies: list[PolicyOutcome]
    fill_vs_oracle: dict[str, float]


def simulate_kernels_file(path: Path, seed: int | None, say: Say) -> KernelOutcome:
    """The scenario of a file, with another seed if asked."""
    scenario = decode_kernels(read_scenario(path), str(path))
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
    return simulate_kernels(scenario, path, say)


def simulate_kernels(scenario: KernelScenario, where: Path, say: Say) -> KernelOutcome:
    """Every policy of the scenario in turn; files are found beside it or in the directory of measurements."""
    setting = _setting(scenario)
    loads = [_load(config, scenario, where) for config in scenario.tenant]
    tenants = [
        Tenant(
            load=load,
            priority=config.priority,
            least_ppm=int(config.share),
            limit_ppm=int(config.share) * (config.limit is not Limit.OFF),
            static=config.limit is Limit.STATIC,
        )
        for load, config in zip(loads, scenario.tenant, strict=True)
    ]
    say(f"{tenants[0].load.name} alone")
    alone = play_alone(loads[0], setting)
    runs: dict[Policy, Shared] = {}

    def run(policy: Policy) -> Shared:
        if policy not in runs:
            say(f"{len(tenants)} tenants, {policy}")
            runs[policy] = play(policy, tenants, setting)
        return runs[policy]

    rows: list[PolicyOutcome] = []
    against: dict[str, float] = {}
    for policy in scenario.policies:
        fill: Policy | None = _ORACLES.get(policy)
        if fill is None:
            rows.append(_row(policy, run(msgspec.convert(policy, Policy)), alone))
            continue
        played = run(fill).played
        rows.append(_oracle(policy, alone, played, loads[1], setting))
        against[fill] = played.clients[1].done_ns / 1e6 / max(rows[-1].offline_kernel_ms, 1e-6)
    gap_ns = sum(close_ns - open_ns for open_ns, close_ns in alone.gaps_ns)
    return KernelOutcome(
        seed=scenario.seed,
        device=setting.device.name,
        online=loads[0].name,
        online_alone_ms=sum(alone.clients[0].latencies_ns) / 1e6,
        gap_ratio=gap_ns / alone.wall_ns,
        policies=rows,
        fill_vs_oracle=against,
    )


def _setting(scenario: KernelScenario) -> Setting:
    try:
        device = preset(scenario.device.preset)
    except LookupError:
        remedy = f"choose one of {', '.join(preset_keys())}, v100, a100"
        raise ConfigError("device.preset", scenario.device.preset, remedy) from None
    host = scenario.host
    costs = Costs(call_ns=int(host.call), wake_ns=int(host.wake), jitter_ppm=int(host.jitter))
    return Setting(device=device, rules=scenario.gate.rules(), costs=costs, seed=scenario.seed)


def _row(policy: str, shared: Shared, alone: Played) -> PolicyOutcome:
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


def _oracle(policy: str, alone: Played, fill: Played, offline: Load, setting: Setting) -> PolicyOutcome:
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


def _load(config: TenantConfig, scenario: KernelScenario, where: Path) -> Load:
    launches = _made_up(config.generator) if config.generator else _read(config, where)
    host_ns, scale = int(config.host), int(config.scale) / 1e6
    launches = tuple(
        msgspec.structs.replace(launch, interval_ns=host_ns or round(launch.interval_ns * scale)) for launch in launches
    )
    load = Load(config.name, launches, config.arrivals(scenario.seed), max(int(config.requests), 1), config.graph)
    if config.requests or load.arrival.kind == "training":
        return load
    each_ns = int(config.period) or max(load.device_ns, load.host_ns, 1)
    return msgspec.structs.replace(load, requests=max(round(int(scenario.duration) / each_ns), 3))


def _made_up(config: GeneratorConfig) -> tuple[Launch, ...]:
    kernel = KernelIdentity("made up", (max(int(config.blocks), 1), 1, 1), (1024, 1, 1))
    return (Launch(kernel, int(config.kernel), int(config.interval), registers=64),) * int(config.kernels)


def _read(config: TenantConfig, where: Path) -> tuple[Launch, ...]:
    path = next((place for place in _places(config.file, where) if place.is_file()), None)
    if path is None:
        remedy = f"there is no such file, neither beside the scenario nor in {_DATA}; name one that is there"
        raise ConfigError("tenant.file", config.file, remedy, where=str(where))
    with path.open("rb") as file:
        is_script = looks_like_script(file.read(2))
    if is_script:
        return read_script(path.read_bytes(), str(path))
    recording = next(iter(read_recordings(path)), None)
    if isinstance(recording, Timeline):
        launches = launches_of(recording)
    elif recording is not None:
        launches = _profiled(recording)
    else:
        launches = ()
    if not launches:
        raise ConfigError("tenant.file", config.file, "it holds no launch; record the program again", where=str(where))
    return launches


def _places(file: str, where: Path) -> list[Path]:
    return [where.parent / file, Path(os.environ.get(_DATA, "") or "../shared/data") / file]


def _profiled(profile: Profile) -> tuple[Launch, ...]:
    """A profile has no order: every kernel at its mean, as often as it came for each one of the rarest."""
    timed = [timing for timing in profile.timings if timing.device.count]
    launches = sum(timing.launches for timing in timed)
    least = min((timing.launches for timing in timed), default=1) or 1
    interval_ns = round(profile.span_ns / launches) if launches else MICROSECOND_NS
    return tuple(
        Launch(timing.kernel, max(round(timing.mean_device_ns), 1), interval_ns)
        for timing in timed
        for _ in range(min(max(round(timing.launches / least), 1), _REPEATS_MOST))
    )
