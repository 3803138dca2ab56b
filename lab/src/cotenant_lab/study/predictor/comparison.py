"""Compare predictions with measurements and with simpler predictors."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant.units.estimate import Estimate
from cotenant_lab.study.error import ErrorSummary, errors_of, relative

COVERED: Final = (0.8, 0.98)
"""Accepted range for the fraction of outcomes within intervals of 90 %. Our choice."""


class PredictionCase(msgspec.Struct, frozen=True):
    """One outcome that no fit has used."""

    name: str
    estimate: Estimate
    measured: float
    guesses: dict[str, float]


class PredictionComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of all cases of a kind, those of simpler predictors, and the coverage of the intervals."""

    name: str
    source: str
    split: str
    errors: ErrorSummary
    baselines: dict[str, ErrorSummary]
    coverage: float
    """Fraction of the outcomes within their interval; the nominal value is 0.9."""
    interval: float
    """Median of the upper end over the point."""
    met: dict[str, bool]


def compare_predictions(
    name: str, source: str, split: str, cases: Sequence[PredictionCase], *, rivals: Sequence[str], covers: bool = True
) -> PredictionComparison:
    """Evaluate; met: the median error is lower than every rival's, and (covers) the coverage is nominal."""
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
    return PredictionComparison(
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
    """Return names that are held out together: each once, dealt in order."""
    ordered = sorted(set(names))
    return [part for part in (ordered[start::count] for start in range(count)) if part]


def all_met(comparisons: Sequence[PredictionComparison]) -> Mapping[str, bool]:
    """Return every target by the name of its comparison."""
    return {f"{comparison.name}: {target}": met for comparison in comparisons for target, met in comparison.met.items()}
