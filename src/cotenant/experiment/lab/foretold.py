"""What was foretold, what was measured, and what would simpler guesses have said? One judgement of a predictor."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant.domain.estimate import Estimate
from cotenant.experiment.lab.judge import Errors, errors_of, relative

COVERED: Final = (0.8, 0.98)
"""Where the part of outcomes within intervals of 90 % may lie: neither boasting nor hiding. Our choice."""


class Case(msgspec.Struct, frozen=True):
    """One outcome that no fit has seen."""

    name: str
    estimate: Estimate
    measured: float
    guesses: dict[str, float]


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The errors of all cases of a kind, beside those of simpler guesses, and how honest the intervals were."""

    name: str
    source: str
    split: str
    errors: Errors
    baselines: dict[str, Errors]
    coverage: float
    """Part of the outcomes within their interval; 0.9 is meant."""
    interval: float
    """Median of the upper end over the point."""
    met: dict[str, bool]


def judged(
    name: str, source: str, split: str, cases: Sequence[Case], *, rivals: Sequence[str], covers: bool = True
) -> Judged:
    """Met: the median error is below that of every rival, and (covers) intervals hold about what they say."""
    errors = errors_of({case.name: relative(case.estimate.point, case.measured) for case in cases})
    baselines = {
        guess: errors_of({case.name: relative(case.guesses[guess], case.measured) for case in cases})
        for guess in cases[0].guesses
    }
    coverage = sum(case.estimate.holds(case.measured) for case in cases) / len(cases)
    widths = [case.estimate.high / case.estimate.point for case in cases if case.estimate.point > 0]
    met = {f"better than {rival}": errors.median < baselines[rival].median for rival in rivals}
    if covers:
        met["intervals hold"] = COVERED[0] <= coverage <= COVERED[1]
    return Judged(
        name=name,
        source=source,
        split=split,
        errors=errors,
        baselines=baselines,
        coverage=round(coverage, 4),
        interval=round(statistics.median(widths), 4) if widths else 0.0,
        met=met,
    )


def folds(names: Sequence[str], count: int) -> list[list[str]]:
    """Which names are held out together: each once, dealt in order of their names."""
    ordered = sorted(set(names))
    return [part for part in (ordered[start::count] for start in range(count)) if part]


def all_met(found: Sequence[Judged]) -> Mapping[str, bool]:
    """Every target by the name of its judgement."""
    return {f"{one.name}: {target}": met for one in found for target, met in one.met.items()}
