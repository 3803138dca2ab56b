"""Errors of predictions against measurements: summaries, splits into halves, and unexplained cases."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

BEYOND: Final = 0.5
"""Cases with a larger relative error are listed as unexplained."""

CaseT = TypeVar("CaseT", bound=Hashable)


class ErrorSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of relative errors |predicted / measured - 1|."""

    n: int
    median: float
    p90: float
    worst: float
    worst_case: str


class HalfErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors on the half that was held out, and on the half that was fitted."""

    n: int
    error_median: float
    error_p90: float
    bias: float
    """Geometric mean of predicted over measured."""
    fitted_n: int
    fitted_error_median: float
    fitted_error_p90: float
    fitted_bias: float


class ErrorSplit(msgspec.Struct, frozen=True, kw_only=True):
    """One split of the cells into halves, and the errors on the held-out half."""

    by: str
    seed: int
    median: float
    p90: float


class SplitSpread(msgspec.Struct, frozen=True, kw_only=True):
    """The same evaluation under several splits of one kind."""

    by: str
    seeds: int
    median_of_medians: float
    least_median: float
    largest_median: float


class UnexplainedCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case with an error of more than `BEYOND`, and what its measurement shows."""

    check: str
    case: str
    error: float
    predicted_ms: float
    measured_ms: float
    reason: str


class ErrorCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the evaluation; target None: only the error is reported."""

    name: str
    errors: ErrorSummary
    target: float | None
    met: bool | None
    baselines: dict[str, ErrorSummary]


def relative(predicted: float, measured: float) -> float:
    """Return the relative error."""
    return abs(predicted / measured - 1)


def errors_of(errors: Mapping[str, float]) -> ErrorSummary:
    """Summarize; ties for the worst go to the first by name."""
    if not errors:
        raise ValueError("no case was held out")
    values = sorted(errors.values())
    worst = max(values)
    return ErrorSummary(
        n=len(values),
        median=_rounded(statistics.median(values)),
        p90=_rounded(_quantile(values, 0.9)),
        worst=_rounded(worst),
        worst_case=min(name for name, error in errors.items() if error == worst),
    )


def half_errors(held: Sequence[tuple[float, float]], fitted: Sequence[tuple[float, float]]) -> HalfErrors:
    """Summarize pairs of predicted and measured values of both halves."""
    (median, p90, bias), (fitted_median, fitted_p90, fitted_bias) = _summary(held), _summary(fitted)
    return HalfErrors(
        n=len(held),
        error_median=median,
        error_p90=p90,
        bias=bias,
        fitted_n=len(fitted),
        fitted_error_median=fitted_median,
        fitted_error_p90=fitted_p90,
        fitted_bias=fitted_bias,
    )


def _summary(values: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    errors = sorted(relative(predicted, measured) for predicted, measured in values)
    logs = [math.log(predicted / measured) for predicted, measured in values]
    bias = math.exp(statistics.fmean(logs))
    return _rounded(statistics.median(errors)), _rounded(_quantile(errors, 0.9)), _rounded(bias)


def halves(cases: Sequence[CaseT], seed: int) -> tuple[list[CaseT], list[CaseT]]:
    """Return half to fit and half to hold out, shuffled by the seed; an odd case is held out."""
    shuffled = sorted(cases, key=repr)
    random.Random(seed).shuffle(shuffled)
    return shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]


def spread_of(splits: Sequence[ErrorSplit]) -> list[SplitSpread]:
    """Summarize by kind of split, in order of appearance."""
    kinds = list(dict.fromkeys(split.by for split in splits))
    spreads = []
    for kind in kinds:
        medians = [split.median for split in splits if split.by == kind]
        spreads.append(
            SplitSpread(
                by=kind,
                seeds=len(medians),
                median_of_medians=_rounded(statistics.median(medians)),
                least_median=min(medians),
                largest_median=max(medians),
            )
        )
    return spreads


def _quantile(ordered: Sequence[float], part: float) -> float:
    """Interpolate between the two nearest ranks."""
    position = part * (len(ordered) - 1)
    lower = int(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (position - lower)


def _rounded(value: float) -> float:
    """Round to a millionth, which is finer than any measurement here."""
    return round(value, 6)
