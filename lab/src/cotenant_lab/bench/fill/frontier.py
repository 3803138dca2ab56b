"""Offline speed at a given online p99: cotenant against the simple ways to share a GPU, in simulated time.

Each pair runs once in every setting of the simple modes and of cotenant. For each limit of the p99 latency the fastest
setting within the limit counts on both sides, so both choose with hindsight. A third column is cotenant's own choice:
the online program has the limit as its latency objective, and the node's controller finds the share while it runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.gate.rules import GateRules
from cotenant.simulate.kernels import Policy, RunSettings, Tenant, play, play_alone
from cotenant.simulate.sharing import Guest, RunSpec
from cotenant.simulate.sharing_modes import mps
from cotenant.simulate.steering import cotenant, cotenant_slice
from cotenant.softgpu.sim.host import Client, OpenGate
from cotenant.softgpu.sim.kernels import DeviceSimulation
from cotenant.softgpu.sim.results import DeviceRun
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import format_share
from cotenant.workload.load import Workload
from cotenant_lab.bench.fill.pairs import Pair
from cotenant_lab.study.claim import KERNEL_CELLS, Perturbation, perturbed_setting
from cotenant_lab.study.workers import mapping

LIMITS: Final = (1.02, 1.05, 1.1, 1.25, 1.5, 2.0)
"""Limits of the online p99 latency, over that alone."""
RUN_NS: Final = 2 * SECOND_NS
"""Approximate duration of the online part of a pair alone."""
OBJECTIVE_RUN_NS: Final = 15 * SECOND_NS
OBJECTIVE_WARM_NS: Final = 5 * SECOND_NS
"""With an objective, the controller adjusts the share before the measured window begins."""
_LASTING_FACTOR: Final = 2 * OBJECTIVE_RUN_NS // RUN_NS
"""So that requests that follow each other do not run out before the end, also if they are faster than expected."""
DELAYS_PPM: Final = (10_000, 20_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_000_000)
PARTS_PPM: Final = tuple(range(50_000, 1_000_000, 50_000))
"""Parts of the SMs for the offline program: of a fixed share, and of `--sms`."""
PERTURBED_RUN_NS: Final = SECOND_NS
PERTURBED_PARTS_PPM: Final = PARTS_PPM[1::2]
"""With wrong physics, runs are shorter and fewer parts are tried, because there are nine times as many."""
_BEYOND_MAX: Final = 3
"""After this many parts of the SMs in a row beyond every limit, larger ones are not run."""
PROMISE_SLACK: Final = 0.005
_OFFLINE_ALONE_NS: Final = 200 * MILLISECOND_NS
_ONLINE_PRIORITY: Final = 1
_OFFLINE_PRIORITY: Final = 7
_LONGEST_NS: Final = 600 * SECOND_NS
_PROMISED: Final[dict[Policy, str]] = {"fill-slice": "cotenant slices", "fill": "cotenant mps"}
_WITH_PARTS: Final[dict[Policy, str]] = {
    "fill": "cotenant mps",
    "open-gate": "cotenant mps, gate open",
    "open-gate-equal": "cotenant mps, gate open, no priority",
}
TARGETS: Final = {"min": 0.98, "median": 1.0, "promise_kept": 1.0}
Progress = Callable[[str], None]


class SettingResult(msgspec.Struct, frozen=True, kw_only=True):
    """A pair in one setting of a mode."""

    mode: str
    is_cotenant: bool
    p99_ratio: float
    """Of the online program's requests, over the p99 latency alone."""
    mean_ratio: float
    delay_ratio: float
    """Time that its kernels waited for other tenants, as the device measured it, over its requests' time alone."""
    offline_vs_alone: float
    promised_delay: float | None = None
    """The delay budget, in settings without an objective that keep one."""


class ObjectiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """A pair whose online program has a limit as its objective."""

    limit: float
    mode: str
    p99_ratio: float
    offline_vs_alone: float


class FrontierCell(msgspec.Struct, frozen=True, kw_only=True):
    """One pair at one limit of the p99 latency."""

    pair: str
    limit: float
    simple: str
    """The fastest simple mode within the limit; empty: none is within it."""
    simple_offline: float
    cotenant: str
    cotenant_offline: float
    vs_best_simple: float | None
    """None: no simple mode is within the limit."""


class PairFrontier(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one pair."""

    pair: str
    results: list[SettingResult]
    objectives: list[ObjectiveResult]
    cells: list[FrontierCell]


class CellSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All cells of one physics."""

    min: float
    median: float
    worst_pair: str
    cells: int
    cells_without_alternative: int


class PhysicsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of one pair of each family, with one quantity of the physics wrong."""

    cell: str
    vs_best_simple: CellSummary
    promise_kept: float
    promise_kept_by_latency: float


class ObjectiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Cells in which the controller chose the share."""

    kept: float
    """Fraction of the cells whose p99 latency is within the limit."""
    vs_best_simple_min: float
    vs_best_simple_median: float
    """Over the cells within the limit that have a simple alternative."""


def fastest(results: Sequence[SettingResult], limit: float, *, is_cotenant: bool) -> SettingResult | None:
    """Return the setting with the most offline progress whose p99 latency is within the limit."""
    within = [result for result in results if result.is_cotenant == is_cotenant and result.p99_ratio <= limit]
    return max(within, key=lambda result: result.offline_vs_alone, default=None)


def cells_of(pair: str, results: Sequence[SettingResult]) -> list[FrontierCell]:
    """Compare both sides at every limit."""
    cells = []
    for limit in LIMITS:
        simple, ours = (fastest(results, limit, is_cotenant=is_cotenant) for is_cotenant in (False, True))
        simple_offline = simple.offline_vs_alone if simple else 0.0
        ours_offline = ours.offline_vs_alone if ours else 0.0
        cells.append(
            FrontierCell(
                pair=pair,
                limit=limit,
                simple=simple.mode if simple else "",
                simple_offline=simple_offline,
                cotenant=ours.mode if ours else "",
                cotenant_offline=ours_offline,
                vs_best_simple=ours_offline / simple_offline if simple_offline else None,
            )
        )
    return cells


def summary_of(cells: Sequence[FrontierCell]) -> CellSummary:
    """Summarize cells; those without an alternative only count."""
    compared = [(cell.vs_best_simple, cell) for cell in cells if cell.vs_best_simple is not None]
    ratios = [ratio for ratio, _ in compared]
    worst = min(compared, key=lambda item: item[0])[1] if compared else None
    return CellSummary(
        min=min(ratios, default=0.0),
        median=statistics.median(ratios) if ratios else 0.0,
        worst_pair=f"{worst.pair} at {worst.limit:g}" if worst else "",
        cells=len(cells),
        cells_without_alternative=len(cells) - len(compared),
    )


def promise_kept(results: Sequence[SettingResult], *, by_latency: bool = False) -> float:
    """Return the fraction of the settings with a delay budget in which the measured loss is within it.

    The loss is the time that kernels waited, by the device's counters, or the increase of the mean latency. A service
    whose host is slower than its kernels hides waits of its kernels: they cost its requests nothing.
    """
    promised = [
        (result.mean_ratio - 1 if by_latency else result.delay_ratio) <= result.promised_delay + PROMISE_SLACK
        for result in results
        if result.promised_delay is not None
    ]
    return sum(promised) / len(promised) if promised else 1.0


def objectives_of(frontiers: Sequence[PairFrontier]) -> ObjectiveSummary:
    """Compare the controller's choices with the fastest simple modes."""
    kept, ratios = [], []
    for frontier in frontiers:
        simple = {cell.limit: cell.simple_offline for cell in frontier.cells}
        for limit in LIMITS:
            within = [
                chosen.offline_vs_alone
                for chosen in frontier.objectives
                if chosen.limit == limit and chosen.p99_ratio <= limit
            ]
            kept.append(bool(within))
            if within and simple[limit]:
                ratios.append(max(within) / simple[limit])
    return ObjectiveSummary(
        kept=sum(kept) / max(len(kept), 1),
        vs_best_simple_min=min(ratios, default=0.0),
        vs_best_simple_median=statistics.median(ratios) if ratios else 0.0,
    )


# ---- runs -----------------------------------------------------------------------------------------------------------


class FrontierCase(msgspec.Struct, frozen=True, kw_only=True):
    """A pair to run, with its physics."""

    pair: Pair
    perturbation: Perturbation | None = None
    has_objectives: bool = False


def run_case(case: FrontierCase, setting: RunSettings) -> PairFrontier:
    """Run a pair in every setting; the result depends on the arguments alone."""
    if case.perturbation is not None:
        setting = perturbed_setting(setting, case.perturbation)
    baseline = _Baseline(case.pair, setting)
    parts_ppm = PARTS_PPM if case.perturbation is None else PERTURBED_PARTS_PPM
    results = [*_simple_results(baseline, parts_ppm), *_cotenant_results(baseline, parts_ppm)]
    return PairFrontier(
        pair=case.pair.name,
        results=results,
        objectives=_objective_results(case.pair, setting) if case.has_objectives else [],
        cells=cells_of(case.pair.name, results),
    )


def run_cases(
    cases: Sequence[FrontierCase], setting: RunSettings, workers: int, report: Progress
) -> list[PairFrontier]:
    """Run all cases; the number of workers does not change results."""
    frontiers: list[PairFrontier] = []
    with mapping(workers) as mapped:
        for frontier in mapped(run_case, cases, [setting] * len(cases)):
            frontiers.append(frontier)
            report(f"simulated {len(frontiers)} of {len(cases)}: {frontier.pair}")
    return frontiers


def perturbed_cases(pairs: Sequence[Pair]) -> dict[str, list[FrontierCase]]:
    """Return the cases of every perturbed cell."""
    return {str(cell): [FrontierCase(pair=pair, perturbation=cell) for pair in pairs] for cell in KERNEL_CELLS}


class _Baseline:
    """A pair and its results without sharing."""

    def __init__(self, pair: Pair, setting: RunSettings) -> None:
        self.pair = pair
        self.setting = setting
        self.alone = play_alone(pair.online, setting).clients[0]
        offline = play_alone(pair.offline, setting, for_ns=_OFFLINE_ALONE_NS, seed=1)
        self.offline_speed = offline.clients[0].done_ns / offline.wall_ns

    def result(self, mode: str, played: DeviceRun, *, promised_ppm: int | None = None) -> SettingResult:
        online, offline = played.clients
        alone_ns = sum(self.alone.latencies_ns)
        return SettingResult(
            mode=mode,
            is_cotenant=mode.startswith("cotenant"),
            p99_ratio=_p99(online.latencies_ns) / _p99(self.alone.latencies_ns),
            mean_ratio=sum(online.latencies_ns) / alone_ns,
            delay_ratio=online.delayed_ns / alone_ns,
            offline_vs_alone=offline.done_ns / played.wall_ns / self.offline_speed,
            promised_delay=None if promised_ppm is None else promised_ppm / WHOLE_PPM,
        )


def _p99(latencies_ns: Sequence[int]) -> int:
    return sorted(latencies_ns)[min(round(0.99 * len(latencies_ns)), len(latencies_ns) - 1)]


def _simple_results(baseline: _Baseline, parts_ppm: Sequence[int]) -> list[SettingResult]:
    sm_count = baseline.setting.device.sm_count
    runs: dict[str, DeviceRun] = {
        "time slices": _play_simple(baseline, is_mps=False),
        "MPS": _play_simple(baseline),
        "MPS with priorities": _play_simple(baseline, has_priority=True),
    }
    results = [baseline.result(mode, played) for mode, played in runs.items()]
    for name, has_priority in (("MPS", False), ("MPS with priorities", True)):

        def with_part(part_ppm: int, name: str = name, *, has_priority: bool = has_priority) -> SettingResult:
            sm_cap = max(part_ppm * sm_count // WHOLE_PPM, 1)
            played = _play_simple(baseline, sm_cap=sm_cap, has_priority=has_priority)
            return baseline.result(f"{name}, {format_share(part_ppm)} of the SMs", played)

        results += with_parts(parts_ppm, with_part)
    return results


def with_parts(parts_ppm: Sequence[int], run: Callable[[int], SettingResult]) -> list[SettingResult]:
    """Run a mode with parts of the SMs from the smallest one on.

    Larger parts delay the online program more: after several in a row with which it is beyond every limit, none is run.
    """
    results: list[SettingResult] = []
    for part_ppm in parts_ppm:
        results.append(run(part_ppm))
        latest = results[-_BEYOND_MAX:]
        if len(latest) == _BEYOND_MAX and all(result.p99_ratio > LIMITS[-1] for result in latest):
            break
    return results


def _play_simple(baseline: _Baseline, *, is_mps: bool = True, has_priority: bool = False, sm_cap: int = 0) -> DeviceRun:
    pair, setting = baseline.pair, baseline.setting
    seeds = [setting.seed * 1_000_003 + index for index in range(2)]  # as in `cotenant.simulate.kernels.play`
    clients = [
        Client(pair.online, 0, seeds[0], setting.warm, -1 if has_priority else 0),
        Client(pair.offline, 0 if is_mps else 1, seeds[1], sm_cap=sm_cap),
    ]
    return DeviceSimulation(setting.device, clients, [OpenGate(), OpenGate()], setting.costs, setting.seed).play(
        _LONGEST_NS
    )


def _cotenant_results(baseline: _Baseline, parts_ppm: Sequence[int]) -> list[SettingResult]:
    tenants = [
        Tenant(load=baseline.pair.online, priority=_ONLINE_PRIORITY),
        Tenant(load=baseline.pair.offline, priority=_OFFLINE_PRIORITY),
    ]

    def played(policy: Policy, **rules: int) -> DeviceRun:
        setting = baseline.setting
        changed: GateRules = msgspec.structs.replace(setting.rules, **rules)
        return play(policy, tenants, msgspec.structs.replace(setting, rules=changed)).played

    results = [
        baseline.result(
            f"{name}, delay {format_share(delay_ppm)}", played(policy, delay_ppm=delay_ppm), promised_ppm=delay_ppm
        )
        for policy, name in _PROMISED.items()
        for delay_ppm in DELAYS_PPM
    ]
    for policy, name in _WITH_PARTS.items():

        def with_part(part_ppm: int, policy: Policy = policy, name: str = name) -> SettingResult:
            return baseline.result(f"{name}, sms {format_share(part_ppm)}", played(policy, sm_ppm=part_ppm))

        results += with_parts(parts_ppm, with_part)
    results += [
        baseline.result("cotenant slices, gate open", played("open-gate-slice")),
        baseline.result("cotenant mps, gate open", played("open-gate")),
        baseline.result("cotenant mps, gate open, no priority", played("open-gate-equal")),
    ]
    return results


def lasting_load(load: Workload) -> Workload:
    """Return the load with requests until the end of a run with an objective."""
    return msgspec.structs.replace(load, requests=load.requests * _LASTING_FACTOR)


def _objective_results(pair: Pair, setting: RunSettings) -> list[ObjectiveResult]:
    """Run the pair with every limit as the objective of the online program, under MPS and in time slices."""

    def spec(guests: tuple[Guest, ...]) -> RunSpec:
        return RunSpec(guests=guests, setting=setting, for_ns=OBJECTIVE_RUN_NS, warm_ns=OBJECTIVE_WARM_NS)

    online = Guest(load=lasting_load(pair.online), online=True, priority=_ONLINE_PRIORITY)
    offline = Guest(load=pair.offline, online=False, priority=_OFFLINE_PRIORITY)
    alone_ns = mps(spec((online,))).guests[0].quantile_ns(0.99)
    speed_ns = mps(spec((offline,))).guests[0].done_ns
    results = []
    for limit in LIMITS:
        asked = msgspec.structs.replace(online, slo_ns=round(limit * alone_ns))
        for mode, share in (("cotenant mps", cotenant), ("cotenant slices", cotenant_slice)):
            outcome = share(spec((asked, offline)))
            results.append(
                ObjectiveResult(
                    limit=limit,
                    mode=mode,
                    p99_ratio=outcome.guests[0].quantile_ns(0.99) / alone_ns,
                    offline_vs_alone=outcome.guests[1].done_ns / speed_ns,
                )
            )
    return results


def physics_summary(cell: str, frontiers: Sequence[PairFrontier]) -> PhysicsSummary:
    """Summarize the pairs of a perturbed cell."""
    return PhysicsSummary(
        cell=cell,
        vs_best_simple=summary_of([each for frontier in frontiers for each in frontier.cells]),
        promise_kept=promise_kept([each for frontier in frontiers for each in frontier.results]),
        promise_kept_by_latency=promise_kept(
            [each for frontier in frontiers for each in frontier.results], by_latency=True
        ),
    )


def targets_met(nominal: CellSummary, kept: float) -> Mapping[str, bool]:
    """Return, by target of the simulated part, whether it is met."""
    return {
        "vs_best_simple.min": nominal.min >= TARGETS["min"],
        "vs_best_simple.median": nominal.median >= TARGETS["median"],
        "promise_kept": kept >= TARGETS["promise_kept"],
    }
