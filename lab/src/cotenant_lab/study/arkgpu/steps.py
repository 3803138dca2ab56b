"""Measure how fast control settles after the load has changed, and what that costs, in simulated time."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.simulate.kernels import RunSettings
from cotenant.simulate.sharing import Guest, RunSpec, ShareChange, SharingOutcome
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.workload.arrivals import draw_arrivals, with_arrivals
from cotenant.workload.load import Workload
from cotenant.workload.rates import StepRate
from cotenant_lab.baselines.modes import share
from cotenant_lab.study.arkgpu.cases import OBJECTIVES, OFFLINE_PRIORITY, ONLINE_PRIORITY, Mixes, Service
from cotenant_lab.study.fikit.run import Progress
from cotenant_lab.study.muxflow_node.run import Distribution, distribution_of
from cotenant_lab.study.workers import mapping

PART: Final = "load steps"
LOW: Final = 0.10
HIGHS: Final = (0.20, 0.35)
HOLD_NS: Final = 8 * SECOND_NS
"""Duration of each level."""
QUICK_SERVICES: Final = 2
BAND: Final = 0.05
"""Fraction of the device: within this distance of its final value the share has settled."""
_END_NS: Final = SECOND_NS
"""The last part of each level, which defines the final value."""
_GRID_NS: Final = 10 * MILLISECOND_NS
_START_PPM: Final = 980_392
"""Online share before the first adjustment: a delay of 2 %."""


class StepCase(msgspec.Struct, frozen=True, kw_only=True):
    """A service and a training, whose load increases and decreases again."""

    name: str
    service: Service
    training: Workload
    objective: int
    high: float
    seed: int


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What followed one change of the load."""

    name: str
    objective: int
    before: float
    after: float
    """Levels of the load."""
    settle_ms: float
    """Time until the share stays within the band around its final value; the whole level if it never does."""
    is_settled: bool
    """Whether it was within the band for all of the level's last second."""
    requests: int
    """Due while it settled, or in the first second if that is longer."""
    violations: int
    """Of these, the requests that missed the objective."""
    violations_exclusive: int
    """The same requests on a dedicated device."""
    attainment: float
    """Over the whole level."""
    share_before: float
    share_after: float


class StepTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The share over time around the load changes, for plots."""

    name: str
    objective: int
    steps_ns: tuple[int, ...]
    shares: tuple[tuple[int, int], ...]
    """(Instant, share in ppm), at every change."""


class StepQuality(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all load changes; distributions by direction and metric."""

    steps: list[StepResult]
    metrics: dict[str, dict[str, Distribution]]


def step_cases(mixes: Mixes, seed: int, *, quick: bool) -> list[StepCase]:
    """Return every service with trainings, objectives and step sizes in turn."""
    trainings = list(mixes.trainings.values())
    return [
        StepCase(
            name=f"{service.load.name} + {training.name}",
            service=service,
            training=training,
            objective=OBJECTIVES[index % len(OBJECTIVES)],
            high=HIGHS[index // len(OBJECTIVES) % len(HIGHS)],
            seed=seed * 1000 + index,
        )
        for index, service in enumerate(list(mixes.services.values())[: QUICK_SERVICES if quick else None])
        for training in (trainings[index % len(trainings)],)
    ]


def play_steps(case: StepCase, setting: RunSettings) -> tuple[list[StepResult], StepTimeline]:
    """Simulate low, high and low load; the first level lets control settle from the start."""
    levels = (LOW, case.high, LOW)
    edges = [index * HOLD_NS for index in range(len(levels) + 1)]
    rates = tuple((begin_ns, level * case.service.most_per_s) for begin_ns, level in zip(edges, levels, strict=False))
    load = with_arrivals(case.service.load, draw_arrivals(StepRate(rates), edges[-1], case.seed))
    slo_ns = case.service.slo_ns(case.objective)
    run = RunSpec(
        guests=(
            Guest(load=load, online=True, priority=ONLINE_PRIORITY, slo_ns=slo_ns),
            Guest(load=case.training, online=False, priority=OFFLINE_PRIORITY),
        ),
        setting=setting,
        for_ns=edges[-1],
    )
    ours, alone = share("cotenant", run), share("exclusive", msgspec.structs.replace(run, guests=run.guests[:1]))
    results = [
        step_result(case, (levels[index - 1], levels[index]), (edges[index], edges[index + 1]), (ours, alone))
        for index in range(1, len(levels))
    ]
    timeline = StepTimeline(
        name=case.name,
        objective=case.objective,
        steps_ns=tuple(edges[1:-1]),
        shares=tuple((turn.at_ns, turn.online_ppm) for turn in ours.turns),
    )
    return results, timeline


def step_result(
    case: StepCase,
    levels: tuple[float, float],
    span_ns: tuple[int, int],
    outcomes: tuple[SharingOutcome, SharingOutcome],
) -> StepResult:
    """Evaluate one change, from its instant to the end of the level."""
    (begin_ns, end_ns), (ours, alone) = span_ns, outcomes
    settle_ns = settle_time_ns(ours.turns, begin_ns, end_ns)
    until_ns = min(begin_ns + max(settle_ns, SECOND_NS), end_ns)
    slo_ns = case.service.slo_ns(case.objective)
    within, resolved = ours.guests[0].count_within(slo_ns, begin_ns, until_ns)
    alone_within, alone_resolved = alone.guests[0].count_within(slo_ns, begin_ns, until_ns)
    return StepResult(
        name=case.name,
        objective=case.objective,
        before=levels[0],
        after=levels[1],
        settle_ms=settle_ns / MILLISECOND_NS,
        is_settled=settle_ns <= end_ns - begin_ns - _END_NS,
        requests=resolved,
        violations=resolved - within,
        violations_exclusive=alone_resolved - alone_within,
        attainment=ours.guests[0].attainment(slo_ns, begin_ns, end_ns),
        share_before=share_at(ours.turns, begin_ns) / 1e6,
        share_after=share_at(ours.turns, end_ns) / 1e6,
    )


def share_at(turns: Sequence[ShareChange], instant_ns: int) -> int:
    """Return the online share at an instant."""
    return next((turn.online_ppm for turn in reversed(turns) if turn.at_ns <= instant_ns), _START_PPM)


def settle_time_ns(turns: Sequence[ShareChange], begin_ns: int, end_ns: int) -> int:
    """Return the time until the share stays within the band around its median of the last second."""
    last = [share_at(turns, at_ns) for at_ns in range(max(end_ns - _END_NS, begin_ns), end_ns, _GRID_NS)]
    final_ppm = statistics.median(last)
    changes = [begin_ns, *(turn.at_ns for turn in turns if begin_ns < turn.at_ns < end_ns), end_ns]
    outside = [
        until_ns
        for from_ns, until_ns in itertools.pairwise(changes)
        if abs(share_at(turns, from_ns) - final_ppm) > BAND * 1e6
    ]
    return outside[-1] - begin_ns if outside else 0


def evaluate_steps(
    cases: Sequence[StepCase], setting: RunSettings, workers: int, progress: Progress
) -> tuple[StepQuality, list[StepTimeline]]:
    """Evaluate every case; the number of workers does not change results."""
    steps: list[StepResult] = []
    timelines: list[StepTimeline] = []
    progress(PART, 0, len(cases))
    with mapping(workers) as mapped:
        for done, (settled, timeline) in enumerate(mapped(play_steps, cases, [setting] * len(cases)), start=1):
            steps += settled
            timelines.append(timeline)
            progress(PART, done, len(cases))
    return quality_of(steps), timelines


def quality_of(steps: Sequence[StepResult]) -> StepQuality:
    """Summarize by direction: returning share must be fast, taking it may be slow."""
    by_direction = {
        "up": [step for step in steps if step.after > step.before],
        "down": [step for step in steps if step.after < step.before],
    }
    metrics = {
        direction: {
            "settle_ms": distribution_of([step.settle_ms for step in group]),
            "violations": distribution_of([float(step.violations) for step in group]),
            "violations_exclusive": distribution_of([float(step.violations_exclusive) for step in group]),
            "attainment": distribution_of([step.attainment for step in group]),
        }
        for direction, group in by_direction.items()
        if group
    }
    return StepQuality(steps=list(steps), metrics=metrics)
