"""Run each baseline on workloads as in its own paper, and compare the results with the paper's.

A baseline that is worse here than its authors measured would flatter cotenant in every study that uses it. Constants of
a baseline are those that its authors published; none was chosen by the errors that this study prints.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant.simulate.kernels import RunSettings
from cotenant.simulate.sharing import Guest, RunSpec
from cotenant.softgpu.costs import hardware, hardware_hosts
from cotenant.units.instant import SECOND_NS
from cotenant.workload.load import Workload
from cotenant_lab.baselines.modes import share
from cotenant_lab.study.arkgpu.cases import OFFLINE_PRIORITY, ONLINE_PRIORITY, read_mixes
from cotenant_lab.study.claim import StudyClaim
from cotenant_lab.study.data_files import DATA_PAGE
from cotenant_lab.study.fikit.report import PRESET
from cotenant_lab.study.fikit.run import Progress
from cotenant_lab.study.progress import show_parts
from cotenant_lab.study.workers import mapping

ERROR_MOST: Final = 0.10
"""A baseline counts as reproduced if its median misses the published range by at most this part."""
DUTIES: Final = (0.1, 0.2, 0.3)
"""Parts of the time with work on the GPU of a production training whose host is the bottleneck: our choice, around the
mean utilization of the clusters for which these systems were built."""
RUN_NS: Final = 60 * SECOND_NS
QUICK_CASES: Final = 2
PART: Final = "pairs of trainings"
_TGS: Final = "tgs"


class PublishedRange(msgspec.Struct, frozen=True, kw_only=True):
    """What a paper reports about its own system."""

    baseline: str
    figure: str
    source: str
    low: float
    high: float

    def error(self, value: float) -> float:
        """Return by which part a value is outside; 0 within."""
        return max(self.low / value - 1 if value else 1.0, value / self.high - 1, 0.0)


_SOURCE: Final = "TGS, NSDI '23"
PRODUCTION: Final = PublishedRange(
    baseline=_TGS,
    figure="speed of the production training, over that alone",
    source=f"{_SOURCE}: little impact, its controller allows 3 %",
    low=0.97,
    high=1.0,
)
OPPORTUNISTIC: Final = PublishedRange(
    baseline=_TGS,
    figure="speed of the opportunistic training, over that alone",
    source=_SOURCE,
    low=0.7,
    high=0.9,
)


class TrainingPairCase(msgspec.Struct, frozen=True, kw_only=True):
    """A production training that leaves the GPU idle for most of its time, and an opportunistic one."""

    name: str
    duty: float
    production: Workload
    opportunistic: Workload


class PairResult(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds over those alone, by mode: production, opportunistic."""

    name: str
    duty: float
    speeds: dict[str, tuple[float, float]]


class ReproducedRange(msgspec.Struct, frozen=True, kw_only=True):
    """A published range, and what this project's implementation reaches."""

    baseline: str
    figure: str
    source: str
    published: tuple[float, float]
    median: float
    min: float
    max: float
    error: float
    """By which part the median misses the published range."""
    error_worst: float
    """The same of the worst pair."""


class BaselinesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `baselines`."""

    lab: str = "baselines"
    seed: int
    quick: bool
    ranges: list[ReproducedRange]
    pairs: list[PairResult]
    claims: list[StudyClaim] = []
    """None: this study judges baselines only."""
    met: dict[str, bool]


def pair_cases(trainings: Sequence[Workload], *, quick: bool) -> list[TrainingPairCase]:
    """Return each training as production at every duty, next to another one in turn."""
    cases = []
    for index, production in enumerate(trainings):
        for turn, duty in enumerate(DUTIES):
            other = trainings[(index + 1 + turn % (len(trainings) - 1)) % len(trainings)]
            name = f"{production.name} at {duty:.0%} + {other.name}"
            load = host_bound(production, duty)
            cases.append(TrainingPairCase(name=name, duty=duty, production=load, opportunistic=other))
    return cases[:: len(cases) // QUICK_CASES][:QUICK_CASES] if quick else cases


def host_bound(training: Workload, duty: float) -> Workload:
    """Return the same kernels, launched by a host that is slower than the GPU."""
    launches = tuple(
        msgspec.structs.replace(launch, interval_ns=round(launch.device_ns / duty)) for launch in training.launches
    )
    return msgspec.structs.replace(training, launches=launches)


def evaluate_pair(case: TrainingPairCase, setting: RunSettings, for_ns: int = RUN_NS) -> PairResult:
    """Run a pair under the baseline and under time slices, which TGS controls; the first half is not measured."""
    run = RunSpec(
        guests=(
            Guest(load=case.production, online=True, priority=ONLINE_PRIORITY),
            Guest(load=case.opportunistic, online=False, priority=OFFLINE_PRIORITY),
        ),
        setting=setting,
        for_ns=for_ns,
        warm_ns=for_ns // 2,
    )
    alone = [guest.done_ns for guest in share("exclusive", run).guests]
    speeds = {}
    for mode in (_TGS, "slices"):
        done = [guest.done_ns for guest in share(mode, run).guests]
        speeds[mode] = (round(done[0] / max(alone[0], 1), 4), round(done[1] / max(alone[1], 1), 4))
    return PairResult(name=case.name, duty=case.duty, speeds=speeds)


def report_of(pairs: Sequence[PairResult], seed: int, *, quick: bool) -> BaselinesReport:
    """Compare the results with the published ranges."""
    ranges = [
        _reproduced(PRODUCTION, [pair.speeds[_TGS][0] for pair in pairs]),
        _reproduced(OPPORTUNISTIC, [pair.speeds[_TGS][1] for pair in pairs]),
    ]
    return BaselinesReport(
        seed=seed,
        quick=quick,
        ranges=ranges,
        pairs=list(pairs),
        met={
            f"{found.baseline}: {found.figure}, within {ERROR_MOST:.0%} of the published range": found.error
            <= ERROR_MOST
            for found in ranges
        },
    )


def _reproduced(published: PublishedRange, values: Sequence[float]) -> ReproducedRange:
    median = statistics.median(values)
    return ReproducedRange(
        baseline=published.baseline,
        figure=published.figure,
        source=published.source,
        published=(published.low, published.high),
        median=round(median, 4),
        min=min(values),
        max=max(values),
        error=round(published.error(median), 4),
        error_worst=round(max(published.error(value) for value in values), 4),
    )


def run_baselines(
    directory: Path, seed: int, console: Console, report: Callable[[str], None], *, quick: bool
) -> BaselinesReport:
    """Run the study with a progress bar on a terminal, or one line elsewhere."""
    setting = RunSettings(device=hardware(PRESET), costs=hardware_hosts(), seed=seed)
    mixes = read_mixes(directory, setting, quick=quick)
    for missing in mixes.missing:
        report(f"omitted: {missing.name}: {missing.why}")
    trainings = list(mixes.trainings.values())
    if len(trainings) < 2:
        raise ConfigError("data", str(directory), f"has fewer than two trainings; {DATA_PAGE}")
    cases = pair_cases(trainings, quick=quick)
    results: list[PairResult] = []
    with show_parts(console, report, "to play") as progress:
        _evaluate(cases, setting, 1 if quick else os.cpu_count() or 1, progress, results)
    return report_of(results, seed, quick=quick)


def _evaluate(
    cases: Sequence[TrainingPairCase], setting: RunSettings, workers: int, progress: Progress, results: list[PairResult]
) -> None:
    progress(PART, 0, len(cases))
    with mapping(workers) as mapped:
        for result in mapped(evaluate_pair, cases, [setting] * len(cases)):
            results.append(result)
            progress(PART, len(results), len(cases))
