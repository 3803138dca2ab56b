"""Plan of a session: batch, units and runs of each model, by the better of two objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cotenant.serve.model.plan import ModelPlan, ServePlan
from cotenant.serve.model.scheduling import ModelQueue
from cotenant.serve.policy.goodput import ModelTraffic, goodput
from cotenant.serve.policy.right_size import EFFICACY, THROUGHPUT, RunSize, allowed, frontier, right_size, run_sizes
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS, Duration
from cotenant.units.text import counted, round_duration

SESSION_NS: Final = 100 * MILLISECOND_NS
"""Session length if no model has an objective. Our choice."""
WORTH: Final = 0.002
"""Minimum relative gain in goodput for which another size is chosen. Our choice."""
ROUNDS: Final = 3
"""Maximum passes over all models. Our choice: the second pass rarely changes anything."""


class PlannedModel(NamedTuple):
    """A model's size; None while its run times are unknown."""

    queue: ModelQueue
    rate: float
    size: RunSize | None


def session_ns(queues: Sequence[ModelQueue]) -> Duration:
    """Return the largest objective of the models."""
    return max((queue.spec.slo_ns for queue in queues), default=0) or SESSION_NS


def choose(queues: Sequence[ModelQueue], rates: Sequence[float], all_units: int) -> tuple[str, list[PlannedModel]]:
    """Plan by both objectives; return the one with the higher expected goodput, efficacy if they are equal."""
    ways = [frontier(run_sizes(queue, all_units)) for queue in queues]
    found = {}
    for objective in (EFFICACY, THROUGHPUT):
        found[objective] = [
            PlannedModel(queue, rate, right_size(way, queue.spec.slo_ns, rate, objective))
            for queue, rate, way in zip(queues, rates, ways, strict=True)
        ]
    quick = expected(found[EFFICACY], all_units)
    frugal = improve(found[THROUGHPUT], ways, all_units)
    if expected(frugal, all_units) > quick * (1 + WORTH):
        return THROUGHPUT, frugal
    return EFFICACY, found[EFFICACY]


def expected(planned: Sequence[PlannedModel], all_units: int) -> float:
    """Return the expected rows per second in time."""
    return goodput(
        [ModelTraffic(one.rate, one.queue.spec.slo_ns, 1, one.size) for one in planned if one.size], all_units
    )


def improve(planned: Sequence[PlannedModel], ways: Sequence[Sequence[RunSize]], all_units: int) -> list[PlannedModel]:
    """Change the size of one model at a time while the total goodput grows."""
    best = list(planned)
    most = expected(best, all_units)
    for _ in range(ROUNDS):
        before = most
        for place, one in enumerate(best):
            if not one.rate:
                continue
            for size in ways[place]:
                if size == one.size or not allowed(size, one.queue.spec.slo_ns, one.rate):
                    continue
                trial = [*best[:place], one._replace(size=size), *best[place + 1 :]]
                gained = expected(trial, all_units)
                if gained > most * (1 + WORTH / 10):
                    best, most = trial, gained
        if most <= before:
            break
    return best


def used(planned: Sequence[PlannedModel], all_units: int) -> float:
    """Return the fraction of the device that the rates take at these sizes."""
    return sum(one.rate * one.size.area_ns for one in planned if one.size) / (SECOND_NS * all_units)


def plan_of(objective: str, planned: Sequence[PlannedModel], all_units: int) -> ServePlan:
    """Return the plan with its reasons as text."""
    length_ns = session_ns([one.queue for one in planned])
    part = used(planned, all_units)
    if part > 1:
        why = f"demand is {part:.0%} of the device: each model gets a share by priority and weight"
    elif objective == EFFICACY:
        why = f"the most efficient runs take {part:.0%} of the device; no other sizes answer more in time"
    else:
        why = f"throughput sizes answer more in time than efficient ones; they take {part:.0%} of the device"
    models = tuple(_model_plan(one, objective, length_ns) for one in planned)
    return ServePlan(length_ns, all_units, models, part, why)


def _model_plan(one: PlannedModel, objective: str, length_ns: Duration) -> ModelPlan:
    spec, size = one.queue.spec, one.size
    if size is None:
        why = "its run times are unknown: one request at a time on its default share"
        return ModelPlan(spec.name, 1, spec.share, 0, 1, one.rate, "unknown", why)
    wanted = one.rate * length_ns / SECOND_NS / size.rows
    least = length_ns // spec.slo_ns if spec.slo_ns else 0
    runs = max(least, -int(-wanted // 1), 1)
    took = round_duration(size.typical_ns)
    why = f"{counted(size.rows, 'row')} on {counted(size.units, 'unit')}: {took}"
    if not spec.slo_ns:
        why += "; it has no objective and uses spare units"
    elif size.high_ns * 2 <= spec.slo_ns:
        why += f", at most half of its {round_duration(spec.slo_ns)}, so a request that misses one run makes the next"
    elif size.high_ns <= spec.slo_ns:
        why += f", within its {round_duration(spec.slo_ns)}, but a request that misses one run cannot wait for the next"
    else:
        at_worst = round_duration(size.high_ns)
        why += f", up to {at_worst}, which exceeds its {round_duration(spec.slo_ns)}: no size is fast enough"
    return ModelPlan(spec.name, size.rows, size.units, size.typical_ns, runs, one.rate, objective, why)
