"""What does a server intend for the next session? For each model a batch, units and runs, and which objective won."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS, Duration
from cotenant.domain.lane import Lane
from cotenant.domain.serveplan import ModelPlan, ServePlan
from cotenant.format.quantity import counted, round_duration
from cotenant.policy.schedule.goodput import Flow, goodput
from cotenant.policy.schedule.right_size import EFFICACY, THROUGHPUT, Size, allowed, frontier, right_size, sizes

SESSION_NS: Final = 100 * MILLISECOND_NS
"""Where no model has an objective. Our choice."""
WORTH: Final = 0.002
"""By so much must more rows be in time for another way to be worth it. Our choice."""
ROUNDS: Final = 3
"""Through all models, at most. Our choice: the second rarely changes anything."""


class Planned(NamedTuple):
    """One model's way, or none while nothing is known of it."""

    lane: Lane
    rate: float
    size: Size | None


def session_ns(lanes: Sequence[Lane]) -> Duration:
    """As long as the largest objective."""
    return max((lane.spec.slo_ns for lane in lanes), default=0) or SESSION_NS


def choose(lanes: Sequence[Lane], rates: Sequence[float], all_units: int) -> tuple[str, list[Planned]]:
    """By both objectives; the one by which more rows are expected to be in time wins, the quick one if it is equal."""
    ways = [frontier(sizes(lane, all_units)) for lane in lanes]
    found = {}
    for objective in (EFFICACY, THROUGHPUT):
        found[objective] = [
            Planned(lane, rate, right_size(way, lane.spec.slo_ns, rate, objective))
            for lane, rate, way in zip(lanes, rates, ways, strict=True)
        ]
    quick = expected(found[EFFICACY], all_units)
    frugal = improve(found[THROUGHPUT], ways, all_units)
    if expected(frugal, all_units) > quick * (1 + WORTH):
        return THROUGHPUT, frugal
    return EFFICACY, found[EFFICACY]


def expected(planned: Sequence[Planned], all_units: int) -> float:
    """Rows a second in time, by this plan."""
    return goodput([Flow(one.rate, one.lane.spec.slo_ns, 1, one.size) for one in planned if one.size], all_units)


def improve(planned: Sequence[Planned], ways: Sequence[Sequence[Size]], all_units: int) -> list[Planned]:
    """One model after the other is given the way by which more rows of all are in time, until nothing gains."""
    best = list(planned)
    most = expected(best, all_units)
    for _ in range(ROUNDS):
        before = most
        for place, one in enumerate(best):
            if not one.rate:
                continue
            for size in ways[place]:
                if size == one.size or not allowed(size, one.lane.spec.slo_ns, one.rate):
                    continue
                trial = [*best[:place], one._replace(size=size), *best[place + 1 :]]
                gained = expected(trial, all_units)
                if gained > most * (1 + WORTH / 10):
                    best, most = trial, gained
        if most <= before:
            break
    return best


def used(planned: Sequence[Planned], all_units: int) -> float:
    """Part of the device that the rates take, run this way."""
    return sum(one.rate * one.size.area_ns for one in planned if one.size) / (SECOND_NS * all_units)


def plan_of(objective: str, planned: Sequence[Planned], all_units: int) -> ServePlan:
    """The same for people."""
    length_ns = session_ns([one.lane for one in planned])
    part = used(planned, all_units)
    if part > 1:
        why = f"{part:.0%} of the device is asked for: each model has its part by priority and weight"
    elif objective == EFFICACY:
        why = f"the quickest runs for their units take {part:.0%} of the device; nothing else would have more in time"
    else:
        why = f"more are expected in time than by the quickest runs for their units; {part:.0%} of the device is taken"
    models = tuple(_model_plan(one, objective, length_ns) for one in planned)
    return ServePlan(length_ns, all_units, models, part, why)


def _model_plan(one: Planned, objective: str, length_ns: Duration) -> ModelPlan:
    spec, size = one.lane.spec, one.size
    if size is None:
        why = "nothing is known of its runs yet: one request at a time on the share it was given"
        return ModelPlan(spec.name, 1, spec.share, 0, 1, one.rate, "unknown", why)
    wanted = one.rate * length_ns / SECOND_NS / size.rows
    least = length_ns // spec.slo_ns if spec.slo_ns else 0
    runs = max(least, -int(-wanted // 1), 1)
    took = round_duration(size.typical_ns)
    why = f"{counted(size.rows, 'row')} on {counted(size.units, 'unit')}: {took}"
    if not spec.slo_ns:
        why += "; it has no objective and fills what others leave"
    elif size.high_ns * 2 <= spec.slo_ns:
        why += f", at most half of its {round_duration(spec.slo_ns)}, so who misses one run makes the next"
    elif size.high_ns <= spec.slo_ns:
        why += f", within its {round_duration(spec.slo_ns)}, but who misses one run cannot wait for the next"
    else:
        at_worst = round_duration(size.high_ns)
        why += f", at times {at_worst}, which is more than its {round_duration(spec.slo_ns)}: no run is quick enough"
    return ModelPlan(spec.name, size.rows, size.units, size.typical_ns, runs, one.rate, objective, why)
