"""Report of study `fikit`: groups of cases, curves over the bounds, agreement with live runs, and targets."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant.gate.rules import GateRules
from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.costs import hardware, hardware_hosts
from cotenant.units.instant import MICROSECOND_NS
from cotenant.workload.load import Workload
from cotenant_lab.bench.fill.bench import pairs_to_sweep
from cotenant_lab.bench.fill.metrics import COTENANT, Range, range_of
from cotenant_lab.bench.fill.pairs import MissingPair, Pair
from cotenant_lab.study.claim import PerturbedCell, StudyClaim
from cotenant_lab.study.fikit.cases import catalogue, sweep, timelines
from cotenant_lab.study.fikit.claims import FAST, OFFLINE_LEAST, claims_of, evaluate_perturbed
from cotenant_lab.study.fikit.parts import OFFLINE_LEAST as PARTS_OFFLINE_LEAST
from cotenant_lab.study.fikit.parts import (
    P99_MOST,
    UNSLICEABLE_P99_MOST,
    PartsSummary,
    evaluate_ends,
    parts_setting,
    services,
    trainings,
)
from cotenant_lab.study.fikit.run import PAPER, FikitCase, FikitGroup, FikitResult, Progress, evaluate_all
from cotenant_lab.study.progress import show_parts

BOUNDS_US: Final = (100, 250, 500, 1000, 2000)
DELAYS_PPM: Final = (0, 5_000, 10_000, 20_000, 50_000, 100_000)
COMPARED: Final = ("online_delay_ratio", "online_speedup_vs_sharing", "online_slowdown", "offline_vs_alone")
_FEWEST: Final = 3
"""Minimum number of pairs for a rank correlation."""
PRESET: Final = "v100"


class RulePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One pair at one value of a rule."""

    pair: str
    rule: str
    """"bound" or "delay"."""
    value: float
    """Microseconds, or a fraction of the time."""
    sharing: str
    online_delay_ratio: float
    online_slowdown: float
    offline_vs_alone: float
    fill_vs_oracle: float | None
    """None under MPS, where the oracle is no bound."""


class PairRange(Range, frozen=True, kw_only=True):
    """Range of a metric over the pairs, and the fraction of pairs above 3.5."""

    above_3_5: float


class LiveAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """One metric, live and simulated, over the pairs that both have."""

    metric: str
    sharing: str
    pairs: int
    spearman: float
    median_error: float
    """Median of the absolute differences."""


class FikitReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `fikit`."""

    lab: str = "fikit"
    seed: int
    quick: bool
    paper: dict[str, str]
    groups: dict[str, FikitGroup]
    curve: list[RulePoint]
    left_out: list[MissingPair]
    agreement: list[LiveAgreement]
    perturbed: list[PerturbedCell]
    """Medians over a few pairs with one quantity wrong."""
    claims: list[StudyClaim]
    sliceable: PartsSummary | None
    """A service next to trainings whose kernels can all be launched in parts; None without the data."""
    library_unsliceable: PartsSummary | None
    """The same, but matrix products and convolutions run whole."""
    offline_ratio_vs_sharing: PairRange | None
    """Over the pairs, against time slices; with suffix against MPS."""
    online_speedup_vs_sharing: PairRange | None
    offline_ratio_vs_sharing_mps: PairRange | None
    online_speedup_vs_sharing_mps: PairRange | None
    met: dict[str, bool]


def curve_cases(pairs: Sequence[Pair], *, quick: bool) -> list[tuple[str, float, FikitCase]]:
    """Return pairs with gaps within requests, with few gaps, and with pauses between, at several bounds and delays."""
    rules = GateRules()
    bounds = BOUNDS_US[::2] if quick else BOUNDS_US
    delays = DELAYS_PPM[::3] if quick else DELAYS_PPM
    cases: list[tuple[str, float, FikitCase]] = []
    for pair in pairs_to_sweep(list(pairs)):
        for bound_us in bounds:
            changed = msgspec.structs.replace(rules, bound_ns=bound_us * MICROSECOND_NS)
            cases.append(("bound", float(bound_us), FikitCase(pair=pair, rules=changed)))
        for delay_ppm in delays:
            changed = msgspec.structs.replace(rules, delay_ppm=delay_ppm)
            cases.append(("delay", delay_ppm / 1e6, FikitCase(pair=pair, rules=changed)))
    return cases


class FikitPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to evaluate."""

    groups: dict[str, Sequence[FikitCase]]
    curve: Sequence[tuple[str, float, FikitCase]] = ()
    services: Sequence[Workload] = ()
    """Those next to trainings with long kernels; without both, that part is omitted."""
    trainings: Sequence[Workload] = ()
    left_out: Sequence[MissingPair] = ()


def evaluate_fikit(
    plan: FikitPlan,
    setting: RunSettings,
    live: dict[str, Any] | None,
    workers: int,
    progress: Progress,
    *,
    quick: bool,
) -> FikitReport:
    """Evaluate all groups and the curve; `live` is the output of `cotenant-lab bench fill --json`."""
    groups, curve = plan.groups, plan.curve
    name = "bounds and delays"
    results = evaluate_all({**groups, name: [case for _, _, case in curve]}, setting, workers, progress)
    swept_cases = results.pop(name).cases
    pairs = results.get("pairs")
    perturbed = [] if pairs is None else evaluate_perturbed(groups["pairs"], setting, workers, progress)
    ends: tuple[PartsSummary | None, PartsSummary | None] = (None, None)
    if plan.services and plan.trainings:
        setting_of_parts = parts_setting(setting)
        ends = evaluate_ends(plan.services, plan.trainings, setting_of_parts, workers, progress, quick=quick)
    points = [
        point
        for (rule, value, case), result in zip(curve, swept_cases, strict=True)
        for point in _points(rule, value, case, result)
    ]
    return FikitReport(
        seed=setting.seed,
        quick=quick,
        paper=PAPER,
        groups=results,
        curve=points,
        left_out=list(plan.left_out),
        agreement=agreement_of(live, pairs) if live is not None and pairs is not None else [],
        perturbed=perturbed,
        claims=[] if pairs is None else claims_of(pairs, perturbed),
        sliceable=ends[0],
        library_unsliceable=ends[1],
        offline_ratio_vs_sharing=pair_range(pairs, "offline_ratio_vs_sharing", "slices"),
        online_speedup_vs_sharing=pair_range(pairs, "online_speedup_vs_sharing", "slices"),
        offline_ratio_vs_sharing_mps=pair_range(pairs, "offline_ratio_vs_sharing", "mps"),
        online_speedup_vs_sharing_mps=pair_range(pairs, "online_speedup_vs_sharing", "mps"),
        met=_met(results) | _met_parts(*ends),
    )


def pair_range(pairs: FikitGroup | None, metric: str, sharing: str) -> PairRange | None:
    """Return the range of a metric over the pairs; None without pairs."""
    values = [] if pairs is None else [getattr(result.metrics, metric)[sharing] for result in pairs.cases]
    if (found := range_of(values)) is None:
        return None
    above = sum(value > FAST for value in values) / len(values)
    return PairRange(min=found.min, median=found.median, max=found.max, above_3_5=above)


def _points(rule: str, value: float, case: FikitCase, result: FikitResult) -> list[RulePoint]:
    metrics = result.metrics
    return [
        RulePoint(
            pair=case.pair.name,
            rule=rule,
            value=value,
            sharing=sharing,
            online_delay_ratio=metrics.online_delay_ratio[mode],
            online_slowdown=metrics.online_slowdown[mode],
            offline_vs_alone=metrics.offline_vs_alone[mode],
            fill_vs_oracle=result.fill_vs_oracle.get(sharing),
        )
        for sharing, mode in COTENANT.items()
    ]


def _met(groups: dict[str, FikitGroup]) -> dict[str, bool]:
    """Return the targets over the bench's pairs.

    The oracle never runs kernels at the same time, so it is a bound for time slices only.
    """
    if "pairs" not in groups:
        return {}
    metrics = groups["pairs"].metrics
    return {
        "online_delay_ratio_mps median <= 0.02": metrics["online_delay_ratio_mps"].median <= 0.02,
        "online_delay_ratio_mps max <= 0.05": metrics["online_delay_ratio_mps"].max <= 0.05,
        "online_delay_of_wall_mps max <= 0.05": metrics["online_delay_of_wall_mps"].max <= 0.05,
        "fill_vs_oracle_slices median >= 0.9": metrics["fill_vs_oracle_slices"].median >= 0.9,
        f"offline_ratio_vs_sharing median >= {OFFLINE_LEAST}": metrics["offline_ratio_vs_sharing_slices"].median
        >= OFFLINE_LEAST,
    }


def _met_parts(sliceable: PartsSummary | None, unsliceable: PartsSummary | None) -> dict[str, bool]:
    if sliceable is None or unsliceable is None:
        return {}
    return {
        f"sliceable p99_ratio_max <= {P99_MOST}": sliceable.p99_ratio_max <= P99_MOST,
        f"sliceable offline_median >= {PARTS_OFFLINE_LEAST}": sliceable.offline_median >= PARTS_OFFLINE_LEAST,
        f"library_unsliceable p99_ratio_max <= {UNSLICEABLE_P99_MOST}": unsliceable.p99_ratio_max
        <= UNSLICEABLE_P99_MOST,
    }


def agreement_of(live: dict[str, Any], simulated: FikitGroup) -> list[LiveAgreement]:
    """Return rank correlation and differences of live and simulated metrics."""
    measured = {pair["name"]: pair for pair in live.get("pairs", [])}
    agreements = []
    for metric in COMPARED:
        for sharing, mode in COTENANT.items():
            key = sharing if metric == "online_speedup_vs_sharing" else mode
            values = [
                (measured[case.metrics.name][metric][key], getattr(case.metrics, metric)[key])
                for case in simulated.cases
                if key in measured.get(case.metrics.name, {}).get(metric, {})
            ]
            if len(values) >= _FEWEST:
                agreements.append(
                    LiveAgreement(
                        metric=metric,
                        sharing=sharing,
                        pairs=len(values),
                        spearman=spearman([pair for pair, _ in values], [other for _, other in values]),
                        median_error=statistics.median(abs(pair - other) for pair, other in values),
                    )
                )
    return agreements


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the correlation of the ranks, ties averaged; 0 if one side is constant."""
    first_ranks, second_ranks = _ranks(first), _ranks(second)
    if len(set(first_ranks)) == 1 or len(set(second_ranks)) == 1:
        return 0.0
    return statistics.correlation(first_ranks, second_ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def run_fikit(
    directory: Path, live: str, seed: int, console: Console, report: Callable[[str], None], *, quick: bool
) -> FikitReport:
    """Run the study with a progress bar on a terminal, or one line per part elsewhere."""
    measured = _live(live) if live else None
    pairs, missing = catalogue(directory, quick=quick)
    traced, unfit = timelines(directory, quick=quick)
    left_out = [*missing, *unfit]
    for missing_pair in left_out:
        report(f"omitted: {missing_pair.name}: {missing_pair.why}")
    groups = {"pairs": pairs, "sweep": sweep(quick=quick), "timelines": traced}
    setting = RunSettings(device=hardware(PRESET), costs=hardware_hosts(), seed=seed)
    online, unknown = services(directory, parts_setting(setting))
    offline, absent = trainings(directory)
    for missing_pair in (*unknown, *absent):
        report(f"omitted: {missing_pair.name}: {missing_pair.why}")
    left_out += [*unknown, *absent]
    with show_parts(console, report, "to play") as progress:
        plan = FikitPlan(
            groups={name: cases for name, cases in groups.items() if cases},
            curve=curve_cases([case.pair for case in pairs], quick=quick),
            services=() if unknown else online,
            trainings=offline,
            left_out=left_out,
        )
        return evaluate_fikit(plan, setting, measured, os.cpu_count() or 1, progress, quick=quick)


def _live(file: str) -> dict[str, Any]:
    try:
        report = msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError("--live", file, f"cannot be read: {error.strerror}; check the path") from None
    except msgspec.DecodeError as error:
        remedy = f"is not JSON of `cotenant-lab bench fill --json`: {error}; create it again"
        raise ConfigError("--live", file, remedy) from None
    if report.get("bench") != "fill":
        raise ConfigError("--live", file, "is not the output of `cotenant-lab bench fill --json`; name that file")
    return report
