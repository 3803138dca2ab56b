"""Simulate every combination at several loads under each sharing mode.

The server's own state machine serves each combination on a device with the latencies that RaPP measured. The offered
load is the same for all modes: every model requests the same part of the device, and all of them together a fraction of
the bound of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cotenant.predict.slowdown import share_interference
from cotenant.serve.model.run_times import RunTimes
from cotenant.units.instant import SECOND_NS
from cotenant_lab.serving.arrival_bound import most_in_time
from cotenant_lab.serving.ideal import ideal_goodput
from cotenant_lab.serving.modes import ADMITTED, AWARE, OURS, TEMPORAL, mode_of
from cotenant_lab.serving.simulated import ServedModel, ServingOutcome, Setting, arrivals_of, in_bursts, play, poisson
from cotenant_lab.study.claim import CONTENTION, Perturbation
from cotenant_lab.study.dstack.cases import ALL_UNITS, area_of
from cotenant_lab.study.workers import mapping

PUBLISHED: Final = (TEMPORAL, "fixed", "triton", *AWARE)
"""Baselines as their papers and manuals describe them."""
MODES: Final = (OURS, *PUBLISHED, *(name + ADMITTED for name in PUBLISHED))
POISSON: Final = "poisson"
BURSTS: Final = "bursts"
CAPACITY: Final = 1.0
"""The load at which the bound for the device is reached."""
WARM_NS: Final = SECOND_NS * 2 // 5
FOR_NS: Final = SECOND_NS // 4
_RHYTHMS: Final = {POISSON: poisson, BURSTS: in_bursts}
Progress = Callable[[str, int, int], None]


class OfferedLoad(msgspec.Struct, frozen=True):
    """Arrival process, and load as a fraction of the device's capacity."""

    rhythm: str
    load: float
    admitted_too: bool = True
    """Whether baselines also run with our admission; at loads less than the capacity it changes little."""


OFFERED_LOADS: Final = (
    OfferedLoad(POISSON, 0.1, admitted_too=False),
    OfferedLoad(POISSON, 0.3, admitted_too=False),
    OfferedLoad(POISSON, 0.6, admitted_too=False),
    OfferedLoad(BURSTS, 0.6, admitted_too=False),
    OfferedLoad(POISSON, 1.0),
    OfferedLoad(POISSON, 2.0),
)


class ServedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One combination at one load in one mode."""

    models: list[str]
    rhythm: str
    load: float
    mode: str
    goodput_per_s: float
    of_bound: float
    """Over the largest number of these requests that could be in time, of any models."""
    of_fair_bound: float
    """The same, if each model must have the same fraction of its requests in time."""
    of_ideal: float | None = None
    """Over the goodput of an ideal scheduler that preempts runs, with the same interference; ours at capacity only."""
    missed: float
    attainment_admitted: float
    utilization: float
    fairness: float
    device_fairness: float
    mean_batch: float


class CombinationTask(msgspec.Struct, frozen=True):
    """The runs that one process performs."""

    models: tuple[ServedModel, ...]
    offered: tuple[OfferedLoad, ...]
    modes: tuple[str, ...]
    seed: int
    for_ns: int = FOR_NS
    perturbation: Perturbation | None = None
    """What is wrong: the run times that the server assumes, or the slowdown of concurrent runs."""


def play_all(tasks: Sequence[CombinationTask], workers: int, progress: Progress) -> list[ServedRun]:
    """Run every task; results are in the order of tasks."""
    runs: list[ServedRun] = []
    progress("combinations", 0, len(tasks))
    with mapping(workers) as mapped:
        for done, task_runs in enumerate(mapped(play_task, tasks), 1):
            runs += task_runs
            progress("combinations", done, len(tasks))
    return runs


def play_task(task: CombinationTask) -> list[ServedRun]:
    """Run one combination at every load in every mode; arrivals are the same for all modes."""
    areas = {model.name: area_of(model) for model in task.models}
    setting = Setting(ALL_UNITS, task.for_ns, WARM_NS, task.seed, interference=share_interference())
    models = task.models
    if task.perturbation is not None:
        setting, models = _perturbed(setting, models, task.perturbation)
    runs = []
    for offered in task.offered:
        each_units = offered.load * ALL_UNITS / len(task.models)
        rates = {name: each_units * SECOND_NS / area for name, area in areas.items()}
        rhythms = {name: _RHYTHMS[offered.rhythm](rate) for name, rate in rates.items()}
        arrivals = arrivals_of(rhythms, models, setting)
        bounds = most_in_time(task.models, arrivals, setting)
        for mode in task.modes:
            if mode.endswith(ADMITTED) and not offered.admitted_too:
                continue
            outcome = play(models, arrivals, mode_of(mode), setting)
            ideal = None
            if mode == OURS and (offered.rhythm, offered.load) == (POISSON, CAPACITY):
                ideal = ideal_goodput(models, arrivals, setting)
            runs.append(_served_run(outcome, offered, bounds, ideal))
    return runs


def _perturbed(
    setting: Setting, models: tuple[ServedModel, ...], cell: Perturbation
) -> tuple[Setting, tuple[ServedModel, ...]]:
    if cell.what == CONTENTION:
        return msgspec.structs.replace(setting, contention=1 + (setting.contention - 1) * cell.factor), models
    return setting, tuple(
        msgspec.structs.replace(model, times=_scaled(model.times, cell.factor), truth=model.truth or model.times)
        for model in models
    )


def _scaled(times: RunTimes, factor: float) -> RunTimes:
    cells = tuple(
        msgspec.structs.replace(cell, typical_ns=round(cell.typical_ns * factor), high_ns=round(cell.high_ns * factor))
        for cell in times.times
    )
    return msgspec.structs.replace(times, times=cells)


def _served_run(
    outcome: ServingOutcome, offered: OfferedLoad, bounds: tuple[float, float], ideal: float | None
) -> ServedRun:
    any_bound, fair_bound = bounds
    return ServedRun(
        models=[model.name for model in outcome.models],
        rhythm=offered.rhythm,
        load=offered.load,
        mode=outcome.mode,
        goodput_per_s=outcome.goodput_per_s,
        of_bound=outcome.goodput_per_s / any_bound if any_bound else 1.0,
        of_fair_bound=outcome.goodput_per_s / fair_bound if fair_bound else 1.0,
        of_ideal=outcome.goodput_per_s / ideal if ideal else None,
        missed=outcome.missed,
        attainment_admitted=outcome.attainment_admitted,
        utilization=outcome.utilization,
        fairness=outcome.fairness,
        device_fairness=outcome.device_fairness,
        mean_batch=outcome.mean_batch,
    )
