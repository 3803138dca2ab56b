"""How many requests does a service answer within its objective at most? The load is raised until it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.domain.instant import SECOND_NS
from cotenant.domain.load import Load
from cotenant.domain.rhythm import steady
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.arkgpu import ATTAINED
from cotenant.experiment.lab.arkgpu_cases import (
    LONGEST_NS,
    OBJECTIVES,
    OFFLINE_PRIORITY,
    ONLINE_PRIORITY,
    REQUESTS_LEAST,
    RUN_NS,
    WARM_NS,
    Mixes,
    Service,
    later,
)
from cotenant.experiment.lab.fikit import Progress
from cotenant.experiment.lab.muxflow import Distribution, distribution_of
from cotenant.experiment.lab.workers import mapping
from cotenant.experiment.together import Guest, Outcome, Run
from cotenant.experiment.ways import share
from cotenant.sim.arrivals import arrivals_of, driven

PART: Final = "rising load"
LEVELS: Final = (0.15, 0.3, 0.45, 0.6)
"""Poisson arrivals, over the rate at which the service answers one after the other."""
OTHERS: Final = ("exclusive", "mps", "mps-priority")
WAYS: Final = ("cotenant", *OTHERS)


class PeakCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service beside a training."""

    name: str
    service: Service
    training: Load
    seed: int


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """One service and objective: by way, over the levels of the load."""

    name: str
    objective: int
    levels: tuple[float, ...]
    attainment: dict[str, list[float]]
    within: dict[str, list[float]]
    """Answers within the objective, over what the service answers alone one after the other."""
    offline: dict[str, list[float]]
    """Kernel time of the training per time."""

    def peak(self, way: str) -> float:
        """The most answers within the objective at any of these loads."""
        return max(self.within[way])

    def sustained(self, way: str) -> float:
        """The highest load up to which 99 % of the answers are within the objective; 0: not even at the lowest."""
        kept = 0.0
        for level, part in zip(self.levels, self.attainment[way], strict=True):
            if part < ATTAINED:
                break
            kept = level
        return kept


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    cases: list[Peak]
    peak_vs_mps_pct: Distribution
    """The most that is answered within the objective under cotenant, over that under default MPS, in percent above."""
    peak: dict[str, Distribution]
    sustained: dict[str, Distribution]
    sustained_none: dict[str, int]
    """By way: cases in which not even the lowest load is sustained."""


def peak_cases(mixes: Mixes, seed: int, *, quick: bool) -> list[PeakCase]:
    """Every service, beside the trainings in turns; one where it must be quick."""
    trainings = list(mixes.trainings.values())
    cases = [
        PeakCase(
            name=f"{service.load.name} + {trainings[place % len(trainings)].name}",
            service=service,
            training=trainings[place % len(trainings)],
            seed=seed * 1000 + place,
        )
        for place, service in enumerate(mixes.services.values())
    ]
    return cases[: 1 if quick else None]


def climb(case: PeakCase, setting: Setting) -> list[Peak]:
    """By every objective; those who know none are played once."""
    others = {way: [share(way, later(_run(case, setting, level, OBJECTIVES[0]))) for level in LEVELS] for way in OTHERS}
    return [
        _peak(
            case,
            objective,
            {"cotenant": [share("cotenant", _run(case, setting, level, objective)) for level in LEVELS]} | others,
        )
        for objective in OBJECTIVES
    ]


def judge_peaks(cases: Sequence[PeakCase], setting: Setting, workers: int, progress: Progress) -> Peaks:
    """Every case; the number of workers changes nothing in them."""
    found: list[Peak] = []
    progress(PART, 0, len(cases))
    with mapping(workers) as mapped:
        for done, peaks in enumerate(mapped(climb, cases, [setting] * len(cases)), start=1):
            found += peaks
            progress(PART, done, len(cases))
    return peaks_of(found)


def peaks_of(found: Sequence[Peak]) -> Peaks:
    """A peak of nothing under MPS counts as a hundredth of what the service can do."""
    return Peaks(
        cases=list(found),
        peak_vs_mps_pct=distribution_of(
            [100 * (one.peak("cotenant") / max(one.peak("mps"), 0.01) - 1) for one in found]
        ),
        peak={way: distribution_of([one.peak(way) for one in found]) for way in WAYS},
        sustained={way: distribution_of([one.sustained(way) for one in found]) for way in WAYS},
        sustained_none={way: sum(not one.sustained(way) for one in found) for way in WAYS},
    )


def _run(case: PeakCase, setting: Setting, level: float, objective: int) -> Run:
    rate_per_s = level * case.service.most_per_s
    for_ns = WARM_NS + max(RUN_NS, min(round(REQUESTS_LEAST / rate_per_s * SECOND_NS), LONGEST_NS))
    load = driven(case.service.load, arrivals_of(steady(rate_per_s), for_ns, case.seed))
    online = Guest(load=load, online=True, priority=ONLINE_PRIORITY, slo_ns=case.service.slo_ns(objective))
    offline = Guest(load=case.training, online=False, priority=OFFLINE_PRIORITY)
    return Run(guests=(online, offline), setting=setting, for_ns=for_ns, warm_ns=WARM_NS)


def _peak(case: PeakCase, objective: int, outcomes: dict[str, list[Outcome]]) -> Peak:
    slo_ns = case.service.slo_ns(objective)
    return Peak(
        name=case.name,
        objective=objective,
        levels=LEVELS,
        attainment={way: [one.guests[0].attainment(slo_ns) for one in played] for way, played in outcomes.items()},
        within={
            way: [one.guests[0].within_per_s(slo_ns) / case.service.most_per_s for one in played]
            for way, played in outcomes.items()
        },
        offline={
            way: [one.guests[-1].done_ns / (one.end_ns - one.begin_ns) for one in played]
            for way, played in outcomes.items()
        },
    )
