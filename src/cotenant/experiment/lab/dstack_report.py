"""What does the lab of many models on one GPU say in the end? Distributions over combinations, beside the paper."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.experiment.lab.dstack import POISSON, PUBLISHED, Played
from cotenant.experiment.lab.dstack_cases import MISSING, SLO_TIMES, ModelShown
from cotenant.experiment.serve.ways import ADMITTED, OURS, TEMPORAL

CAPACITY: Final = 1.0
OVERLOAD: Final = 2.0
ATTAINED: Final = 0.99
ALL: Final = "all"


class Published(msgspec.Struct, frozen=True):
    """What the paper says of its own runs, on other programs and one kind of real GPU."""

    source: str = "D-STACK, arXiv 2304.13541"
    throughput: float = 4.0
    """Up to so many times that of other ways to share."""
    utilization: float = 1.6
    of_ideal: float = 0.9
    """More than this part of what an ideal scheduler has."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of a figure over combinations."""

    n: int
    min: float
    quarter: float
    median: float
    three_quarters: float
    max: float


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """Ours beside one other way, over the combinations of a size (or of all)."""

    way: str
    models: str
    throughput: Spread
    """Ours over its, each at the load at which it has most in time."""
    throughput_admitted: Spread
    """The same, if it may take our admission where that serves it better."""
    utilization: Spread
    """Ours over its, each at the load at which it is highest."""


class AtLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One way at one load, over all combinations."""

    way: str
    rhythm: str
    load: float
    of_bound: Spread
    of_fair_bound: Spread
    missed: Spread
    attainment_admitted: Spread
    utilization: Spread
    fairness: Spread
    device_fairness: Spread
    mean_batch: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that the lab found."""

    lab: str = "dstack"
    seed: int
    quick: bool
    paper: Published = Published()
    missing: list[str]
    slo_times: float = SLO_TIMES
    models: list[ModelShown]
    combinations: dict[str, int]
    """How many of each size."""
    judged: list[Judged]
    loads: list[AtLoad]
    hold: dict[str, Spread]
    """By way: what is in time at twice the capacity, of the most at any load."""
    unshared_law: dict[str, Spread]
    """By processes on a whole A100: their measured latency over that of the law for runs without shares."""
    met: dict[str, bool]
    cases: list[Played]


def spread_of(values: Iterable[float]) -> Spread:
    """Of at least one value."""
    ordered = sorted(values)
    low, median, high = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 3
    figures = [round(value, 6) for value in (ordered[0], low, median, high, ordered[-1])]
    return Spread(
        n=len(ordered), min=figures[0], quarter=figures[1], median=figures[2], three_quarters=figures[3], max=figures[4]
    )


def report_of(
    models: Sequence[ModelShown],
    played: Sequence[Played],
    law: Mapping[int, Sequence[float]],
    seed: int,
    *,
    quick: bool,
) -> Report:
    """From all that was played."""
    by_case: dict[tuple[str, ...], list[Played]] = {}
    for one in played:
        by_case.setdefault(tuple(one.models), []).append(one)
    sizes: dict[str, int] = {}
    for names in by_case:
        sizes[str(len(names))] = sizes.get(str(len(names)), 0) + 1
    judged = [
        _judged(way, size, [case for names, case in by_case.items() if size in (ALL, str(len(names)))])
        for way in PUBLISHED
        for size in (ALL, *sizes)
    ]
    loads = _loads(played)
    ways = list(dict.fromkeys(one.way for one in played))
    hold = {way: spread_of(_hold(case, way) for case in by_case.values()) for way in ways}
    return Report(
        seed=seed,
        quick=quick,
        missing=list(MISSING),
        models=list(models),
        combinations=sizes,
        judged=judged,
        loads=loads,
        hold=hold,
        unshared_law={str(count): spread_of(ratios) for count, ratios in law.items()},
        met=_met(judged, loads, hold),
        cases=list(played),
    )


def _most(case: Sequence[Played], ways: Sequence[str], of: Callable[[Played], float]) -> float:
    return max(of(one) for one in case if one.way in ways and one.rhythm == POISSON)


def _judged(way: str, size: str, cases: Sequence[Sequence[Played]]) -> Judged:
    def over(ways: Sequence[str], of: Callable[[Played], float]) -> Spread:
        return spread_of(_most(case, [OURS], of) / max(_most(case, ways, of), 1e-9) for case in cases)

    return Judged(
        way=way,
        models=size,
        throughput=over([way], lambda one: one.goodput_per_s),
        throughput_admitted=over([way, way + ADMITTED], lambda one: one.goodput_per_s),
        utilization=over([way], lambda one: one.utilization),
    )


def _hold(case: Sequence[Played], way: str) -> float:
    at_most = _most(case, [way], lambda one: one.goodput_per_s)
    past = max(one.goodput_per_s for one in case if one.way == way and one.load == OVERLOAD)
    return past / at_most if at_most else 0.0


def _loads(played: Sequence[Played]) -> list[AtLoad]:
    groups: dict[tuple[str, float, str], list[Played]] = {}
    for one in played:
        groups.setdefault((one.rhythm, one.load, one.way), []).append(one)
    return [
        AtLoad(
            way=way,
            rhythm=rhythm,
            load=load,
            of_bound=spread_of(one.of_bound for one in group),
            of_fair_bound=spread_of(one.of_fair_bound for one in group),
            missed=spread_of(one.missed for one in group),
            attainment_admitted=spread_of(one.attainment_admitted for one in group),
            utilization=spread_of(one.utilization for one in group),
            fairness=spread_of(one.fairness for one in group),
            device_fairness=spread_of(one.device_fairness for one in group),
            mean_batch=round(statistics.median(one.mean_batch for one in group), 3),
        )
        for (rhythm, load, way), group in groups.items()
    ]


def _met(judged: Sequence[Judged], loads: Sequence[AtLoad], hold: Mapping[str, Spread]) -> dict[str, bool]:
    paper = Published()
    temporal = next(one for one in judged if one.way == TEMPORAL and one.models == ALL)
    ours = [one for one in loads if one.way == OURS]
    full = next(one for one in ours if one.load == CAPACITY)
    found = {
        f"in time over temporal sharing, median >= {paper.throughput:g}x": temporal.throughput_admitted.median
        >= paper.throughput,
        f"utilization over temporal sharing, median >= {paper.utilization:g}x": temporal.utilization.median
        >= paper.utilization,
        f"of the bound, at capacity, median >= {paper.of_ideal:.0%}": full.of_bound.median >= paper.of_ideal,
        f"admitted in time, at every load, median >= {ATTAINED:.0%}": all(
            one.attainment_admitted.median >= ATTAINED for one in ours
        ),
        "held at twice the capacity, median >= 95 %": hold[OURS].median >= 0.95,
    }
    for way in PUBLISHED:
        one = next(one for one in judged if one.way == way and one.models == ALL)
        found[f"in time over {way} with our admission, a quarter or less of combinations below 1x"] = (
            one.throughput_admitted.quarter >= 1.0
        )
    return found
