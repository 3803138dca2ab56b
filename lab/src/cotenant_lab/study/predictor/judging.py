"""Errors and coverage of predictions on published measurements, next to those of simpler predictors."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from cotenant.predict.speed import SpeedPredictor, Speeds
from cotenant.predict.speed_parameters import Parameters
from cotenant.units.estimate import Estimate
from cotenant_lab.study.error import ErrorSummary, errors_of, relative
from cotenant_lab.study.predictor.measured import MeasuredOutcome


class BaselineErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of a simpler predictor on the same cases."""

    error_median: float
    error_p90: float


class JudgedSet(msgspec.Struct, frozen=True, kw_only=True):
    """Errors on outcomes that no fit has used."""

    name: str
    cases: int
    error_median: float
    error_p90: float
    bias: float
    """Median of predicted over measured."""
    rank_correlation: float
    coverage: float
    """Part of the outcomes within the intervals of 90 %."""
    interval: float
    """Median of the upper end of the interval over the point."""
    constant: BaselineErrors
    """The median of the outcomes of the fit half; of all others where there is no fit half."""
    additive: BaselineErrors
    """Each gets its part of the summed demand."""
    after_observations: BaselineErrors
    """In file order, each program's earlier outcomes correct its next prediction."""


class JudgedPredictor(JudgedSet, frozen=True, kw_only=True):
    """Errors over all sets that judge, and by set."""

    sets: list[JudgedSet]
    not_counted: list[JudgedSet]
    """Sets that are not in the total, because the measurement itself is not repeatable enough."""


class JudgedCase(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction, its outcome, and the answers of simpler predictors, as speeds or as slowdowns."""

    name: str
    estimate: Estimate
    measured: float
    constant: float
    additive: float
    after: float


def judge_cases(outcomes: Sequence[MeasuredOutcome], parameters: Parameters, *, as_slowdown: bool) -> list[JudgedCase]:
    """Predict the held outcomes of one set."""
    held = [outcome for outcome in outcomes if outcome.is_held]
    fit = [outcome.speed for outcome in outcomes if outcome.is_fit]
    fit = fit or [outcome.speed for outcome in outcomes if not outcome.is_held] or [1.0]
    constant = statistics.median(fit)
    predictor = SpeedPredictor((), held[0].mode, parameters) if held else None
    cases = []
    for outcome in held:
        assert predictor is not None
        raw = predictor.predict([outcome.job], [outcome.spot])
        corrected = predictor.corrected(Speeds(*raw), [outcome.profile], [outcome.co_runners])
        estimate, after = predictor.interval(float(raw.point[0, 0])), float(corrected.point[0, 0])
        predictor.learn(outcome.profile, outcome.co_runners, estimate.point, outcome.speed)
        values = (outcome.speed, constant, outcome.adds_up, after)
        if as_slowdown:
            estimate, values = estimate.inverse(), (1 / values[0], 1 / values[1], 1 / values[2], 1 / values[3])
        cases.append(
            JudgedCase(
                name=f"{outcome.source}: {outcome.name}",
                estimate=estimate,
                measured=values[0],
                constant=values[1],
                additive=values[2],
                after=values[3],
            )
        )
    return cases


def judged_set(name: str, cases: Sequence[JudgedCase]) -> JudgedSet:
    """Summarize."""

    def errors(predicted: Callable[[JudgedCase], float]) -> ErrorSummary:
        return errors_of({case.name: relative(predicted(case), case.measured) for case in cases})

    def baseline(predicted: Callable[[JudgedCase], float]) -> BaselineErrors:
        summary = errors(predicted)
        return BaselineErrors(error_median=summary.median, error_p90=summary.p90)

    own = errors(lambda case: case.estimate.point)
    return JudgedSet(
        name=name,
        cases=len(cases),
        error_median=own.median,
        error_p90=own.p90,
        bias=round(statistics.median(case.estimate.point / case.measured for case in cases), 4),
        rank_correlation=round(
            _rank_correlation([case.estimate.point for case in cases], [case.measured for case in cases]), 4
        ),
        coverage=round(sum(case.estimate.holds(case.measured) for case in cases) / len(cases), 4),
        interval=round(statistics.median(case.estimate.high / case.estimate.point for case in cases), 4),
        constant=baseline(lambda case: case.constant),
        additive=baseline(lambda case: case.additive),
        after_observations=baseline(lambda case: case.after),
    )


def judge(
    name: str,
    sets: Mapping[str, Sequence[MeasuredOutcome]],
    uncounted: Mapping[str, Sequence[MeasuredOutcome]],
    parameters: Parameters,
    *,
    as_slowdown: bool,
) -> JudgedPredictor:
    """Judge all sets together and each on its own."""
    cases = {source: judge_cases(outcomes, parameters, as_slowdown=as_slowdown) for source, outcomes in sets.items()}
    others = {
        source: judge_cases(outcomes, parameters, as_slowdown=as_slowdown) for source, outcomes in uncounted.items()
    }
    total = judged_set(name, [case for own in cases.values() for case in own])
    return JudgedPredictor(
        **msgspec.structs.asdict(total),
        sets=[judged_set(source, own) for source, own in cases.items() if own],
        not_counted=[judged_set(source, own) for source, own in others.items() if own],
    )


def _rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the correlation of the ranks, ties averaged; 0 if one side is constant."""
    ranks = [_ranks(first), _ranks(second)]
    if any(len(set(own)) == 1 for own in ranks):
        return 0.0
    return statistics.correlation(*ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [statistics.fmean(places[value]) for value in values]
