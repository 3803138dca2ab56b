"""Cases: the pairs of bench `fill`, a sweep over gaps, and every recorded timeline."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import BACK_TO_BACK, TRAINING, Arrival, Launch, Workload
from cotenant_lab.bench.fill.pairs import PLANS, LoadRecipe, MissingPair, Pair, read_load, read_pairs
from cotenant_lab.study.fikit.run import FikitCase

RUN_NS: Final = 120 * MILLISECOND_NS
QUICK_RUN_NS: Final = 40 * MILLISECOND_NS
BUSY: Final = (0.05, 0.2, 0.5, 0.8, 0.95, 0.99)
ONLINE_US: Final = (20, 200)
OFFLINE_US: Final = (10, 100, 500, 2000)
JITTER_PPM: Final = (0, 100_000, 500_000)
LAUNCHES_MOST: Final = 1500
"""Launches from the start of a timeline: a request of a service has no more."""
_KERNELS_LEAST: Final = 40
_REQUEST: Final = 25
_SMS: Final = 80
_INFLATED: Final = 0.25
"""Factor for host times that a profiler with Python stacks inflated, as in the pairs of bench `fill`."""
_TRAININGS: Final = {
    "train resnet50 b32": "orion/model_kernels/resnet50_32_fb1.csv",
    "train mobilenetv2 b64": "orion/model_kernels/mobilenetv2_64_fb1.csv",
    "train bert b8": "orion/model_kernels/bert_8_fb1.csv",
}
_TRAINING_HOST_NS: Final = 4 * MICROSECOND_NS


def catalogue(directory: Path, *, quick: bool) -> tuple[list[FikitCase], list[MissingPair]]:
    """Return the pairs of `bench fill`."""
    pairs, missing = read_pairs(directory, PLANS, QUICK_RUN_NS if quick else RUN_NS)
    return [FikitCase(pair=pair) for pair in pairs], missing


def sweep(*, quick: bool) -> list[FikitCase]:
    """Return synthetic cases over online utilization, kernel length and host jitter."""
    run_ns = (QUICK_RUN_NS if quick else RUN_NS) // 2
    jitters = JITTER_PPM[1:2] if quick else JITTER_PPM
    return [
        FikitCase(
            pair=Pair(
                f"busy {busy:.0%}, {online_us} us + {offline_us} us, jitter {jitter / 1e6:.0%}",
                "sweep",
                synthetic(f"busy {busy:.0%}", online_us, round(online_us / busy * 1000), BACK_TO_BACK, run_ns),
                synthetic("offline", offline_us, 4000, TRAINING, run_ns),
            ),
            jitter_ppm=jitter,
        )
        for busy in BUSY
        for online_us in ONLINE_US
        for offline_us in OFFLINE_US
        for jitter in jitters
    ]


def synthetic(name: str, kernel_us: int, interval_ns: int, arrival: Arrival, run_ns: int) -> Workload:
    """Return kernels of one length that fill every SM, launched at a constant interval."""
    kernel = KernelIdentity(f"synthetic {kernel_us} us", (_SMS, 1, 1), (1024, 1, 1))
    launch = Launch(kernel, kernel_us * MICROSECOND_NS, interval_ns, registers=64)
    request_ns = _REQUEST * max(interval_ns, kernel_us * MICROSECOND_NS)
    return Workload(name, (launch,) * _REQUEST, arrival, max(round(run_ns / request_ns), 3))


def timelines(directory: Path, *, quick: bool) -> tuple[list[FikitCase], list[MissingPair]]:
    """Return every timeline with host times and every TensorRT engine as online program, with several trainings."""
    run_ns = QUICK_RUN_NS if quick else RUN_NS
    trainings = {
        name: LoadRecipe(name=name, path=path, host_ns=_TRAINING_HOST_NS, arrival=TRAINING)
        for name, path in _TRAININGS.items()
        if (directory / path).is_file()
    }
    if not trainings:
        return [], [MissingPair("timelines", f"no training kernels exist in {directory / 'orion/model_kernels'}")]
    offline = [read_load(directory, recipe) for recipe in list(trainings.values())[: 1 if quick else None]]
    recipes = [*_recorded(directory), *_engines(directory)]
    cases, missing = [], []
    for family, recipe in recipes[:: 4 if quick else 1]:
        load = read_load(directory, recipe, run_ns)
        if not recipe.graph and (len(load.launches) < _KERNELS_LEAST or not load.host_ns):
            missing.append(
                MissingPair(recipe.name, f"has {len(load.launches)} launches and {load.host_ns} ns of host time")
            )
            continue
        cases += [
            FikitCase(pair=Pair(f"{load.name} + {training.name}", family, load, training)) for training in offline
        ]
    return cases, missing


def _recorded(directory: Path) -> Iterator[tuple[str, LoadRecipe]]:
    """Yield eager programs; those recorded with Python stacks also with a quarter of their host times."""
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
            LoadRecipe(name=name, path=path, part=(0, LAUNCHES_MOST)),
        )
        if inflated:
            yield "eager", LoadRecipe(name=f"{name} /4", path=path, part=(0, LAUNCHES_MOST), scale=_INFLATED)


def _engines(directory: Path) -> Iterator[tuple[str, LoadRecipe]]:
    for path in sorted((directory / "trt_engine_explorer").glob("*.engine.profile.json")):
        name = path.name.removesuffix(".onnx.engine.profile.json")
        yield "graph", LoadRecipe(name=f"trt {name}", path=f"trt_engine_explorer/{path.name}", graph=True)
