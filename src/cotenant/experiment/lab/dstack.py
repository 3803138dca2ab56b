"""How much do many models get from one GPU, in every way to share it? Every combination, at several loads.

Each combination is served by the server's own machine on a device that takes as long as RaPP measured. What is offered
is the same for all ways: every model asks for the same part of the device, and all together for so much of what the
bound says the device can do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cotenant.domain.instant import SECOND_NS
from cotenant.experiment.lab.dstack_cases import ALL_UNITS, area_of
from cotenant.experiment.lab.workers import mapping
from cotenant.experiment.serve.gathered import most_in_time
from cotenant.experiment.serve.simulated import Outcome, ServedModel, Setting, arrivals_of, in_bursts, play, poisson
from cotenant.experiment.serve.ways import ADMITTED, AWARE, OURS, TEMPORAL, way_of

PUBLISHED: Final = (TEMPORAL, "fixed", "triton", *AWARE)
"""As their papers and manuals say."""
WAYS: Final = (OURS, *PUBLISHED, *(name + ADMITTED for name in PUBLISHED))
POISSON: Final = "poisson"
BURSTS: Final = "bursts"
WARM_NS: Final = SECOND_NS * 2 // 5
FOR_NS: Final = SECOND_NS // 4
_RHYTHMS: Final = {POISSON: poisson, BURSTS: in_bursts}
Progress = Callable[[str, int, int], None]


class Asked(msgspec.Struct, frozen=True):
    """How requests come, and how many: in parts of what the device can do."""

    rhythm: str
    load: float
    admitted_too: bool = True
    """Whether baselines are also played with our admission; below capacity it changes little."""


ASKED: Final = (
    Asked(POISSON, 0.1, admitted_too=False),
    Asked(POISSON, 0.3, admitted_too=False),
    Asked(POISSON, 0.6, admitted_too=False),
    Asked(BURSTS, 0.6, admitted_too=False),
    Asked(POISSON, 1.0),
    Asked(POISSON, 2.0),
)


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One combination, at one load, in one way."""

    models: list[str]
    rhythm: str
    load: float
    way: str
    goodput_per_s: float
    of_bound: float
    """Of the most of these requests that could be in time, whosever they are."""
    of_fair_bound: float
    """Of the same, if each model is to have the same part of its requests in time."""
    missed: float
    attainment_admitted: float
    utilization: float
    fairness: float
    device_fairness: float
    mean_batch: float


class Task(msgspec.Struct, frozen=True):
    """What one process plays."""

    models: tuple[ServedModel, ...]
    asked: tuple[Asked, ...]
    ways: tuple[str, ...]
    seed: int
    for_ns: int = FOR_NS


def play_all(tasks: Sequence[Task], workers: int, progress: Progress) -> list[Played]:
    """Every task, in order, whoever plays it."""
    found: list[Played] = []
    progress("combinations", 0, len(tasks))
    with mapping(workers) as each:
        for done, played in enumerate(each(play_task, tasks), 1):
            found += played
            progress("combinations", done, len(tasks))
    return found


def play_task(task: Task) -> list[Played]:
    """One combination at every load in every way; the arrivals are the same for all ways."""
    areas = {model.name: area_of(model) for model in task.models}
    setting = Setting(ALL_UNITS, task.for_ns, WARM_NS, task.seed)
    found = []
    for asked in task.asked:
        each_units = asked.load * ALL_UNITS / len(task.models)
        rates = {name: each_units * SECOND_NS / area for name, area in areas.items()}
        rhythms = {name: _RHYTHMS[asked.rhythm](rate) for name, rate in rates.items()}
        arrivals = arrivals_of(rhythms, task.models, setting)
        bounds = most_in_time(task.models, arrivals, setting)
        for way in task.ways:
            if way.endswith(ADMITTED) and not asked.admitted_too:
                continue
            outcome = play(task.models, arrivals, way_of(way), setting)
            found.append(_played(outcome, asked, bounds))
    return found


def _played(outcome: Outcome, asked: Asked, bounds: tuple[float, float]) -> Played:
    most, fair = bounds
    return Played(
        models=[one.name for one in outcome.models],
        rhythm=asked.rhythm,
        load=asked.load,
        way=outcome.way,
        goodput_per_s=outcome.goodput_per_s,
        of_bound=outcome.goodput_per_s / most if most else 1.0,
        of_fair_bound=outcome.goodput_per_s / fair if fair else 1.0,
        missed=outcome.missed,
        attainment_admitted=outcome.attainment_admitted,
        utilization=outcome.utilization,
        fairness=outcome.fairness,
        device_fairness=outcome.device_fairness,
        mean_batch=outcome.mean_batch,
    )
