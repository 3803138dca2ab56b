"""Predict latency curves and knees from a few measured shares, and compare with the rest."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.predict.curve import knee_pct
from cotenant.softgpu.sim.device import preset
from cotenant_lab.data.rapp import CurveName, Surface
from cotenant_lab.physics import share
from cotenant_lab.study.error import BEYOND, ErrorCheck, UnexplainedCase, errors_of, relative

FITTED: Final = 5
QUOTA_PCT: Final = 100
"""The device model has no time quotas; points with less than the whole time are not used."""
_MS: Final = 1e6
_RISE: Final = 0.2
_EVERY_FIFTH: Final = 5


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One model at one batch: measured, and predicted from the fitted shares. Latencies in ms by share."""

    name: str
    measured: dict[int, float]
    predicted: dict[int, float]
    fitted: list[int]
    request: share.Request

    def held_out(self) -> list[int]:
        """Return the shares that were not fitted."""
        return [share_pct for share_pct in self.measured if share_pct not in self.fitted]

    def median_error(self) -> float:
        return statistics.median(
            relative(self.predicted[share_pct], self.measured[share_pct]) for share_pct in self.held_out()
        )


class CurveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a curve for the report."""

    curve: str
    median_error: float
    worst_error: float
    worst_share_pct: int
    knee_pct: int
    knee_found_pct: int
    host_ms: float
    wide_sm_ms: float
    narrow_ms: float


class KneeErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Distance of the predicted knee from that of the whole curve, in percentage points of the GPU."""

    n: int
    median_points: float
    p90_points: float
    within_5_points: float
    worst_points: int
    worst_case: str
    interpolated_within_5_points: float


class ShareResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all curves."""

    check: ErrorCheck
    models: int
    curves: list[CurveSummary]
    too_short: int
    fitted_shares_pct: list[int]
    lean: float
    worst_model: str
    worst_model_median: float
    knees: KneeErrors
    unexplained: list[UnexplainedCase]


def predict(surface: Surface, progress: Callable[[str, int, int], None]) -> tuple[list[Curve], int, float]:
    """Predict every curve from a few shares; also return how many were too short, and the lean."""
    config = preset("v100")
    whole = {name: quotas.get(QUOTA_PCT, {}) for name, quotas in surface.items()}
    usable = {name: curve for name, curve in whole.items() if len(curve) > FITTED}
    fitted = {name: share.fit_shares(list(curve), FITTED) for name, curve in usable.items()}
    latency_by_cap = {
        name: {
            cap: usable[name][share_pct] * _MS
            for share_pct, cap in zip(shares, share.caps(shares, config), strict=True)
        }
        for name, shares in fitted.items()
    }
    lean = share.choose_lean([curve for name, curve in sorted(latency_by_cap.items())][::_EVERY_FIFTH])
    curves = []
    for index, (name, points) in enumerate(latency_by_cap.items()):
        request, _ = share.fit_request(points, lean)
        shares = sorted(usable[name])
        predicted = {
            share_pct: share.latency_ns(request, config, cap) / _MS
            for share_pct, cap in zip(shares, share.caps(shares, config), strict=True)
        }
        curves.append(
            Curve(
                name=_curve_name(name),
                measured={share_pct: usable[name][share_pct] for share_pct in shares},
                predicted=predicted,
                fitted=fitted[name],
                request=request,
            )
        )
        progress("latency against share", index + 1, len(latency_by_cap))
    return curves, len(whole) - len(usable), lean


def evaluate_shares(curves: Sequence[Curve], too_short: int, lean: float) -> ShareResults:
    """Return errors on the held-out shares, with those of interpolation."""
    errors: dict[str, float] = {}
    straight: dict[str, float] = {}
    inverse: dict[str, float] = {}
    for curve in curves:
        fitted_points = {share_pct: curve.measured[share_pct] for share_pct in curve.fitted}
        for share_pct in curve.held_out():
            case, measured = f"{curve.name} at {share_pct} %", curve.measured[share_pct]
            errors[case] = relative(curve.predicted[share_pct], measured)
            straight[case] = relative(_between(fitted_points, share_pct, float), measured)
            inverse[case] = relative(_between(fitted_points, share_pct, lambda share_pct: -1 / share_pct), measured)
    check = ErrorCheck(
        name="latency by share",
        errors=errors_of(errors),
        target=None,
        met=None,
        baselines={"straight line between shares": errors_of(straight), "line in 1/share": errors_of(inverse)},
    )
    by_model: dict[str, list[float]] = {}
    for curve in curves:
        held = [relative(curve.predicted[share_pct], curve.measured[share_pct]) for share_pct in curve.held_out()]
        by_model.setdefault(curve.name.split(" ")[0], []).extend(held)
    worst_model = max(sorted(by_model), key=lambda model: statistics.median(by_model[model]))
    return ShareResults(
        check=check,
        models=len(by_model),
        curves=[_summary(curve) for curve in curves],
        too_short=too_short,
        fitted_shares_pct=curves[0].fitted,
        lean=lean,
        worst_model=worst_model,
        worst_model_median=round(statistics.median(by_model[worst_model]), 6),
        knees=_knees(curves),
        unexplained=[case for curve in curves for case in _unexplained(curve)],
    )


def _curve_name(name: CurveName) -> str:
    return f"{name[0]} batch {name[1]}"


def _summary(curve: Curve) -> CurveSummary:
    errors = {
        share_pct: relative(curve.predicted[share_pct], curve.measured[share_pct]) for share_pct in curve.held_out()
    }
    worst = max(sorted(errors), key=lambda share_pct: errors[share_pct])
    return CurveSummary(
        curve=curve.name,
        median_error=round(curve.median_error(), 6),
        worst_error=round(errors[worst], 6),
        worst_share_pct=worst,
        knee_pct=knee_pct(curve.measured),
        knee_found_pct=knee_pct(curve.predicted),
        host_ms=round(curve.request.host_ns / _MS, 4),
        wide_sm_ms=round(curve.request.wide_sm_ns / _MS, 4),
        narrow_ms=round(curve.request.narrow_ns / _MS, 4),
    )


def _knees(curves: Sequence[Curve]) -> KneeErrors:
    points, interpolated_points = {}, {}
    for curve in curves:
        knee = knee_pct(curve.measured)
        fitted_points = {share_pct: curve.measured[share_pct] for share_pct in curve.fitted}
        interpolated = {share_pct: _between(fitted_points, share_pct, float) for share_pct in curve.measured}
        points[curve.name] = float(abs(knee_pct(curve.predicted) - knee))
        interpolated_points[curve.name] = abs(knee_pct(interpolated) - knee)
    short = errors_of(points)
    return KneeErrors(
        n=short.n,
        median_points=short.median,
        p90_points=short.p90,
        within_5_points=round(sum(value <= 5 for value in points.values()) / len(points), 4),
        worst_points=int(short.worst),
        worst_case=short.worst_case,
        interpolated_within_5_points=round(
            sum(value <= 5 for value in interpolated_points.values()) / len(interpolated_points), 4
        ),
    )


def _unexplained(curve: Curve) -> list[UnexplainedCase]:
    """Return shares with large errors, and curves with large median errors."""
    cases = []
    worst = max(
        curve.held_out(),
        key=lambda share_pct: (relative(curve.predicted[share_pct], curve.measured[share_pct]), share_pct),
    )
    error = relative(curve.predicted[worst], curve.measured[worst])
    if error > BEYOND or curve.median_error() > _RISE:
        cases.append(
            UnexplainedCase(
                check="latency by share",
                case=f"{curve.name} at {worst} %",
                error=round(error, 6),
                predicted_ms=round(curve.predicted[worst], 6),
                measured_ms=round(curve.measured[worst], 6),
                reason=_reason(curve.measured),
            )
        )
    return cases


def _reason(measured: Mapping[int, float]) -> str:
    """Describe what the measured curve shows."""
    shares = sorted(measured)
    least = measured[shares[0]]
    for share_pct in shares:
        if measured[share_pct] > (1 + _RISE) * least:
            return f"measured latency rises with the share (at {share_pct} % by {measured[share_pct] / least - 1:.0%})"
        least = min(least, measured[share_pct])
    drops = {
        larger: measured[smaller] / measured[larger] / (larger / smaller)
        for smaller, larger in itertools.pairwise(shares)
    }
    steepest = max(shares[1:], key=lambda share_pct: drops[share_pct])
    if drops[steepest] > 1 + _RISE:
        return f"measured latency falls faster than the share grows (at {steepest} %)"
    return "no feature of the measured curve found that the model lacks"


def _between(known: Mapping[int, float], share_pct: int, axis: Callable[[int], float]) -> float:
    """Interpolate linearly between the two nearest known shares."""
    shares = sorted(known)
    upper = min(max(1, bisect.bisect_left(shares, share_pct)), len(shares) - 1)
    low, high = shares[upper - 1], shares[upper]
    part = (axis(share_pct) - axis(low)) / (axis(high) - axis(low))
    return known[low] + part * (known[high] - known[low])
