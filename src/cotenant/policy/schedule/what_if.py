"""What would a server intend for these models at these rates? The plan that it would make, without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cotenant.domain.instant import SECOND_NS, Duration
from cotenant.domain.lane import Lane
from cotenant.domain.serveplan import ServePlan
from cotenant.domain.value import Value
from cotenant.policy.schedule.right_size import sizes
from cotenant.policy.schedule.session import choose, expected, plan_of

BUSY: Final = 0.8
"""Of the device, in equal parts, where nobody says how much is asked for. Our choice."""


class Foretold(Value, frozen=True):
    """A plan, and what comes of it."""

    plan: ServePlan
    slos_ns: dict[str, Duration]
    asked: float
    """Rows a second."""
    in_time: float
    """Of those, by a queue's arithmetic: to compare plans with, not to promise."""


def foretell(lanes: Sequence[Lane], rates: Mapping[str, float], all_units: int) -> Foretold:
    """The plan for models that are asked for so many rows a second each."""
    given = [rates.get(lane.spec.name, 0.0) for lane in lanes]
    objective, planned = choose(lanes, given, all_units)
    slos_ns = {lane.spec.name: lane.spec.slo_ns for lane in lanes}
    return Foretold(plan_of(objective, planned, all_units), slos_ns, sum(given), expected(planned, all_units))


def usual_rates(lanes: Sequence[Lane], all_units: int) -> dict[str, float]:
    """Rates at which the models together keep most of the device busy, each an equal part of it."""
    found = {}
    for lane in lanes:
        ways = sizes(lane, all_units)
        if ways:
            least_ns = min(one.area_ns for one in ways)
            found[lane.spec.name] = round(BUSY / len(lanes) * all_units * SECOND_NS / least_ns, 1)
    return found
