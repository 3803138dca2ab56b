"""Which models are served together, and what is known of them? Those of D-STACK, as RaPP measured them on a V100."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.domain.curve import knee_pct
from cotenant.domain.instant import Duration
from cotenant.domain.runtimes import RunTime, RunTimes
from cotenant.experiment.serve.bound import least_area
from cotenant.experiment.serve.simulated import HIGH, NOISE, ServedModel
from cotenant.format.measured.rapp import Surface
from cotenant.policy.predict.latency import USUAL, Point, fit_surface
from cotenant.sim.physics.runs import RunSpeeds

ALL_UNITS: Final = 100
SIZES: Final = (2, 3, 4, 7)
WHOLE_QUOTA_PCT: Final = 100
SLO_TIMES: Final = 3.0
"""The objective, in times of what a single row takes on the whole device."""
NAMED: Final = {
    "AlexNet": "alexnet",
    "MobileNet": "mobilenet_v2",
    "ResNet-18": "resnet18",
    "ResNet-50": "resnet50",
    "VGG-19": "vgg19",
    "Inception": "inception_v3",
    "ResNeXt-50": "resnext50_32x4d",
}
"""By the name that D-STACK's paper has, that of RaPP."""
MISSING: Final = ("BERT",)
"""Of the paper's models, those that RaPP has not measured."""


class ModelShown(msgspec.Struct, frozen=True, kw_only=True):
    """One model: its curves, where they bend, and what it can have at most."""

    name: str
    published: str
    slo_ms: float
    latency_ms: dict[int, dict[int, float]]
    """By batch and share (percent), as measured."""
    knees_pct: dict[int, int]
    """By batch: by the measured curve."""
    fitted_knees_pct: dict[int, int]
    """By batch: by the analytical model (serial, parallel and memory part) fitted to the whole surface."""
    best_batch: int
    best_share_pct: int
    """What takes the least of the device for a row and is within half the objective."""
    alone_per_s: float
    """Rows a second in time at most, with the device to itself."""


def times_of(surface: Surface, name: str, noise: float = NOISE) -> RunTimes:
    """A model's measured latencies as a table, made even; `high_ns` is what the noise makes one run in 100 exceed."""
    measured = [
        RunTime(share, batch, round(latency * 1e6), 0)
        for (model, batch), quotas in sorted(surface.items())
        if model == name
        for share, latency in sorted(quotas.get(WHOLE_QUOTA_PCT, {}).items())
    ]
    raw = RunTimes(ALL_UNITS, tuple(measured), ALL_UNITS)
    speeds = RunSpeeds(raw)
    even = []
    for batch in raw.batches():
        for share in raw.widths():
            took_ns = round(speeds.took_ns(batch, share))
            even.append(RunTime(share, batch, took_ns, round(took_ns * (1 + HIGH * noise))))
    return RunTimes(ALL_UNITS, tuple(even), speeds.knee_units(max(raw.batches())))


def slo_of(times: RunTimes, factor: float = SLO_TIMES) -> Duration:
    """So many times what a single row takes on the whole device."""
    return round(factor * RunSpeeds(times).took_ns(1, times.all_units))


def served_models(surface: Surface, noise: float = NOISE) -> list[ServedModel]:
    """The named ones that were measured, in the paper's order."""
    known = {model for model, _ in surface}
    found = []
    for name in NAMED.values():
        if name in known:
            times = times_of(surface, name, noise)
            found.append(ServedModel(name, times, slo_of(times)))
    return found


def combinations(models: Sequence[ServedModel]) -> list[tuple[ServedModel, ...]]:
    """Every one of each size that there is."""
    return [chosen for size in SIZES for chosen in itertools.combinations(models, size)]


def area_of(model: ServedModel) -> float:
    """Of a row of it, at least."""
    return least_area(model.truth or model.times, model.slo_ns, model.batch_limit)


def shown(surface: Surface, model: ServedModel) -> ModelShown:
    """What there is to know of one."""
    batches = sorted(batch for name, batch in surface if name == model.name)
    curves = {batch: surface[model.name, batch][WHOLE_QUOTA_PCT] for batch in batches}
    points = [Point(share / 100, batch, latency) for batch, curve in curves.items() for share, latency in curve.items()]
    fitted = fit_surface(points, USUAL)
    speeds = RunSpeeds(model.times)
    half_ns = model.slo_ns / 2
    ways = [(batch, share) for batch in batches for share in speeds.widths if speeds.took_ns(batch, share) <= half_ns]
    best = min(ways, key=lambda way: (way[1] * speeds.took_ns(*way) / way[0], way))
    return ModelShown(
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
