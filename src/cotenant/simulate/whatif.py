"""What sharing one GPU would do to a set of models: the product's policies in simulated time, against the driver's."""

from __future__ import annotations

import concurrent.futures
import math
import signal
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.profile.estimate.devices import Gpu, simulated_device
from cotenant.simulate.kernels import RunSettings
from cotenant.simulate.sharing import RunSpec, SharingOutcome
from cotenant.simulate.sharing_modes import exclusive, mps, mps_priority, slices
from cotenant.simulate.steering import cotenant
from cotenant.simulate.whatif_placement import Group, OutOfReachError, least_at_edge, place
from cotenant.simulate.whatif_tenants import (
    WhatIfTenant,
    fits_memory,
    guest_of,
    overload,
    share_need,
    simulated_rate,
)
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.units.share import WHOLE_PPM

LAUNCH_BUDGET: Final = 250_000
"""Launches of one simulated run: it bounds the time of the command."""
_MOST_LAUNCHES: Final = 2 * LAUNCH_BUDGET
"""Launches of a run that would otherwise be too short to say anything."""
_FEW_REQUESTS: Final = 50
"""With fewer requests, a 99th percentile is their longest latency."""
_LONGEST_S: Final = 60.0
_SHORTEST_S: Final = 2.0
_REQUESTS: Final = 400
"""Requests of the slowest service that the run should contain, within the budget."""
_POINTS: Final = 100
_MODES: Final[dict[str, Callable[[RunSpec], SharingOutcome]]] = {
    "alone": exclusive,
    "cotenant": cotenant,
    "mps": mps,
    "mps-priority": mps_priority,
    "slices": slices,
}
_CONCURRENT: Final = frozenset(["alone", "mps", "mps-priority"])
"""Modes in which kernels of several tenants run at the same time, so that their times need not add up."""
Report = Callable[[int, int, str], None]
"""Receives how many of how many simulations are done, and what was simulated."""


class Interval(msgspec.Struct, frozen=True):
    """A forecast with the values at both edges of the interval of the models' durations."""

    low: float
    point: float
    high: float


class TenantForecast(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant when all of them share one GPU under cotenant."""

    name: str
    source: str
    online: bool
    measured: bool
    batch: int
    rate_per_s: float
    slo_ms: float
    alone_ms: Interval
    """Latency of one request or step alone."""
    device_ms: float
    busy: float
    memory_bytes: int
    share_need: Interval | None
    """Fraction of the device that an online tenant needs; None for an offline one, or if the whole is too little."""
    p99_ms: Interval | None
    met: bool | None
    """Whether the objective is met at the expected durations."""
    met_at_high: bool | None
    """Whether it is met even at the upper edge of the durations."""
    progress: Interval | None
    """Speed of an offline tenant relative to its speed alone."""
    steps_per_s: Interval | None
    curve: tuple[tuple[float, float], ...]
    """Share of the SMs, and latency in milliseconds."""


class ModeForecast(msgspec.Struct, frozen=True, kw_only=True):
    """All tenants in one sharing mode, at the expected durations."""

    mode: str
    p99_ms: dict[str, float]
    met: dict[str, bool]
    progress: dict[str, float]
    curves: dict[str, list[float]]
    """Latencies of an online tenant in milliseconds, at equal steps of the distribution."""


class WhatIfReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    gpu: str
    gpu_name: str
    seconds: float
    seed: int
    tenants: list[TenantForecast]
    modes: list[ModeForecast]
    one_gpu_is_enough: bool
    is_likely: bool
    """The answer is the same at both edges of the durations."""
    gpus_needed: Interval | None
    """None: no number of these GPUs is enough."""
    why_none: str
    """Why no number is enough; empty if one is."""
    placement: list[list[str]]
    memory_bytes: int
    memory_fits: bool
    warnings: list[str]


class _Task(msgspec.Struct, frozen=True):
    mode: str
    run: RunSpec


def answer(
    tenants: Sequence[WhatIfTenant], gpu: Gpu, seed: int, workers: int, report: Report, seconds: float = 0.0
) -> WhatIfReport:
    """Simulate all modes, and the product's own mode at both edges of the durations."""
    if not tenants:
        raise ConfigError("--online", "", "name at least one model with --online or --offline")
    names = [tenant.name for tenant in tenants]
    if len(set(names)) < len(names):
        tenants = [
            msgspec.structs.replace(tenant, name=f"{tenant.name}#{index}") for index, tenant in enumerate(tenants)
        ]
    for_s = seconds or run_seconds(tenants)
    edge = math.exp(max(tenant.doubt for tenant in tenants))
    scales = [*(1.0 for _ in _MODES), 1 / edge, edge]
    tasks = [
        _Task(mode, _run(tenants, gpu, for_s, seed, scale))
        for mode, scale in zip([*_MODES, "cotenant", "cotenant"], scales, strict=True)
    ]
    outcomes = _simulated(tasks, workers, report)
    modes = [
        _mode(task.mode, outcome, tenants, scale) for task, outcome, scale in zip(tasks, outcomes, scales, strict=True)
    ]
    point, low, high = modes[1], modes[-2], modes[-1]
    forecasts = [_forecast(tenant, (low, point, high), edge) for tenant in tenants]
    memory = fits_memory(list(tenants), gpu)
    met = [all(mode.met.values()) and memory for mode in (low, point, high)]
    found = _gpus_needed(tenants, gpu, (for_s, seed, workers), met, report)
    return WhatIfReport(
        gpu=gpu.key,
        gpu_name=gpu.name,
        seconds=round(for_s, 3),
        seed=seed,
        tenants=forecasts,
        modes=modes[: len(_MODES)],
        one_gpu_is_enough=met[1],
        is_likely=met[0] == met[1] == met[2],
        gpus_needed=found.needed,
        why_none=found.why,
        placement=found.placement,
        memory_bytes=sum(tenant.memory_bytes for tenant in tenants),
        memory_fits=memory,
        warnings=[*_warnings(tenants, gpu, for_s, memory=memory), *found.warnings],
    )


def run_seconds(tenants: Sequence[WhatIfTenant]) -> float:
    """Return how long a run may be for its budget of launches, and need not be longer for its requests."""
    per_s = 0.0
    for tenant in tenants:
        count = 1 if tenant.graph else len(tenant.launches)
        per_s += count * (tenant.rate_per_s if tenant.online else tenant.steps_per_s)
    slowest = min((tenant.rate_per_s for tenant in tenants if tenant.online), default=100.0)
    wanted = max(_REQUESTS / slowest, _SHORTEST_S)
    budget_s = LAUNCH_BUDGET / max(per_s, 1.0)
    shortest_s = min(max(_SHORTEST_S, _FEW_REQUESTS / slowest), _MOST_LAUNCHES / max(per_s, 1.0))
    return min(max(budget_s, shortest_s), wanted, _LONGEST_S)


def _run(tenants: Sequence[WhatIfTenant], gpu: Gpu, for_s: float, seed: int, scale: float) -> RunSpec:
    for_ns = round(for_s * SECOND_NS)
    guests = tuple(guest_of(tenant, for_ns, seed + index, scale) for index, tenant in enumerate(tenants))
    setting = RunSettings(device=simulated_device(gpu), seed=seed)
    return RunSpec(guests=guests, setting=setting, for_ns=for_ns, warm_ns=for_ns // 10, sample_ns=for_ns)


def _simulated(tasks: Sequence[_Task], workers: int, report: Report) -> list[SharingOutcome]:
    outcomes: list[SharingOutcome] = []
    if workers < 2 or len(tasks) < 2:
        for task in tasks:
            outcomes.append(_simulate(task))
            report(len(outcomes), len(tasks), f"simulated: {task.mode}")
        return outcomes
    count = min(workers, len(tasks))
    with concurrent.futures.ProcessPoolExecutor(count, initializer=_ignore_interrupts) as pool:
        try:
            for task, outcome in zip(tasks, pool.map(_simulate, tasks), strict=True):
                outcomes.append(outcome)
                report(len(outcomes), len(tasks), f"simulated: {task.mode}")
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the command itself: a worker would print a stack."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _simulate(task: _Task) -> SharingOutcome:
    return _MODES[task.mode](task.run)


def _mode(mode: str, outcome: SharingOutcome, tenants: Sequence[WhatIfTenant], scale: float = 1.0) -> ModeForecast:
    """Return the results of one mode. An objective that holds only until the end of the run is not met."""
    p99_ms, met, progress, curves = {}, {}, {}, {}
    is_shared = mode not in _CONCURRENT
    for tenant, result in zip(tenants, outcome.guests, strict=True):
        if tenant.online:
            p99_ns = result.quantile_ns(0.99)
            p99_ms[tenant.name] = p99_ns / MILLISECOND_NS
            is_overloaded = bool(overload(tenants if is_shared else [tenant], scale))
            met[tenant.name] = 0 < p99_ns <= tenant.slo_ns and not is_overloaded
            curves[tenant.name] = [result.quantile_ns(step / _POINTS) / MILLISECOND_NS for step in range(_POINTS + 1)]
        else:
            alone_ns = tenant.busy * (result.end_ns - result.begin_ns)
            progress[tenant.name] = min(result.done_ns / max(alone_ns, 1.0), 1.0)
    return ModeForecast(mode=mode, p99_ms=p99_ms, met=met, progress=progress, curves=curves)


def _forecast(
    tenant: WhatIfTenant, modes: tuple[ModeForecast, ModeForecast, ModeForecast], edge: float
) -> TenantForecast:
    need = share_need(tenant) if tenant.online else None
    share = None
    if need is not None and need.is_within_reach:
        share = Interval(*(value / WHOLE_PPM for value in (need.share.low, need.share.point, need.share.high)))
    alone = tenant.latency_ns.times(1 / MILLISECOND_NS)
    p99 = progress = steps = None
    if tenant.online:
        p99 = Interval(*sorted(mode.p99_ms[tenant.name] for mode in modes))
        p99 = Interval(p99.low, modes[1].p99_ms[tenant.name], p99.high)
    else:
        parts = [mode.progress[tenant.name] for mode in modes]
        progress = Interval(min(parts), parts[1], max(parts))
        rates = [
            parts[0] * tenant.steps_per_s * edge,
            parts[1] * tenant.steps_per_s,
            parts[2] * tenant.steps_per_s / edge,
        ]
        steps = Interval(min(rates), rates[1], max(rates))
    return TenantForecast(
        name=tenant.name,
        source=tenant.source,
        online=tenant.online,
        measured=tenant.measured,
        batch=tenant.batch,
        rate_per_s=tenant.rate_per_s,
        slo_ms=tenant.slo_ns / MILLISECOND_NS,
        alone_ms=Interval(alone.low, alone.point, alone.high),
        device_ms=tenant.device_ns / MILLISECOND_NS,
        busy=tenant.busy,
        memory_bytes=tenant.memory_bytes,
        share_need=share,
        p99_ms=p99,
        met=modes[1].met.get(tenant.name),
        met_at_high=modes[2].met.get(tenant.name),
        progress=progress,
        steps_per_s=steps,
        curve=tuple((part, times * alone.point) for part, times in tenant.curve),
    )


class _Answer(msgspec.Struct, frozen=True):
    """How many GPUs are needed, and who shares them; or why no number is enough."""

    needed: Interval | None
    placement: list[list[str]]
    why: str = ""
    warnings: tuple[str, ...] = ()


def _gpus_needed(
    tenants: Sequence[WhatIfTenant], gpu: Gpu, run: tuple[float, int, int], met: Sequence[bool], report: Report
) -> _Answer:
    """Return how many GPUs meet all objectives: one if the simulation says so, or else those of a placement."""
    if met[1]:
        return _Answer(Interval(1, 1, 1 if met[2] else least_at_edge(tenants, gpu)), [[each.name for each in tenants]])
    for_s, seed, workers = run

    def simulate(groups: Sequence[Group]) -> list[bool]:
        tasks = [_Task("cotenant", _run(group, gpu, for_s, seed, 1.0)) for group in groups]
        report(0, len(groups), f"simulating {len(groups)} different GPUs of a placement")
        outcomes = _simulated(tasks, workers, lambda done, total, _: report(done, total, ""))
        modes = [_mode("cotenant", outcome, group) for group, outcome in zip(groups, outcomes, strict=True)]
        return [all(mode.met.values()) for mode in modes]

    try:
        placed = place(tenants, gpu, simulate)
    except OutOfReachError as error:
        return _Answer(None, [], str(error))
    low = 1 if met[0] else placed.low
    return _Answer(Interval(low, placed.point, placed.high), placed.groups, warnings=tuple(placed.warnings))


def _warnings(tenants: Sequence[WhatIfTenant], gpu: Gpu, for_s: float, *, memory: bool) -> list[str]:
    lines = [text for text in [overload(tenants)] if text]
    for tenant in tenants:
        lines += [f"{tenant.name}: {remark}" for remark in tenant.remarks]
        if tenant.online and tenant.latency_ns.point > tenant.slo_ns:
            lines.append(f"{tenant.name}: one request alone takes longer than its objective on {gpu.name}")
        rate = simulated_rate(tenant, round(for_s * SECOND_NS)) if tenant.online else 0.0
        if rate > tenant.rate_per_s:
            lines.append(
                f"{tenant.name}: its rate is {rate:.3g} per second in the simulation, to contain more requests"
            )
        if tenant.online and rate * for_s < _FEW_REQUESTS:
            few = (
                f"about {rate * for_s:.0f} requests in {for_s:.3g} simulated seconds say little about a 99th percentile"
            )
            lines.append(f"{tenant.name}: {few}; --seconds simulates longer")
    if not memory:
        lines.append(f"the tenants need more memory than {gpu.name} has ({gpu.memory_bytes >> 30} GiB)")
    return lines
