"""Which pairs is gap filling judged by? The bench's own, a sweep over gaps, and every timeline that can be one side."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cotenant.domain.instant import MICROSECOND_NS, MILLISECOND_NS
from cotenant.domain.kernel import KernelIdentity
from cotenant.domain.load import BACK_TO_BACK, TRAINING, Arrival, Launch, Load
from cotenant.experiment.fill.pairs import PLANS, Missing, Pair, Recipe, read_load, read_pairs
from cotenant.experiment.lab.fikit import Case

RUN_NS: Final = 120 * MILLISECOND_NS
QUICK_RUN_NS: Final = 40 * MILLISECOND_NS
BUSY: Final = (0.05, 0.2, 0.5, 0.8, 0.95, 0.99)
ONLINE_US: Final = (20, 200)
OFFLINE_US: Final = (10, 100, 500, 2000)
JITTER_PPM: Final = (0, 100_000, 500_000)
LAUNCHES_MOST: Final = 1500
"""Of a timeline, from its beginning: a request of a service is not longer."""
_KERNELS_LEAST: Final = 40
_REQUEST: Final = 25
_SMS: Final = 80
_INFLATED: Final = 0.25
"""Of the host's time where a profiler with Python stacks inflated it; the pairs of the bench use the same."""
_TRAININGS: Final = {
    "train resnet50 b32": "orion/model_kernels/resnet50_32_fb1.csv",
    "train mobilenetv2 b64": "orion/model_kernels/mobilenetv2_64_fb1.csv",
    "train bert b8": "orion/model_kernels/bert_8_fb1.csv",
}
_TRAINING_HOST_NS: Final = 4 * MICROSECOND_NS


def catalogue(directory: Path, *, quick: bool) -> tuple[list[Case], list[Missing]]:
    """The pairs of `bench fill`."""
    pairs, missing = read_pairs(directory, PLANS, QUICK_RUN_NS if quick else RUN_NS)
    return [Case(pair=pair) for pair in pairs], missing


def sweep(*, quick: bool) -> list[Case]:
    """Made up: how busy the online program is, how long kernels are, how much its host varies."""
    run_ns = (QUICK_RUN_NS if quick else RUN_NS) // 2
    jitters = JITTER_PPM[1:2] if quick else JITTER_PPM
    return [
        Case(
            pair=Pair(
                f"busy {busy:.0%}, {online_us} us + {offline_us} us, jitter {jitter / 1e6:.0%}",
                "sweep",
                made_up(f"busy {busy:.0%}", online_us, round(online_us / busy * 1000), BACK_TO_BACK, run_ns),
                made_up("offline", offline_us, 4000, TRAINING, run_ns),
            ),
            jitter_ppm=jitter,
        )
        for busy in BUSY
        for online_us in ONLINE_US
        for offline_us in OFFLINE_US
        for jitter in jitters
    ]


def made_up(name: str, kernel_us: int, interval_ns: int, arrival: Arrival, run_ns: int) -> Load:
    """Kernels of one length that take every SM, launched at one interval."""
    kernel = KernelIdentity(f"made up {kernel_us} us", (_SMS, 1, 1), (1024, 1, 1))
    each = Launch(kernel, kernel_us * MICROSECOND_NS, interval_ns, registers=64)
    request_ns = _REQUEST * max(interval_ns, kernel_us * MICROSECOND_NS)
    return Load(name, (each,) * _REQUEST, arrival, max(round(run_ns / request_ns), 3))


def timelines(directory: Path, *, quick: bool) -> tuple[list[Case], list[Missing]]:
    """Every timeline with host times as the online program, and every TensorRT engine, against several trainings."""
    run_ns = QUICK_RUN_NS if quick else RUN_NS
    below = {
        name: Recipe(name=name, path=path, host_ns=_TRAINING_HOST_NS, arrival=TRAINING)
        for name, path in _TRAININGS.items()
        if (directory / path).is_file()
    }
    if not below:
        return [], [Missing("timelines", f"there are no training kernels in {directory / 'orion/model_kernels'}")]
    offline = [read_load(directory, recipe) for recipe in list(below.values())[: 1 if quick else None]]
    recipes = [*_recorded(directory), *_engines(directory)]
    cases, missing = [], []
    for family, recipe in recipes[:: 4 if quick else 1]:
        load = read_load(directory, recipe, run_ns)
        if not recipe.graph and (len(load.launches) < _KERNELS_LEAST or not load.host_ns):
            missing.append(
                Missing(recipe.name, f"has {len(load.launches)} launches and {load.host_ns} ns of host time")
            )
            continue
        cases += [Case(pair=Pair(f"{load.name} + {one.name}", family, load, one)) for one in offline]
    return cases, missing


def _recorded(directory: Path) -> Iterator[tuple[str, Recipe]]:
    """Eager programs; those that were recorded with Python stacks also with a quarter of their host times."""
    summary = directory / "kernel_timelines" / "SUMMARY.csv"
    if not summary.is_file():
        return
    with summary.open(encoding="utf-8") as file:
        rows: Sequence[dict[str, str]] = list(csv.DictReader(file))
    for row in rows:
        path, name = f"kernel_timelines/{row['file']}", row["file"].removesuffix(".csv.gz")
        if not (directory / path).is_file() or "gpu_only" in name or "graph" in name or "piecewise" in name:
            continue
        inflated = int(float(row["python_stack_events"] or 0)) > 0
        yield (
            "inflated" if inflated else "eager",
            Recipe(name=name, path=path, part=(0, LAUNCHES_MOST)),
        )
        if inflated:
            yield "eager", Recipe(name=f"{name} /4", path=path, part=(0, LAUNCHES_MOST), scale=_INFLATED)


def _engines(directory: Path) -> Iterator[tuple[str, Recipe]]:
    for path in sorted((directory / "trt_engine_explorer").glob("*.engine.profile.json")):
        name = path.name.removesuffix(".onnx.engine.profile.json")
        yield "graph", Recipe(name=f"trt {name}", path=f"trt_engine_explorer/{path.name}", graph=True)
