"""What does the lab of gap filling say in the end? Groups, curves over the bounds, and how far live runs agree."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cotenant.domain.gate import GateRules
from cotenant.domain.instant import MICROSECOND_NS
from cotenant.experiment.fill.bench import swept
from cotenant.experiment.fill.figures import COTENANT
from cotenant.experiment.fill.pairs import Missing, Pair
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.fikit import PAPER, Case, Group, Judged, Progress, judge_all

BOUNDS_US: Final = (100, 250, 500, 1000, 2000)
DELAYS_PPM: Final = (0, 5_000, 10_000, 20_000, 50_000, 100_000)
COMPARED: Final = ("online_delay_ratio", "online_speedup_vs_sharing", "online_slowdown", "offline_vs_alone")
_FEWEST: Final = 3
"""Pairs, for an order to mean anything."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One pair under one value of a rule."""

    pair: str
    rule: str
    """bound or delay."""
    value: float
    """Microseconds, or the part of the time."""
    sharing: str
    online_delay_ratio: float
    online_slowdown: float
    offline_vs_alone: float
    fill_vs_oracle: float


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, live and simulated, over the pairs that both know."""

    figure: str
    sharing: str
    pairs: int
    spearman: float
    median_error: float
    """Of the absolute differences."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that the lab found."""

    lab: str = "fikit"
    seed: int
    quick: bool
    paper: dict[str, str]
    groups: dict[str, Group]
    curve: list[Point]
    left_out: list[Missing]
    agreement: list[Agreement]
    met: dict[str, bool]


def curve_cases(pairs: Sequence[Pair], *, quick: bool) -> list[tuple[str, float, Case]]:
    """A pair with gaps in its requests, one with few, one with pauses between, under several bounds and delays."""
    rules = GateRules()
    bounds = BOUNDS_US[::2] if quick else BOUNDS_US
    delays = DELAYS_PPM[::3] if quick else DELAYS_PPM
    found: list[tuple[str, float, Case]] = []
    for pair in swept(list(pairs)):
        for bound_us in bounds:
            changed = msgspec.structs.replace(rules, bound_ns=bound_us * MICROSECOND_NS)
            found.append(("bound", float(bound_us), Case(pair=pair, rules=changed)))
        for delay_ppm in delays:
            changed = msgspec.structs.replace(rules, delay_ppm=delay_ppm)
            found.append(("delay", delay_ppm / 1e6, Case(pair=pair, rules=changed)))
    return found


def judge_fikit(
    groups: dict[str, Sequence[Case]],
    curve: Sequence[tuple[str, float, Case]],
    left_out: Sequence[Missing],
    setting: Setting,
    live: dict[str, Any] | None,
    workers: int,
    progress: Progress,
    *,
    quick: bool,
) -> Report:
    """All groups and the curve; `live` is what `cotenant bench fill --json` printed."""
    name = "bounds and delays"
    found = judge_all({**groups, name: [case for _, _, case in curve]}, setting, workers, progress)
    swept_cases = found.pop(name).cases
    points = [
        point
        for (rule, value, case), judged in zip(curve, swept_cases, strict=True)
        for point in _points(rule, value, case, judged)
    ]
    return Report(
        seed=setting.seed,
        quick=quick,
        paper=PAPER,
        groups=found,
        curve=points,
        left_out=list(left_out),
        agreement=agreement_of(live, found["pairs"]) if live is not None and "pairs" in found else [],
        met=_met(found),
    )


def _points(rule: str, value: float, case: Case, judged: Judged) -> list[Point]:
    figures = judged.figures
    return [
        Point(
            pair=case.pair.name,
            rule=rule,
            value=value,
            sharing=sharing,
            online_delay_ratio=figures.online_delay_ratio[mode],
            online_slowdown=figures.online_slowdown[mode],
            offline_vs_alone=figures.offline_vs_alone[mode],
            fill_vs_oracle=judged.fill_vs_oracle[sharing],
        )
        for sharing, mode in COTENANT.items()
    ]


def _met(groups: dict[str, Group]) -> dict[str, bool]:
    """The targets, over the bench's pairs; MPS, where the oracle needs no switches, is what the gate is meant for."""
    if "pairs" not in groups:
        return {}
    figures = groups["pairs"].figures
    return {
        "online_delay_ratio_mps median <= 0.02": figures["online_delay_ratio_mps"].median <= 0.02,
        "online_delay_ratio_mps max <= 0.05": figures["online_delay_ratio_mps"].max <= 0.05,
        "online_delay_of_wall_mps max <= 0.05": figures["online_delay_of_wall_mps"].max <= 0.05,
        "fill_vs_oracle_mps median >= 0.9": figures["fill_vs_oracle_mps"].median >= 0.9,
    }


def agreement_of(live: dict[str, Any], simulated: Group) -> list[Agreement]:
    """Do live and simulated agree in order, and by how much are they apart?"""
    measured = {one["name"]: one for one in live.get("pairs", [])}
    found = []
    for figure in COMPARED:
        for sharing, mode in COTENANT.items():
            key = sharing if figure == "online_speedup_vs_sharing" else mode
            both = [
                (measured[one.figures.name][figure][key], getattr(one.figures, figure)[key])
                for one in simulated.cases
                if key in measured.get(one.figures.name, {}).get(figure, {})
            ]
            if len(both) >= _FEWEST:
                found.append(
                    Agreement(
                        figure=figure,
                        sharing=sharing,
                        pairs=len(both),
                        spearman=spearman([one for one, _ in both], [other for _, other in both]),
                        median_error=statistics.median(abs(one - other) for one, other in both),
                    )
                )
    return found


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of the ranks, equal values sharing theirs; 0 where one side is all the same."""
    one, other = _ranks(first), _ranks(second)
    if len(set(one)) == 1 or len(set(other)) == 1:
        return 0.0
    return statistics.correlation(one, other)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
