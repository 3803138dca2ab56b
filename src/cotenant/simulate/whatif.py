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
from cotenant.simulate.whatif_tenants import WhatIfTenant, fits_memory, guest_of, share_need
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.units.share import WHOLE_PPM

LAUNCH_BUDGET: Final = 250_000
"""Launches of one simulated run: it bounds the time of the command."""
_LONGEST_S: Final = 60.0
_SHORTEST_S: Final = 2.0
_REQUESTS: Final = 400
"""Requests of the slowest service that the run should contain, within the budget."""
_POINTS: Final = 100
_MOST_REPLICAS: Final = 64
_MODES: Final[dict[str, Callable[[RunSpec], SharingOutcome]]] = {
    "alone": exclusive,
    "cotenant": cotenant,
    "mps": mps,
    "mps-priority": mps_priority,
    "slices": slices,
}
Report = Callable[[str], None]


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
    """None: an objective cannot be met on this GPU at any load."""
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
    tasks = [_Task(mode, _run(tenants, gpu, for_s, seed, 1.0)) for mode in _MODES]
    tasks += [_Task("cotenant", _run(tenants, gpu, for_s, seed, scale)) for scale in (1 / edge, edge)]
    outcomes = _simulated(tasks, workers, report)
    modes = [_mode(task.mode, outcome, tenants) for task, outcome in zip(tasks, outcomes, strict=True)]
    point, low, high = modes[1], modes[-2], modes[-1]
    forecasts = [_forecast(tenant, (low, point, high), edge) for tenant in tenants]
    memory = fits_memory(list(tenants), gpu)
    met = [all(mode.met.values()) and memory for mode in (low, point, high)]
    needed, placement = _gpus_needed(tenants, gpu, (for_s, seed, workers), met, report)
    return WhatIfReport(
        gpu=gpu.key,
        gpu_name=gpu.name,
        seconds=round(for_s, 3),
        seed=seed,
        tenants=forecasts,
        modes=modes[: len(_MODES)],
        one_gpu_is_enough=met[1],
        is_likely=met[0] == met[1] == met[2],
        gpus_needed=needed,
        placement=placement,
        memory_bytes=sum(tenant.memory_bytes for tenant in tenants),
        memory_fits=memory,
        warnings=_warnings(tenants, gpu, memory=memory),
    )


def run_seconds(tenants: Sequence[WhatIfTenant]) -> float:
    """Return how long a run may be for its budget of launches, and need not be longer for its requests."""
    per_s = 0.0
    for tenant in tenants:
        count = 1 if tenant.graph else len(tenant.launches)
        per_s += count * (tenant.rate_per_s if tenant.online else tenant.steps_per_s)
    slowest = min((tenant.rate_per_s for tenant in tenants if tenant.online), default=100.0)
    wanted = max(_REQUESTS / slowest, _SHORTEST_S)
    return min(max(LAUNCH_BUDGET / max(per_s, 1.0), _SHORTEST_S), wanted, _LONGEST_S)


def _run(tenants: Sequence[WhatIfTenant], gpu: Gpu, for_s: float, seed: int, scale: float) -> RunSpec:
    for_ns = round(for_s * SECOND_NS)
    guests = tuple(guest_of(tenant, for_ns, seed + index, scale) for index, tenant in enumerate(tenants))
    setting = RunSettings(device=simulated_device(gpu), seed=seed)
    return RunSpec(guests=guests, setting=setting, for_ns=for_ns, warm_ns=for_ns // 10, sample_ns=for_ns)


def _simulated(tasks: Sequence[_Task], workers: int, report: Report) -> list[SharingOutcome]:
    if workers < 2 or len(tasks) < 2:
        return [_simulate(task) for task in tasks]
    outcomes = []
    count = min(workers, len(tasks))
    with concurrent.futures.ProcessPoolExecutor(count, initializer=_ignore_interrupts) as pool:
        try:
            for task, outcome in zip(tasks, pool.map(_simulate, tasks), strict=True):
                report(f"simulated: {task.mode}")
                outcomes.append(outcome)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the command itself: a worker would print a stack."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _simulate(task: _Task) -> SharingOutcome:
    return _MODES[task.mode](task.run)


def _mode(mode: str, outcome: SharingOutcome, tenants: Sequence[WhatIfTenant]) -> ModeForecast:
    p99_ms, met, progress, curves = {}, {}, {}, {}
    for tenant, result in zip(tenants, outcome.guests, strict=True):
        if tenant.online:
            p99_ns = result.quantile_ns(0.99)
            p99_ms[tenant.name] = p99_ns / MILLISECOND_NS
            met[tenant.name] = p99_ns <= tenant.slo_ns
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


def _gpus_needed(
    tenants: Sequence[WhatIfTenant], gpu: Gpu, run: tuple[float, int, int], met: Sequence[bool], report: Report
) -> tuple[Interval | None, list[list[str]]]:
    """Return how many GPUs meet all objectives, and which tenants share each.

    One GPU is enough if the simulation says so. Otherwise tenants are packed by the share that they need, and each GPU
    of the packing is simulated; a GPU whose objectives are not met loses its last tenant to another one.
    """
    if met[1]:
        return Interval(1, 1, 1 if met[2] else max(_packed(tenants, gpu, "high"), 2)), [[t.name for t in tenants]]
    replicas = [_replicas(tenant) for tenant in tenants]
    if any(count is None for count in replicas):
        return None, []
    copies = [
        msgspec.structs.replace(
            tenant,
            name=f"{tenant.name}/{number + 1}" if count > 1 else tenant.name,
            rate_per_s=tenant.rate_per_s / count,
        )
        for tenant, count in zip(tenants, replicas, strict=True)
        if count is not None
        for number in range(count)
    ]
    groups = _pack(copies, gpu, "point")
    for_s, seed, workers = run
    for _ in range(len(copies)):
        tasks = [_Task("cotenant", _run(group, gpu, for_s, seed, 1.0)) for group in groups]
        report(f"simulated: {len(groups)} GPUs")
        outcomes = _simulated(tasks, workers, lambda _line: None)
        bad = [
            index
            for index, (group, outcome) in enumerate(zip(groups, outcomes, strict=True))
            if len(group) > 1 and not all(_mode("cotenant", outcome, group).met.values())
        ]
        if not bad:
            break
        for index in reversed(bad):
            groups.append([groups[index].pop()])
    point = len(groups)
    low = 1 if met[0] else min(_packed(copies, gpu, "low"), point)
    high = max(_packed(copies, gpu, "high"), point)
    return Interval(low, point, high), [[tenant.name for tenant in group] for group in groups]


def _replicas(tenant: WhatIfTenant) -> int | None:
    """Return over how many GPUs the requests of a tenant must be spread; None if its objective is out of reach."""
    if not tenant.online:
        return 1
    for count in range(1, _MOST_REPLICAS + 1):
        if share_need(tenant, tenant.rate_per_s / count).is_within_reach:
            return count
    return None


def _packed(tenants: Sequence[WhatIfTenant], gpu: Gpu, edge: str) -> int:
    return len(_pack(tenants, gpu, edge))


def _pack(tenants: Sequence[WhatIfTenant], gpu: Gpu, edge: str) -> list[list[WhatIfTenant]]:
    """Return groups by first fit, the largest share first; offline tenants go where most of the device is left."""
    needs = {
        tenant.name: min(getattr(share_need(tenant).share, edge) / WHOLE_PPM, 1.0)
        for tenant in tenants
        if tenant.online
    }
    groups: list[list[WhatIfTenant]] = []
    for tenant in sorted((each for each in tenants if each.online), key=lambda each: -needs[each.name]):
        for group in groups:
            used = sum(needs[other.name] for other in group)
            if used + needs[tenant.name] <= 1.0 and fits_memory([*group, tenant], gpu):
                group.append(tenant)
                break
        else:
            groups.append([tenant])
    for tenant in (each for each in tenants if not each.online):
        free = [group for group in groups if fits_memory([*group, tenant], gpu)]
        least = min(free, key=lambda group: sum(needs.get(each.name, 0.5) for each in group), default=None)
        if least is None:
            groups.append([tenant])
        else:
            least.append(tenant)
    return groups


def _warnings(tenants: Sequence[WhatIfTenant], gpu: Gpu, *, memory: bool) -> list[str]:
    lines = []
    for tenant in tenants:
        lines += [f"{tenant.name}: {remark}" for remark in tenant.remarks]
        if tenant.online and tenant.latency_ns.point > tenant.slo_ns:
            lines.append(f"{tenant.name}: one request alone takes longer than its objective on {gpu.name}")
    if not memory:
        lines.append(f"the tenants need more memory than {gpu.name} has ({gpu.memory_bytes >> 30} GiB)")
    return lines
