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
MIN_GAIN: Final = 0.002
"""Minimum relative gain in goodput for which another size is chosen. Our choice."""
MAX_PASSES: Final = 3
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
    sizes = [frontier(run_sizes(queue, all_units)) for queue in queues]
    plans = {}
    for objective in (EFFICACY, THROUGHPUT):
        plans[objective] = [
            PlannedModel(queue, rate, right_size(model_sizes, queue.spec.slo_ns, rate, objective))
            for queue, rate, model_sizes in zip(queues, rates, sizes, strict=True)
        ]
    efficacy_goodput = expected_goodput(plans[EFFICACY], all_units)
    throughput_plan = improve(plans[THROUGHPUT], sizes, all_units)
    if expected_goodput(throughput_plan, all_units) > efficacy_goodput * (1 + MIN_GAIN):
        return THROUGHPUT, throughput_plan
    return EFFICACY, plans[EFFICACY]


def expected_goodput(planned: Sequence[PlannedModel], all_units: int) -> float:
    """Return the expected rows per second in time."""
    return goodput(
        [ModelTraffic(model.rate, model.queue.spec.slo_ns, 1, model.size) for model in planned if model.size], all_units
    )


def improve(planned: Sequence[PlannedModel], sizes: Sequence[Sequence[RunSize]], all_units: int) -> list[PlannedModel]:
    """Change the size of one model at a time while the total goodput grows."""
    best = list(planned)
    best_goodput = expected_goodput(best, all_units)
    for _ in range(MAX_PASSES):
        previous = best_goodput
        for index, model in enumerate(best):
            if not model.rate:
                continue
            for size in sizes[index]:
                if size == model.size or not allowed(size, model.queue.spec.slo_ns, model.rate):
                    continue
                trial = [*best[:index], model._replace(size=size), *best[index + 1 :]]
                trial_goodput = expected_goodput(trial, all_units)
                if trial_goodput > best_goodput * (1 + MIN_GAIN / 10):
                    best, best_goodput = trial, trial_goodput
        if best_goodput <= previous:
            break
    return best


def used(planned: Sequence[PlannedModel], all_units: int) -> float:
    """Return the fraction of the device that the rates take at these sizes."""
    return sum(model.rate * model.size.area_ns for model in planned if model.size) / (SECOND_NS * all_units)


def plan_of(objective: str, planned: Sequence[PlannedModel], all_units: int) -> ServePlan:
    """Return the plan with its reasons as text."""
    length_ns = session_ns([model.queue for model in planned])
    load = used(planned, all_units)
    if load > 1:
        reason = f"demand is {load:.0%} of the device: each model gets a share by priority and weight"
    elif objective == EFFICACY:
        reason = f"the most efficient runs take {load:.0%} of the device; no other sizes answer more in time"
    else:
        reason = f"throughput sizes answer more in time than efficient ones; they take {load:.0%} of the device"
    models = tuple(_model_plan(model, objective, length_ns) for model in planned)
    return ServePlan(length_ns, all_units, models, load, reason)


def _model_plan(model: PlannedModel, objective: str, length_ns: Duration) -> ModelPlan:
    spec, size = model.queue.spec, model.size
    if size is None:
        reason = "its run times are unknown: one request at a time on its default share"
        return ModelPlan(spec.name, 1, spec.share, 0, 1, model.rate, "unknown", reason)
    needed_runs = model.rate * length_ns / SECOND_NS / size.rows
    min_runs = length_ns // spec.slo_ns if spec.slo_ns else 0
    runs = max(min_runs, -int(-needed_runs // 1), 1)
    run_time = round_duration(size.typical_ns)
    reason = f"{counted(size.rows, 'row')} on {counted(size.units, 'unit')}: {run_time}"
    if not spec.slo_ns:
        reason += "; it has no objective and uses spare units"
    elif size.high_ns * 2 <= spec.slo_ns:
        reason += (
            f", at most half of its {round_duration(spec.slo_ns)}, so a request that misses one run makes the next"
        )
    elif size.high_ns <= spec.slo_ns:
        reason += (
            f", within its {round_duration(spec.slo_ns)}, but a request that misses one run cannot wait for the next"
        )
    else:
        high = round_duration(size.high_ns)
        reason += f", up to {high}, which exceeds its {round_duration(spec.slo_ns)}: no size is fast enough"
    return ModelPlan(spec.name, size.rows, size.units, size.typical_ns, runs, model.rate, objective, reason)
