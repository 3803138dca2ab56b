"""Find the highest rate of requests answered within the objective by raising the load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.simulate.kernels import RunSettings
from cotenant.simulate.sharing import Guest, RunSpec, SharingOutcome
from cotenant.units.instant import SECOND_NS
from cotenant.workload.arrivals import draw_arrivals, with_arrivals
from cotenant.workload.load import Workload
from cotenant.workload.rates import constant_rate
from cotenant_lab.baselines.modes import share
from cotenant_lab.study.arkgpu.cases import (
    LONGEST_NS,
    OBJECTIVES,
    OFFLINE_PRIORITY,
    ONLINE_PRIORITY,
    REQUESTS_LEAST,
    RUN_NS,
    WARM_NS,
    Mixes,
    Service,
    shorten_warmup,
)
from cotenant_lab.study.arkgpu.run import ATTAINED
from cotenant_lab.study.fikit.run import Progress
from cotenant_lab.study.muxflow_node.run import Distribution, distribution_of
from cotenant_lab.study.workers import mapping

PART: Final = "rising load"
LEVELS: Final = (0.15, 0.3, 0.45, 0.6)
"""Poisson arrivals, over the rate at which the service answers one request after the other."""
OTHERS: Final = ("exclusive", "mps", "mps-priority")
MODES: Final = ("cotenant", *OTHERS)


class PeakCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service and a training."""

    name: str
    service: Service
    training: Workload
    seed: int


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """One service and objective: by mode, over the levels of the load."""

    name: str
    objective: int
    levels: tuple[float, ...]
    attainment: dict[str, list[float]]
    within: dict[str, list[float]]
    """Answers within the objective, over what the service answers alone one after the other."""
    offline: dict[str, list[float]]
    """Kernel time of the training per time."""

    def peak(self, mode: str) -> float:
        """Return the highest rate within the objective over the loads."""
        return max(self.within[mode])

    def sustained(self, mode: str) -> float:
        """Return the highest load up to which 99 % are within the objective; 0: not even at the lowest."""
        highest = 0.0
        for level, part in zip(self.levels, self.attainment[mode], strict=True):
            if part < ATTAINED:
                break
            highest = level
        return highest


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all cases."""

    cases: list[Peak]
    peak_vs_mps_pct: Distribution
    """Highest rate within the objective under cotenant over that under default MPS, as a percentage increase."""
    bound_vs_mps_pct: Distribution
    """The same of a device for the service alone, which no sharing can exceed."""
    peak: dict[str, Distribution]
    sustained: dict[str, Distribution]
    sustained_none: dict[str, int]
    """By mode: cases in which not even the lowest load is sustained."""


def peak_cases(mixes: Mixes, seed: int, *, quick: bool) -> list[PeakCase]:
    """Return every service with the trainings in turn; only one case if quick."""
    trainings = list(mixes.trainings.values())
    cases = [
        PeakCase(
            name=f"{service.load.name} + {trainings[index % len(trainings)].name}",
            service=service,
            training=trainings[index % len(trainings)],
            seed=seed * 1000 + index,
        )
        for index, service in enumerate(mixes.services.values())
    ]
    return cases[: 1 if quick else None]


def climb(case: PeakCase, setting: RunSettings) -> list[Peak]:
    """Evaluate every objective; modes that ignore objectives run once."""
    fixed_modes = {
        mode: [share(mode, shorten_warmup(_run(case, setting, level, OBJECTIVES[0]))) for level in LEVELS]
        for mode in OTHERS
    }
    return [
        _peak(
            case,
            objective,
            {"cotenant": [share("cotenant", _run(case, setting, level, objective)) for level in LEVELS]} | fixed_modes,
        )
        for objective in OBJECTIVES
    ]


def evaluate_peaks(cases: Sequence[PeakCase], setting: RunSettings, workers: int, progress: Progress) -> Peaks:
    """Evaluate every case; the number of workers does not change results."""
    all_peaks: list[Peak] = []
    progress(PART, 0, len(cases))
    with mapping(workers) as mapped:
        for done, peaks in enumerate(mapped(climb, cases, [setting] * len(cases)), start=1):
            all_peaks += peaks
            progress(PART, done, len(cases))
    return peaks_of(all_peaks)


def peaks_of(cases: Sequence[Peak]) -> Peaks:
    """Summarize; a peak of 0 under MPS counts as a hundredth of the service's capacity."""
    return Peaks(
        cases=list(cases),
        peak_vs_mps_pct=_over_mps(cases, "cotenant"),
        bound_vs_mps_pct=_over_mps(cases, "exclusive"),
        peak={mode: distribution_of([case.peak(mode) for case in cases]) for mode in MODES},
        sustained={mode: distribution_of([case.sustained(mode) for case in cases]) for mode in MODES},
        sustained_none={mode: sum(not case.sustained(mode) for case in cases) for mode in MODES},
    )


def _over_mps(cases: Sequence[Peak], mode: str) -> Distribution:
    return distribution_of([100 * (case.peak(mode) / max(case.peak("mps"), 0.01) - 1) for case in cases])


def _run(case: PeakCase, setting: RunSettings, level: float, objective: int) -> RunSpec:
    rate_per_s = level * case.service.most_per_s
    for_ns = WARM_NS + max(RUN_NS, min(round(REQUESTS_LEAST / rate_per_s * SECOND_NS), LONGEST_NS))
    load = with_arrivals(case.service.load, draw_arrivals(constant_rate(rate_per_s), for_ns, case.seed))
    online = Guest(load=load, online=True, priority=ONLINE_PRIORITY, slo_ns=case.service.slo_ns(objective))
    offline = Guest(load=case.training, online=False, priority=OFFLINE_PRIORITY)
    return RunSpec(guests=(online, offline), setting=setting, for_ns=for_ns, warm_ns=WARM_NS)


def _peak(case: PeakCase, objective: int, outcomes: dict[str, list[SharingOutcome]]) -> Peak:
    slo_ns = case.service.slo_ns(objective)
    return Peak(
        name=case.name,
        objective=objective,
        levels=LEVELS,
        attainment={
            mode: [outcome.guests[0].attainment(slo_ns) for outcome in mode_outcomes]
            for mode, mode_outcomes in outcomes.items()
        },
        within={
            mode: [outcome.guests[0].within_per_s(slo_ns) / case.service.most_per_s for outcome in mode_outcomes]
            for mode, mode_outcomes in outcomes.items()
        },
        offline={
            mode: [outcome.guests[-1].done_ns / (outcome.end_ns - outcome.begin_ns) for outcome in mode_outcomes]
            for mode, mode_outcomes in outcomes.items()
        },
    )
