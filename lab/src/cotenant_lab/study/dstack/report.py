"""Report of study `dstack`: distributions over combinations, the paper's results, and targets."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant_lab.data.parvagpu import read_profiles
from cotenant_lab.data.rapp import read_surface
from cotenant_lab.serving.modes import ADMITTED, OURS, TEMPORAL
from cotenant_lab.study.claim import PerturbedCell, StudyClaim
from cotenant_lab.study.data_files import DATA_PAGE, measurement_bytes, missing_data
from cotenant_lab.study.dstack.cases import (
    MISSING,
    NAMED,
    SIZES,
    SLO_TIMES,
    ModelCurves,
    combinations,
    model_curves,
    served_models,
)
from cotenant_lab.study.dstack.claims import claims_of, evaluate_perturbed
from cotenant_lab.study.dstack.law import evaluate_law
from cotenant_lab.study.dstack.run import (
    MODES,
    OFFERED_LOADS,
    POISSON,
    PUBLISHED,
    CombinationTask,
    ServedRun,
    play_all,
)
from cotenant_lab.study.progress import show_parts

OVERLOAD: Final = 2.0
ATTAINED: Final = 0.99
AHEAD_PART: Final = 0.05
AHEAD_BY: Final = 0.05
"""Another policy with our admission may be ahead in this part of the combinations, and by this much."""
ALL: Final = "all"
_SURFACE: Final = "rapp/v100_latency_ms_by_sm_quota_batch.csv.gz"
_PROFILES: Final = "parvagpu/all_models.csv"
_QUICK_EVERY: Final = 8
"""In a quick run, one in this many combinations."""


class DstackPaper(msgspec.Struct, frozen=True):
    """Results that the paper reports, with other programs and one kind of real GPU."""

    source: str = "D-STACK, arXiv 2304.13541"
    throughput: float = 4.0
    """Up to this multiple of the throughput of other modes."""
    utilization: float = 1.6
    of_ideal: float = 0.9
    """More than this fraction of an ideal scheduler's throughput."""


class MetricSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of a metric over combinations."""

    n: int
    min: float
    quarter: float
    median: float
    three_quarters: float
    max: float


class ModeComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Ours compared with one other mode, over the combinations of a size or of all."""

    mode: str
    models: str
    throughput: MetricSpread
    """Ours over its goodput, each at its best load."""
    throughput_admitted: MetricSpread
    """The same, if the mode may use our admission where that is better for it."""
    utilization: MetricSpread
    """Ours over its utilization, each at its highest."""


class LoadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One mode at one load, over all combinations."""

    mode: str
    rhythm: str
    load: float
    of_bound: MetricSpread
    of_fair_bound: MetricSpread
    missed: MetricSpread
    attainment_admitted: MetricSpread
    utilization: MetricSpread
    fairness: MetricSpread
    device_fairness: MetricSpread
    mean_batch: float


class Rivals(msgspec.Struct, frozen=True, kw_only=True):
    """Other policies that are ahead of ours, as published or with our admission, each at its best load."""

    ahead_part: float
    """Fraction of the combinations in which one is ahead."""
    ahead_by: float
    """By how much the best one is ahead at most, relative to ours."""


class DstackReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `dstack`."""

    lab: str = "dstack"
    seed: int
    quick: bool
    paper: DstackPaper = DstackPaper()
    missing: list[str]
    slo_times: float = SLO_TIMES
    models: list[ModelCurves]
    combinations: dict[str, int]
    """Number of combinations of each size."""
    results: list[ModeComparison]
    loads: list[LoadSummary]
    of_ideal: MetricSpread
    """Ours over an ideal scheduler that preempts runs, at capacity, with the same interference."""
    rivals: Rivals
    hold: dict[str, MetricSpread]
    """By mode: goodput at twice the capacity over the highest at any load."""
    unshared_law: dict[str, MetricSpread]
    """By number of processes on a whole A100: measured latency over that of the law for runs without shares."""
    perturbed: list[PerturbedCell]
    """Medians over a few combinations with one quantity wrong."""
    claims: list[StudyClaim]
    met: dict[str, bool]
    cases: list[ServedRun]


def spread_of(values: Iterable[float]) -> MetricSpread:
    """Return the distribution of one or more values."""
    ordered = sorted(values)
    low, median, high = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 3
    metrics = [round(value, 6) for value in (ordered[0], low, median, high, ordered[-1])]
    return MetricSpread(
        n=len(ordered), min=metrics[0], quarter=metrics[1], median=metrics[2], three_quarters=metrics[3], max=metrics[4]
    )


def report_of(
    models: Sequence[ModelCurves],
    runs: Sequence[ServedRun],
    law: Mapping[int, Sequence[float]],
    seed: int,
    *,
    quick: bool,
    perturbed: Sequence[PerturbedCell] = (),
) -> DstackReport:
    """Build the report from all runs."""
    by_case: dict[tuple[str, ...], list[ServedRun]] = {}
    for run in runs:
        by_case.setdefault(tuple(run.models), []).append(run)
    sizes: dict[str, int] = {}
    for names in by_case:
        sizes[str(len(names))] = sizes.get(str(len(names)), 0) + 1
    results = [
        _comparison(mode, size, [case for names, case in by_case.items() if size in (ALL, str(len(names)))])
        for mode in PUBLISHED
        for size in (ALL, *sizes)
    ]
    loads = _loads(runs)
    of_ideal = spread_of(run.of_ideal for run in runs if run.of_ideal is not None)
    rivals = _rivals(list(by_case.values()))
    modes = list(dict.fromkeys(run.mode for run in runs))
    hold = {mode: spread_of(_hold_ratio(case, mode) for case in by_case.values()) for mode in modes}
    return DstackReport(
        seed=seed,
        quick=quick,
        missing=list(MISSING),
        models=list(models),
        combinations=sizes,
        results=results,
        loads=loads,
        of_ideal=of_ideal,
        rivals=rivals,
        hold=hold,
        unshared_law={str(count): spread_of(ratios) for count, ratios in law.items()},
        perturbed=list(perturbed),
        claims=claims_of(
            next(result for result in results if result.mode == TEMPORAL and result.models == ALL),
            of_ideal,
            perturbed,
        ),
        met=_targets(results, loads, hold, of_ideal, rivals),
        cases=list(runs),
    )


def _highest(case: Sequence[ServedRun], modes: Sequence[str], metric: Callable[[ServedRun], float]) -> float:
    return max(metric(run) for run in case if run.mode in modes and run.rhythm == POISSON)


def _comparison(mode: str, size: str, cases: Sequence[Sequence[ServedRun]]) -> ModeComparison:
    def ratios_to(modes: Sequence[str], metric: Callable[[ServedRun], float]) -> MetricSpread:
        return spread_of(_highest(case, [OURS], metric) / max(_highest(case, modes, metric), 1e-9) for case in cases)

    return ModeComparison(
        mode=mode,
        models=size,
        throughput=ratios_to([mode], lambda run: run.goodput_per_s),
        throughput_admitted=ratios_to([mode, mode + ADMITTED], lambda run: run.goodput_per_s),
        utilization=ratios_to([mode], lambda run: run.utilization),
    )


def _rivals(cases: Sequence[Sequence[ServedRun]]) -> Rivals:
    others = [name + suffix for name in PUBLISHED for suffix in ("", ADMITTED)]
    ratios = [
        _highest(case, others, lambda run: run.goodput_per_s)
        / max(_highest(case, [OURS], lambda run: run.goodput_per_s), 1e-9)
        for case in cases
    ]
    ahead = sum(ratio > 1 for ratio in ratios) / len(ratios)
    return Rivals(ahead_part=round(ahead, 4), ahead_by=round(max(max(ratios) - 1, 0.0), 4))


def _hold_ratio(case: Sequence[ServedRun], mode: str) -> float:
    best = _highest(case, [mode], lambda run: run.goodput_per_s)
    at_overload = max(run.goodput_per_s for run in case if run.mode == mode and run.load == OVERLOAD)
    return at_overload / best if best else 0.0


def _loads(runs: Sequence[ServedRun]) -> list[LoadSummary]:
    groups: dict[tuple[str, float, str], list[ServedRun]] = {}
    for run in runs:
        groups.setdefault((run.rhythm, run.load, run.mode), []).append(run)
    return [
        LoadSummary(
            mode=mode,
            rhythm=rhythm,
            load=load,
            of_bound=spread_of(run.of_bound for run in group),
            of_fair_bound=spread_of(run.of_fair_bound for run in group),
            missed=spread_of(run.missed for run in group),
            attainment_admitted=spread_of(run.attainment_admitted for run in group),
            utilization=spread_of(run.utilization for run in group),
            fairness=spread_of(run.fairness for run in group),
            device_fairness=spread_of(run.device_fairness for run in group),
            mean_batch=round(statistics.median(run.mean_batch for run in group), 3),
        )
        for (rhythm, load, mode), group in groups.items()
    ]


def _targets(
    results: Sequence[ModeComparison],
    loads: Sequence[LoadSummary],
    hold: Mapping[str, MetricSpread],
    of_ideal: MetricSpread,
    rivals: Rivals,
) -> dict[str, bool]:
    paper = DstackPaper()
    temporal = next(result for result in results if result.mode == TEMPORAL and result.models == ALL)
    ours = [load for load in loads if load.mode == OURS]
    targets = {
        f"in time over temporal sharing, median >= {paper.throughput:g}x": temporal.throughput_admitted.median
        >= paper.throughput,
        f"utilization over temporal sharing, median >= {paper.utilization:g}x": temporal.utilization.median
        >= paper.utilization,
        f"of an ideal scheduler, at capacity, median >= {paper.of_ideal:.0%}": of_ideal.median >= paper.of_ideal,
        f"another policy with our admission is ahead in at most {AHEAD_PART:.0%} of the combinations": rivals.ahead_part
        <= AHEAD_PART,
        f"and by at most {AHEAD_BY:.0%}": rivals.ahead_by <= AHEAD_BY,
        f"admitted in time, at every load, median >= {ATTAINED:.0%}": all(
            result.attainment_admitted.median >= ATTAINED for result in ours
        ),
        "held at twice the capacity, median >= 95 %": hold[OURS].median >= 0.95,
    }
    for mode in PUBLISHED:
        result = next(result for result in results if result.mode == mode and result.models == ALL)
        targets[f"in time over {mode} with our admission, a quarter or less of combinations below 1x"] = (
            result.throughput_admitted.quarter >= 1.0
        )
    return targets


def run_dstack(
    directory: Path, seed: int, console: Console, report: Callable[[str], None], *, quick: bool
) -> DstackReport:
    """Run the study with a progress bar on a terminal, or one line elsewhere."""
    path = directory / _SURFACE
    if not path.exists():
        raise missing_data(path)
    surface = read_surface(measurement_bytes(path), str(path))
    models = served_models(surface)
    if len(models) < min(SIZES):
        names = ", ".join(NAMED.values())
        raise ConfigError("data", str(path), f"has fewer than two of {names}; {DATA_PAGE}")
    for name in NAMED.values():
        if name not in {model.name for model in models}:
            report(f"omitted: {name}: was not measured")
    law: dict[int, list[float]] = {}
    if (directory / _PROFILES).exists():
        law = evaluate_law(read_profiles(measurement_bytes(directory / _PROFILES), str(directory / _PROFILES)))
    else:
        report(f"omitted: how runs without shares divide a GPU: {directory / _PROFILES} does not exist")
    chosen = combinations(models)
    if quick:
        chosen = chosen[::-_QUICK_EVERY]  # starting with the last one, which has all models
    tasks = [
        CombinationTask(combination, OFFERED_LOADS, MODES, seed * len(chosen) + index)
        for index, combination in enumerate(chosen)
    ]
    tasks.sort(key=lambda task: -len(task.models))  # longest first, so that no process runs alone at the end
    with show_parts(console, report, "to play") as progress:
        runs = play_all(tasks, os.cpu_count() or 1, progress)
        perturbed = evaluate_perturbed(chosen, seed, os.cpu_count() or 1, progress)
    curves = [model_curves(surface, model) for model in models]
    return report_of(curves, runs, law, seed, quick=quick, perturbed=perturbed)
