"""How soon does control come to rest after the load has changed, and what does that cost? Simulated."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS
from cotenant.domain.load import Load
from cotenant.domain.rhythm import Steps
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.arkgpu_cases import OBJECTIVES, OFFLINE_PRIORITY, ONLINE_PRIORITY, Mixes, Service
from cotenant.experiment.lab.fikit import Progress
from cotenant.experiment.lab.muxflow import Distribution, distribution_of
from cotenant.experiment.lab.workers import mapping
from cotenant.experiment.together import Guest, Outcome, Run, Turn
from cotenant.experiment.ways import share
from cotenant.sim.arrivals import arrivals_of, driven

PART: Final = "load steps"
LOW: Final = 0.10
HIGHS: Final = (0.20, 0.35)
HOLD_NS: Final = 8 * SECOND_NS
"""Each level lasts so long."""
QUICK_SERVICES: Final = 2
BAND: Final = 0.05
"""Of the device: within so much of where it ends up, the share has settled."""
_END_NS: Final = SECOND_NS
"""The last of each level says where it ended up."""
_GRID_NS: Final = 10 * MILLISECOND_NS
_START_PPM: Final = 980_392
"""What online work keeps before anything is adjusted: a delay of 2 %."""


class StepCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service beside a training, whose load goes up and comes down again."""

    name: str
    service: Service
    training: Load
    objective: int
    high: float
    seed: int


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What followed one step of the load."""

    name: str
    objective: int
    before: float
    after: float
    """Levels of the load."""
    settle_ms: float
    """From the step until the share stays within the band around where it ends up; the whole level if it never does."""
    is_settled: bool
    """Whether it was within the band for all of the level's last second."""
    requests: int
    """Due while it settled, or in the first second if that is longer."""
    violations: int
    """Of these, those that missed the objective."""
    violations_exclusive: int
    """The same requests on a device of their own."""
    attainment: float
    """Over the whole level."""
    share_before: float
    share_after: float


class StepCourse(msgspec.Struct, frozen=True, kw_only=True):
    """For plots: the share over time around the steps."""

    name: str
    objective: int
    steps_ns: tuple[int, ...]
    shares: tuple[tuple[int, int], ...]
    """(when, share in ppm), at every change."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """All steps; the distributions are by direction and figure."""

    steps: list[Settled]
    figures: dict[str, dict[str, Distribution]]


def step_cases(mixes: Mixes, seed: int, *, quick: bool) -> list[StepCase]:
    """Every service, beside the trainings in turns, with objectives and sizes of steps in turns."""
    trainings = list(mixes.trainings.values())
    return [
        StepCase(
            name=f"{service.load.name} + {training.name}",
            service=service,
            training=training,
            objective=OBJECTIVES[place % len(OBJECTIVES)],
            high=HIGHS[place // len(OBJECTIVES) % len(HIGHS)],
            seed=seed * 1000 + place,
        )
        for place, service in enumerate(list(mixes.services.values())[: QUICK_SERVICES if quick else None])
        for training in (trainings[place % len(trainings)],)
    ]


def play_steps(case: StepCase, setting: Setting) -> tuple[list[Settled], StepCourse]:
    """Low, high and low again; the first level is there to settle from the start."""
    levels = (LOW, case.high, LOW)
    edges = [place * HOLD_NS for place in range(len(levels) + 1)]
    rates = tuple((at, level * case.service.most_per_s) for at, level in zip(edges, levels, strict=False))
    load = driven(case.service.load, arrivals_of(Steps(rates), edges[-1], case.seed))
    slo_ns = case.service.slo_ns(case.objective)
    run = Run(
        guests=(
            Guest(load=load, online=True, priority=ONLINE_PRIORITY, slo_ns=slo_ns),
            Guest(load=case.training, online=False, priority=OFFLINE_PRIORITY),
        ),
        setting=setting,
        for_ns=edges[-1],
    )
    ours, alone = share("cotenant", run), share("exclusive", msgspec.structs.replace(run, guests=run.guests[:1]))
    found = [
        settled_of(case, (levels[place - 1], levels[place]), (edges[place], edges[place + 1]), (ours, alone))
        for place in range(1, len(levels))
    ]
    course = StepCourse(
        name=case.name,
        objective=case.objective,
        steps_ns=tuple(edges[1:-1]),
        shares=tuple((turn.at_ns, turn.online_ppm) for turn in ours.turns),
    )
    return found, course


def settled_of(
    case: StepCase, levels: tuple[float, float], span_ns: tuple[int, int], outcomes: tuple[Outcome, Outcome]
) -> Settled:
    """One step, from its instant to the end of the level after it."""
    (begin_ns, end_ns), (ours, alone) = span_ns, outcomes
    settle_ns = settle_time_ns(ours.turns, begin_ns, end_ns)
    until_ns = min(begin_ns + max(settle_ns, SECOND_NS), end_ns)
    slo_ns = case.service.slo_ns(case.objective)
    within, known = ours.guests[0].kept(slo_ns, begin_ns, until_ns)
    own_within, own_known = alone.guests[0].kept(slo_ns, begin_ns, until_ns)
    return Settled(
        name=case.name,
        objective=case.objective,
        before=levels[0],
        after=levels[1],
        settle_ms=settle_ns / MILLISECOND_NS,
        is_settled=settle_ns <= end_ns - begin_ns - _END_NS,
        requests=known,
        violations=known - within,
        violations_exclusive=own_known - own_within,
        attainment=ours.guests[0].attainment(slo_ns, begin_ns, end_ns),
        share_before=share_at(ours.turns, begin_ns) / 1e6,
        share_after=share_at(ours.turns, end_ns) / 1e6,
    )


def share_at(turns: Sequence[Turn], instant_ns: int) -> int:
    """What online work kept at an instant."""
    return next((turn.online_ppm for turn in reversed(turns) if turn.at_ns <= instant_ns), _START_PPM)


def settle_time_ns(turns: Sequence[Turn], begin_ns: int, end_ns: int) -> int:
    """From the beginning until the share stays within the band around its median of the last second."""
    last = [share_at(turns, at_ns) for at_ns in range(max(end_ns - _END_NS, begin_ns), end_ns, _GRID_NS)]
    final_ppm = statistics.median(last)
    changes = [begin_ns, *(turn.at_ns for turn in turns if begin_ns < turn.at_ns < end_ns), end_ns]
    outside = [
        until_ns
        for from_ns, until_ns in itertools.pairwise(changes)
        if abs(share_at(turns, from_ns) - final_ppm) > BAND * 1e6
    ]
    return outside[-1] - begin_ns if outside else 0


def judge_steps(
    cases: Sequence[StepCase], setting: Setting, workers: int, progress: Progress
) -> tuple[Quality, list[StepCourse]]:
    """Every case; the number of workers changes nothing in them."""
    steps: list[Settled] = []
    courses: list[StepCourse] = []
    progress(PART, 0, len(cases))
    with mapping(workers) as mapped:
        for done, (settled, course) in enumerate(mapped(play_steps, cases, [setting] * len(cases)), start=1):
            steps += settled
            courses.append(course)
            progress(PART, done, len(cases))
    return quality_of(steps), courses


def quality_of(steps: Sequence[Settled]) -> Quality:
    """Up and down apart: giving back must be quick, taking may be slow."""
    by_way = {
        "up": [one for one in steps if one.after > one.before],
        "down": [one for one in steps if one.after < one.before],
    }
    figures = {
        way: {
            "settle_ms": distribution_of([one.settle_ms for one in some]),
            "violations": distribution_of([float(one.violations) for one in some]),
            "violations_exclusive": distribution_of([float(one.violations_exclusive) for one in some]),
            "attainment": distribution_of([one.attainment for one in some]),
        }
        for way, some in by_way.items()
        if some
    }
    return Quality(steps=list(steps), figures=figures)
