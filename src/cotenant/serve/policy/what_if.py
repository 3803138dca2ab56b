"""What-if analysis: the plan that a server would make for given models and rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cotenant.serve.model.plan import ServePlan
from cotenant.serve.model.scheduling import ModelQueue
from cotenant.serve.policy.right_size import run_sizes
from cotenant.serve.policy.session import choose, expected_goodput, plan_of
from cotenant.units.instant import SECOND_NS, Duration
from cotenant.units.value import Value

BUSY: Final = 0.8
"""Load of the device, in equal parts per model, if no rates are given. Our choice."""


class PlanForecast(Value, frozen=True):
    """A plan and its expected result."""

    plan: ServePlan
    slos_ns: dict[str, Duration]
    asked: float
    """Requested rows per second."""
    in_time: float
    """Expected rows per second in time, by queueing approximation; useful to compare plans."""


def forecast_plan(queues: Sequence[ModelQueue], rates: Mapping[str, float], all_units: int) -> PlanForecast:
    """Plan for models with these request rates in rows per second."""
    model_rates = [rates.get(queue.spec.name, 0.0) for queue in queues]
    objective, planned = choose(queues, model_rates, all_units)
    slos_ns = {queue.spec.name: queue.spec.slo_ns for queue in queues}
    return PlanForecast(
        plan_of(objective, planned, all_units), slos_ns, sum(model_rates), expected_goodput(planned, all_units)
    )


def default_rates(queues: Sequence[ModelQueue], all_units: int) -> dict[str, float]:
    """Return rates at which the models together use `BUSY` of the device, each an equal part."""
    rates = {}
    for queue in queues:
        sizes = run_sizes(queue, all_units)
        if sizes:
            min_area_ns = min(size.area_ns for size in sizes)
            rates[queue.spec.name] = round(BUSY / len(queues) * all_units * SECOND_NS / min_area_ns, 1)
    return rates
