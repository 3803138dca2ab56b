"""Measure what sharing costs the online program and what the offline program gains, for all pairs and modes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import CotenantError
from cotenant.harness.harness import PRESET, NodePolicy, SharingHarness
from cotenant.harness.run import Mode, SharingRun
from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.costs import hardware
from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.load import Workload
from cotenant_lab.bench.fill.compare import PairComparison, agreement, compare_pairs, ranges_of_comparisons
from cotenant_lab.bench.fill.frontier import (
    PERTURBED_RUN_NS,
    CellSummary,
    FrontierCase,
    ObjectiveSummary,
    PairFrontier,
    PhysicsSummary,
    objectives_of,
    perturbed_cases,
    physics_summary,
    promise_kept,
    run_cases,
    summary_of,
    targets_met,
)
from cotenant_lab.bench.fill.frontier import (
    RUN_NS as FRONTIER_RUN_NS,
)
from cotenant_lab.bench.fill.live import (
    QUICK_SPREAD_RUNS,
    SPREAD_RUNS,
    LiveFrontier,
    measure_idle_holder,
    measure_live_cells,
    measure_spread,
)
from cotenant_lab.bench.fill.live import TARGETS as LIVE_TARGETS
from cotenant_lab.bench.fill.metrics import COTENANT, PairMetrics, Range, Round, pair_metrics, ranges_of
from cotenant_lab.bench.fill.pairs import PLANS, RUN_NS, MissingPair, Pair, PairPlan, plan_name, read_pairs
from cotenant_lab.study.data_files import missing_data

SIMULATED: Final = "simulated"
LIVE: Final = "live"
PARTS: Final = (SIMULATED, LIVE)
ROUNDS: Final = 3
QUICK_RUN_NS: Final = 120 * MILLISECOND_NS
BOUNDS: Final = ("100us", "250us", "500us", "1ms", "2ms")
ALONE_S: Final = 0.3
MODES: Final[tuple[Mode, ...]] = (
    "alone",
    "offline alone",
    "through",
    "unsampled",
    "slices",
    "cotenant slices",
    "mps",
    "cotenant mps",
)
ReportLine = Callable[[str], None]


class BoundPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One pair at one value of the bound."""

    pair: str
    bound: str
    mode: str
    online_delay_ratio: float
    online_slowdown: float
    offline_vs_alone: float


class FillReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of `bench fill`: of settings chosen with hindsight in simulated time, then live."""

    bench: str = "fill"
    costs: str = "hardware"
    vs_best_simple: CellSummary | None = None
    cells_without_alternative: int | None = None
    promise_kept: float | None = None
    promise_kept_by_latency: float | None = None
    objective: ObjectiveSummary | None = None
    """The same cells with the limit as the latency objective, so that the node's controller chooses."""
    perturbed: list[PhysicsSummary] = []
    live: LiveFrontier | None = None
    offline_spread: float | None = None
    idle_holder_offline: float | None = None
    met: dict[str, bool]
    frontiers: list[PairFrontier] = []
    rounds: int
    policy: NodePolicy
    metrics: dict[str, Range] = {}
    pairs: list[PairMetrics] = []
    compared: list[PairComparison] = []
    delay_apart: dict[str, float] = {}
    """By sharing: the median difference between the live and the simulated online delay ratio."""
    left_out: list[MissingPair]
    curve: list[BoundPoint] = []


def bench_fill(
    directory: Path,
    rounds: int,
    policy: NodePolicy,
    report: ReportLine,
    *,
    quick: bool = False,
    sweep: bool = False,
    workers: int = 1,
    parts: Collection[str] = PARTS,
) -> FillReport:
    """Measure every pair whose files exist; a quick run takes one pair of each family for a shorter time.

    `parts` names the parts to run. Simulated pairs are cases whose results can be kept.
    """
    plans = first_of_each_family(PLANS) if quick else PLANS
    pairs, missing = read_pairs(directory, plans, QUICK_RUN_NS if quick else RUN_NS)
    for missing_pair in missing:
        report(f"left out: {missing_pair.name}: {missing_pair.why}")
    if not pairs:
        raise missing_data(directory / "kernel_timelines")
    setting = RunSettings(device=hardware(PRESET), rules=policy.rules())
    result = FillReport(met={}, rounds=rounds, policy=policy, left_out=missing)
    if SIMULATED in parts:
        frontiers, perturbed = simulate_frontiers(directory, plans, setting, workers, report, quick=quick)
        result = with_frontiers(result, frontiers, perturbed)
    if LIVE in parts:
        result = with_live(result, pairs, (rounds, policy, setting), report, quick=quick, sweep=sweep)
    return result


def with_frontiers(result: FillReport, frontiers: list[PairFrontier], perturbed: list[PhysicsSummary]) -> FillReport:
    """Add the simulated part."""
    nominal = summary_of([cell for frontier in frontiers for cell in frontier.cells])
    results = [each for frontier in frontiers for each in frontier.results]
    kept = promise_kept(results)
    return msgspec.structs.replace(
        result,
        vs_best_simple=nominal,
        cells_without_alternative=nominal.cells_without_alternative,
        promise_kept=kept,
        promise_kept_by_latency=promise_kept(results, by_latency=True),
        objective=objectives_of(frontiers),
        perturbed=perturbed,
        met={**result.met, **targets_met(nominal, kept)},
        frontiers=frontiers,
    )


def with_live(
    result: FillReport,
    pairs: Sequence[Pair],
    how: tuple[int, NodePolicy, RunSettings],
    report: ReportLine,
    *,
    quick: bool,
    sweep: bool,
) -> FillReport:
    """Add the part with real processes; `how` has the rounds, the node's policy, and the simulator's settings."""
    rounds, policy, setting = how
    with tempfile.TemporaryDirectory(prefix="cotenant-fill-") as home, SharingHarness(Path(home)) as harness:
        metrics = measure_pairs(harness, pairs, rounds, policy, report)
        few = [pair for pair in pairs if pair.name in {plan_name(plan) for plan in first_of_each_family(PLANS)}]
        live = measure_live_cells(harness, few[-1:] if quick else few, rounds, report)
        spread = measure_spread(harness, few[-1], QUICK_SPREAD_RUNS if quick else SPREAD_RUNS, report)
        idle = measure_idle_holder(harness, few[-1], rounds, report)
        curve = sweep_bounds(harness, pairs_to_sweep(pairs), rounds, policy, report) if sweep else []
    comparisons = compare_pairs(pairs, metrics, setting, report)
    return msgspec.structs.replace(
        result,
        live=live,
        offline_spread=spread,
        idle_holder_offline=idle,
        met=result.met
        | {
            "live.min": live.min >= LIVE_TARGETS["live_min"],
            "offline_spread": spread <= LIVE_TARGETS["offline_spread"],
            "idle_holder_offline": idle >= LIVE_TARGETS["idle_holder_offline"],
        },
        metrics=ranges_of(metrics) | ranges_of_comparisons(comparisons),
        pairs=metrics,
        compared=comparisons,
        delay_apart=agreement(comparisons, metrics),
        curve=curve,
    )


def simulate_frontiers(
    directory: Path,
    plans: Sequence[PairPlan],
    setting: RunSettings,
    workers: int,
    report: ReportLine,
    *,
    quick: bool = False,
) -> tuple[list[PairFrontier], list[PhysicsSummary]]:
    """Run every pair in every setting; one pair of each family also with the physics wrong, but not in a quick run."""
    pairs, _ = read_pairs(directory, plans, QUICK_RUN_NS if quick else FRONTIER_RUN_NS)
    cases = [FrontierCase(pair=pair, has_objectives=not quick) for pair in pairs]
    frontiers = run_cases(cases, setting, workers, report)
    if quick:
        return frontiers, []
    few, _ = read_pairs(directory, first_of_each_family(plans), PERTURBED_RUN_NS)
    perturbed = []
    for cell, members in perturbed_cases(few).items():
        report(f"physics: {cell}")
        perturbed.append(physics_summary(cell, run_cases(members, setting, workers, report)))
    return frontiers, perturbed


def first_of_each_family(plans: Sequence[PairPlan]) -> list[PairPlan]:
    """Return the first plan of every family."""
    first: dict[str, PairPlan] = {}
    for plan in plans:
        first.setdefault(plan.family, plan)
    return list(first.values())


def pairs_to_sweep(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs that the bound is swept for: gaps within requests, few gaps, and pauses between requests."""
    first = {pair.family: pair for pair in reversed(pairs)}
    return [first[family] for family in ("eager", "host-bound", "poisson") if family in first]


def measure_pairs(
    harness: SharingHarness, pairs: Sequence[Pair], rounds: int, policy: NodePolicy, report: ReportLine
) -> list[PairMetrics]:
    """Run all modes of all pairs in turn, round by round, after each load has been profiled alone."""
    failed: dict[str, list[str]] = {pair.name: [] for pair in pairs}
    harness.set_policy(policy)
    record(harness, pairs, report)
    rounds_by_pair: dict[str, list[Round]] = {pair.name: [] for pair in pairs}
    for number in range(1, rounds + 1):
        for index, pair in enumerate(pairs, start=1):
            report(f"round {number} of {rounds}, pair {index} of {len(pairs)}: {pair.name}")
            runs: dict[Mode, SharingRun] = {}
            for mode in MODES:
                try:
                    runs[mode] = play(harness, pair, mode)
                except CotenantError as error:
                    failed[pair.name].append(f"{mode}: {error}")
                    report(f"{pair.name}, {mode}: {error}")
            rounds_by_pair[pair.name].append(runs)
    return [pair_metrics(pair.name, pair.family, rounds_by_pair[pair.name], failed[pair.name]) for pair in pairs]


def record(harness: SharingHarness, pairs: Sequence[Pair], report: ReportLine) -> None:
    """Run every load once, alone, with every kernel timed, so that its kernel times are known before sharing begins."""
    loads: dict[str, Workload] = {load.name: load for pair in pairs for load in (pair.online, pair.offline)}
    for index, load in enumerate(loads.values(), start=1):
        report(f"timing load {index} of {len(loads)} alone: {load.name}")
        harness.record(load)


def play(harness: SharingHarness, pair: Pair, mode: Mode) -> SharingRun:
    """Run a pair once in a mode."""
    if mode == "offline alone":
        return harness.play(mode, None, pair.offline, ALONE_S)
    return harness.play(mode, pair.online, None if mode in ("alone", "through", "unsampled") else pair.offline)


def sweep_bounds(
    harness: SharingHarness, pairs: Sequence[Pair], rounds: int, policy: NodePolicy, report: ReportLine
) -> list[BoundPoint]:
    """Measure delay and offline throughput over the bound D on outstanding offline device time."""
    points = []
    for bound in BOUNDS:
        harness.set_policy(msgspec.structs.replace(policy, bound=bound))
        for pair in pairs:
            report(f"bound {bound}: {pair.name}")
            modes: tuple[Mode, ...] = ("alone", "offline alone", *COTENANT.values())
            runs = [{mode: play(harness, pair, mode) for mode in modes} for _ in range(rounds)]
            metrics = pair_metrics(pair.name, pair.family, runs)
            for mode in COTENANT.values():
                point = BoundPoint(
                    pair=pair.name,
                    bound=bound,
                    mode=mode,
                    online_delay_ratio=metrics.online_delay_ratio[mode],
                    online_slowdown=metrics.online_slowdown[mode],
                    offline_vs_alone=metrics.offline_vs_alone[mode],
                )
                points.append(point)
    return points
