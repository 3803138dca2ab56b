"""Evaluate predicted latency alone for models and shares that were not fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from cotenant.predict.curve import knee_pct
from cotenant.predict.kernel_scaling import analytical_knee_pct, stretch
from cotenant.predict.latency import (
    DEFAULT_PRIOR,
    LogErrorModel,
    Point,
    Surface,
    SurfacePrior,
    fit_log_error,
    fit_prior,
    fit_surface,
    nonnegative_least_squares,
)
from cotenant.workload.timeline import Timeline, profile_of
from cotenant_lab.data.parvagpu import Profiles
from cotenant_lab.data.rapp import Surface as ServerMeasurements
from cotenant_lab.study.predictor.comparison import (
    PredictionCase,
    PredictionComparison,
    compare_predictions,
    folds,
)

CONSTANT: Final = "a constant"
ADDITIVE: Final = "utilisation that adds up"
LINE: Final = "a line in batch/share"
_FOLDS: Final = 5
_INNER: Final = 4
_GPCS: Final = 7
_V100_SMS: Final = 80
_ANY: Final = LogErrorModel(0.0, 1.0, 1.0)
_SAME: Final = {"resnet50_4_fwd": "resnet50", "resnet101_4_fwd": "resnet101", "mobilenetv2_4_fwd": "mobilenet_v2"}
"""Kernel lists, and the model of the surface that was measured on the same kind of GPU at the same batch, 4."""

PointList = tuple[tuple[float, int], ...]
RAPP_POINTS: Final[dict[int, PointList]] = {
    1: ((1.0, 1),),
    3: ((1.0, 1), (0.2, 1), (1.0, 8)),
    5: ((1.0, 1), (0.3, 1), (0.1, 1), (1.0, 8), (0.2, 8)),
}
PARVA_POINTS: Final[PointList] = ((1.0, 1), (1 / _GPCS, 1), (1.0, 32), (1 / _GPCS, 8))


class KneeDistances(msgspec.Struct, frozen=True, kw_only=True):
    """Distance of knees from that of the whole measured curve, in points of share."""

    n: int
    fitted_median: float
    fitted_within_10: float
    whole_gpu_median: float
    """Of the assumption that every model needs the whole GPU."""


class AloneLatency(msgspec.Struct, frozen=True, kw_only=True):
    """Results, and the surfaces for plots."""

    comparisons: list[PredictionComparison]
    knees: KneeDistances
    analytical_knees: dict[str, tuple[int, int]]
    """By model: the knee by its kernels alone, and the measured one, in percent."""


class SurfacePlot(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction of one model for a plot: batch 1, by share in percent."""

    name: str
    measured: dict[int, float]
    surface: Surface


def evaluate_alone(
    surface: ServerMeasurements,
    profiles: Profiles,
    streams: Mapping[str, Timeline],
    progress: Callable[[str, int, int], None],
) -> tuple[AloneLatency, list[SurfacePlot]]:
    """Predict RaPP's and ParvaGPU's models, each from other models and a few points of its own."""
    programs = rapp_programs(surface)
    comparisons, plots, knees = [], [], None
    for count, points in RAPP_POINTS.items():
        cases, surfaces = _leave_out(programs, points, _FOLDS)
        name = f"latency by share and batch, {count} point{'s' if count > 1 else ''}"
        comparisons.append(
            compare_predictions(
                name, "RaPP, V100", "models and points not fitted", cases, rivals=(CONSTANT, ADDITIVE)[count < 3 :]
            )
        )
        if count == max(RAPP_POINTS):
            knees = _knees(programs, surfaces)
            plots = [_surface_plot(name, programs[name], surfaces[name]) for name in sorted(surfaces)]
        progress("latency alone", count, max(RAPP_POINTS))
    assert knees is not None
    programs = parva_programs(profiles)
    parva, _ = _leave_out(programs, PARVA_POINTS, len(programs))
    if parva:
        name, rivals = "latency by instance and batch", (CONSTANT, ADDITIVE)
        comparisons.append(compare_predictions(name, "ParvaGPU, A100", "models not fitted", parva, rivals=rivals))
    kernels, analytical = _by_kernels(surface, streams)
    if kernels:
        comparisons.append(
            compare_predictions(
                "latency by kernels and one point", "Orion to RaPP, V100", "shares", kernels, rivals=(ADDITIVE,)
            )
        )
    return AloneLatency(comparisons=comparisons, knees=knees, analytical_knees=analytical), plots


def rapp_programs(surface: ServerMeasurements) -> dict[str, list[Point]]:
    """Return every model at the whole time quota."""
    programs: dict[str, list[Point]] = {}
    for (model, batch), quotas in sorted(surface.items()):
        for share, latency in sorted(quotas.get(100, {}).items()):
            programs.setdefault(model, []).append(Point(share / 100, batch, latency))
    return programs


def usual_of(programs: Mapping[str, Sequence[Point]], points: PointList) -> SurfacePrior:
    """Learn a mixture from these programs, and the uncertainty with which they would predict each other."""
    if not programs:
        return DEFAULT_PRIOR
    errors = []
    for held_out in folds(list(programs), _INNER):
        others = [measured_points for name, measured_points in programs.items() if name not in held_out]
        if not others:
            continue
        teacher = fit_prior(others, [(1, _ANY)])
        for name in held_out:
            errors += _errors(programs[name], points, teacher)
    doubt = fit_log_error(errors) if errors else LogErrorModel(0.5, 0.5, 0.5)
    return fit_prior(list(programs.values()), [(1, doubt)])


def _leave_out(
    programs: Mapping[str, Sequence[Point]], chosen_points: PointList, count: int
) -> tuple[list[PredictionCase], dict[str, Surface]]:
    cases, surfaces = [], {}
    for held_out in folds(list(programs), count):
        usual = usual_of({name: points for name, points in programs.items() if name not in held_out}, chosen_points)
        for name in held_out:
            fitted_points, others = _split_points(programs[name], chosen_points)
            if not fitted_points or not others:
                continue
            surfaces[name] = fit_surface(fitted_points, usual)
            cases += [_case(name, surfaces[name], fitted_points, point) for point in others]
    return cases, surfaces


def _case(name: str, surface: Surface, fitted_points: Sequence[Point], point: Point) -> PredictionCase:
    constant = math.exp(sum(math.log(fitted_point.latency) for fitted_point in fitted_points) / len(fitted_points))
    base = fitted_points[0]
    scale = [(fitted_point.batch / fitted_point.share, fitted_point.latency) for fitted_point in fitted_points]
    system = np.array([[1 / latency, ratio / latency] for ratio, latency in scale])
    line = nonnegative_least_squares(system, np.ones(len(scale)))
    guesses = {
        CONSTANT: constant,
        ADDITIVE: base.latency * (point.batch / base.batch) * (base.share / point.share),
        LINE: float(line[0] + line[1] * point.batch / point.share),
    }
    case = f"{name} batch {point.batch} at {100 * point.share:.0f} %"
    return PredictionCase(case, surface.at(point.share, point.batch), point.latency, guesses)


def _errors(points: Sequence[Point], chosen_points: PointList, usual: SurfacePrior) -> list[tuple[float, float, float]]:
    fitted_points, others = _split_points(points, chosen_points)
    if not fitted_points:
        return []
    surface = fit_surface(fitted_points, usual)
    errors = []
    for point in others:
        nearest = min(fitted_points, key=lambda fitted_point: sum(_octaves(point, fitted_point)))
        error = abs(math.log(surface.latency(point.share, point.batch) / point.latency))
        errors.append((error, *_octaves(point, nearest)))
    return errors


def _octaves(first: Point, second: Point) -> tuple[float, float]:
    return abs(math.log2(first.share / second.share)), abs(math.log2(first.batch / second.batch))


def _split_points(points: Sequence[Point], chosen_points: PointList) -> tuple[list[Point], list[Point]]:
    """Split into points measured first, in the order of the places, and the others."""
    by_position = {(round(point.share, 6), point.batch): point for point in points}
    fitted_points = [
        by_position[round(share, 6), batch] for share, batch in chosen_points if (round(share, 6), batch) in by_position
    ]
    return fitted_points, [point for point in points if point not in fitted_points]


def parva_programs(profiles: Profiles) -> dict[str, list[Point]]:
    programs: dict[str, list[Point]] = {}
    for (model, gpcs, batch), by_count in sorted(profiles.latency_s.items()):
        if 1 in by_count:
            programs.setdefault(model, []).append(Point(gpcs / _GPCS, batch, by_count[1]))
    return programs


def _knees(programs: Mapping[str, Sequence[Point]], surfaces: Mapping[str, Surface]) -> KneeDistances:
    fitted, whole_gpu = [], []
    for name, surface in surfaces.items():
        for batch in sorted({point.batch for point in programs[name]}):
            measured = {
                round(100 * program.share): program.latency for program in programs[name] if program.batch == batch
            }
            knee = knee_pct(measured)
            fitted.append(abs(surface.knee_pct(batch, sorted(measured)) - knee))
            whole_gpu.append(100 - knee)
    return KneeDistances(
        n=len(fitted),
        fitted_median=float(np.median(fitted)),
        fitted_within_10=round(sum(distance <= 10 for distance in fitted) / len(fitted), 4),
        whole_gpu_median=float(np.median(whole_gpu)),
    )


def _surface_plot(name: str, points: Sequence[Point], surface: Surface) -> SurfacePlot:
    measured = {round(100 * point.share): point.latency for point in points if point.batch == 1}
    return SurfacePlot(name=name, measured=measured, surface=surface)


def _by_kernels(
    surface: ServerMeasurements, streams: Mapping[str, Timeline]
) -> tuple[list[PredictionCase], dict[str, tuple[int, int]]]:
    """Predict curves of RaPP from kernel lists of Orion: only the latency on the whole GPU is given."""
    cases, knees = [], {}
    for stream, model in _SAME.items():
        curve = surface.get((model, 4), {}).get(100, {})
        if stream not in streams or 100 not in curve:
            continue
        listed = profile_of(streams[stream])
        span_ns = max(round(curve[100] * 1e6), listed.busy_ns)
        profile = msgspec.structs.replace(listed, span_ns=span_ns)
        knees[model] = (analytical_knee_pct(profile, _V100_SMS), knee_pct(curve))
        for share, latency in sorted(curve.items()):
            if share == 100:
                continue
            predicted = stretch(profile, share / 100, _V100_SMS).times(curve[100])
            guesses = {CONSTANT: curve[100], ADDITIVE: curve[100] * 100 / share}
            cases.append(PredictionCase(f"{model} batch 4 at {share} %", predicted, latency, guesses))
    return cases, knees
