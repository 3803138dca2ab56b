"""Cases: the models of D-STACK with the latencies that RaPP measured on a V100, and their combinations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.predict.curve import knee_pct
from cotenant.predict.latency import DEFAULT_PRIOR, Point, fit_surface
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.serve.sim.run_speed import RunSpeeds
from cotenant.units.instant import Duration
from cotenant_lab.data.rapp import Surface
from cotenant_lab.serving.bound import least_area
from cotenant_lab.serving.simulated import HIGH, NOISE, ServedModel

ALL_UNITS: Final = 100
SIZES: Final = (2, 3, 4, 7)
WHOLE_QUOTA_PCT: Final = 100
SLO_TIMES: Final = 3.0
"""The objective as a multiple of the duration of a single row on the whole device."""
NAMED: Final = {
    "AlexNet": "alexnet",
    "MobileNet": "mobilenet_v2",
    "ResNet-18": "resnet18",
    "ResNet-50": "resnet50",
    "VGG-19": "vgg19",
    "Inception": "inception_v3",
    "ResNeXt-50": "resnext50_32x4d",
}
"""RaPP's name of each model, by the name in D-STACK's paper."""
MISSING: Final = ("BERT",)
"""Models of the paper that RaPP has not measured."""


class ModelCurves(msgspec.Struct, frozen=True, kw_only=True):
    """One model: its latency curves, their knees, and its highest rate."""

    name: str
    published: str
    slo_ms: float
    latency_ms: dict[int, dict[int, float]]
    """By batch and share (percent), as measured."""
    knees_pct: dict[int, int]
    """By batch: knee of the measured curve."""
    fitted_knees_pct: dict[int, int]
    """By batch: knee of the analytical model (serial, parallel and memory part) fitted to the whole surface."""
    best_batch: int
    best_share_pct: int
    """The batch and share with the least device time per row within half the objective."""
    alone_per_s: float
    """Highest rate of rows in time with the whole device."""


def times_of(surface: Surface, name: str, noise: float = NOISE) -> RunTimes:
    """Return a model's measured latencies as a monotonic table; `high_ns` is the 99th percentile with noise."""
    measured = [
        RunTime(share, batch, round(latency * 1e6), 0)
        for (model, batch), quotas in sorted(surface.items())
        if model == name
        for share, latency in sorted(quotas.get(WHOLE_QUOTA_PCT, {}).items())
    ]
    raw = RunTimes(ALL_UNITS, tuple(measured), ALL_UNITS)
    speeds = RunSpeeds(raw)
    smoothed = []
    for batch in raw.batches():
        for share in raw.widths():
            took_ns = round(speeds.run_ns(batch, share))
            smoothed.append(RunTime(share, batch, took_ns, round(took_ns * (1 + HIGH * noise))))
    return RunTimes(ALL_UNITS, tuple(smoothed), speeds.knee_units(max(raw.batches())))


def slo_of(times: RunTimes, factor: float = SLO_TIMES) -> Duration:
    """Return `factor` times the duration of a single row on the whole device."""
    return round(factor * RunSpeeds(times).run_ns(1, times.all_units))


def served_models(surface: Surface, noise: float = NOISE) -> list[ServedModel]:
    """Return the named models that were measured, in the paper's order."""
    measured = {model for model, _ in surface}
    models = []
    for name in NAMED.values():
        if name in measured:
            times = times_of(surface, name, noise)
            models.append(ServedModel(name, times, slo_of(times)))
    return models


def combinations(models: Sequence[ServedModel]) -> list[tuple[ServedModel, ...]]:
    """Return every combination of each size."""
    return [chosen for size in SIZES for chosen in itertools.combinations(models, size)]


def area_of(model: ServedModel) -> float:
    """Return the least device time of a row."""
    return least_area(model.truth or model.times, model.slo_ns, model.batch_limit)


def model_curves(surface: Surface, model: ServedModel) -> ModelCurves:
    """Return the curves and knees of a model."""
    batches = sorted(batch for name, batch in surface if name == model.name)
    curves = {batch: surface[model.name, batch][WHOLE_QUOTA_PCT] for batch in batches}
    points = [Point(share / 100, batch, latency) for batch, curve in curves.items() for share, latency in curve.items()]
    fitted = fit_surface(points, DEFAULT_PRIOR)
    speeds = RunSpeeds(model.times)
    half_ns = model.slo_ns / 2
    choices = [(batch, share) for batch in batches for share in speeds.widths if speeds.run_ns(batch, share) <= half_ns]
    best = min(choices, key=lambda choice: (choice[1] * speeds.run_ns(*choice) / choice[0], choice))
    return ModelCurves(
        name=model.name,
        published=next(published for published, name in NAMED.items() if name == model.name),
        slo_ms=round(model.slo_ns / 1e6, 3),
        latency_ms={batch: dict(sorted(curve.items())) for batch, curve in curves.items()},
        knees_pct={batch: knee_pct(curve) for batch, curve in curves.items()},
        fitted_knees_pct={batch: fitted.knee_pct(batch, sorted(curve)) for batch, curve in curves.items()},
        best_batch=best[0],
        best_share_pct=best[1],
        alone_per_s=round(ALL_UNITS * 1e9 / area_of(model), 3),
    )
