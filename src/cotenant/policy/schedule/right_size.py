"""How large a batch, on how much of the device? Of all the ways to run a model, the best by an objective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cotenant.domain.instant import SECOND_NS, Duration
from cotenant.domain.lane import Lane

EFFICACY: Final = "efficacy"
"""Rows a second over latency and units: D-STACK's measure, which likes small batches that are soon over."""
THROUGHPUT: Final = "throughput"
"""Rows a second over units: the most from the device that the objective allows."""


class Size(NamedTuple):
    """One way to run a model."""

    rows: int
    units: int
    typical_ns: Duration
    high_ns: Duration

    @property
    def area_ns(self) -> float:
        """Units times time that a row takes of the device."""
        return self.units * self.typical_ns / self.rows


def batches(limit: int) -> tuple[int, ...]:
    """The sizes that are looked at: doubled up to what a model takes."""
    found = [1]
    while found[-1] * 2 <= limit:
        found.append(found[-1] * 2)
    if limit > found[-1]:
        found.append(limit)
    return tuple(found)


def sizes(lane: Lane, all_units: int) -> list[Size]:
    """Every way to run a model; none while nothing is known of its runs."""
    widths = sorted({min(one, all_units) for one in lane.widths})
    found = []
    for units in widths:
        for rows in batches(lane.spec.max_batch):
            typical_ns = lane.expected_ns(rows, units)
            if typical_ns:
                found.append(Size(rows, units, typical_ns, max(lane.high_ns(rows, units), typical_ns)))
    return found


def right_size(ways: Sequence[Size], slo_ns: Duration, rate: float, objective: str) -> Size | None:
    """The best of the ways by the objective, among those the SLO allows; the quickest if it allows none.

    A run may last half of the SLO, so that a request that just missed one still makes the next, and its rows must
    have come together within what is left. Where no way does that, any that is over within the SLO will do.
    """
    if not ways:
        return None
    if slo_ns:
        for part in (2, 1):
            fitting = [one for one in ways if one.high_ns * part <= slo_ns and _comes_together(one, slo_ns, rate)]
            if fitting:
                return _best(fitting, objective)
        return min(ways, key=lambda one: (one.high_ns, one.units))
    return _best(ways, objective)


def frontier(ways: Sequence[Size]) -> list[Size]:
    """Without those that another beats both in time and in what a row takes of the device; quickest first."""
    found: list[Size] = []
    for one in sorted(ways, key=lambda one: (one.high_ns, one.area_ns)):
        if not found or one.area_ns < found[-1].area_ns:
            found.append(one)
    return found


def allowed(one: Size, slo_ns: Duration, rate: float) -> bool:
    """Whether a run like this can be in time at all, with its rows come together before."""
    return not slo_ns or (one.high_ns <= slo_ns and _comes_together(one, slo_ns, rate))


def _comes_together(one: Size, slo_ns: Duration, rate: float) -> bool:
    """Whether the batch's rows arrive in the time that its run leaves; one row is always there."""
    return one.rows == 1 or (rate > 0 and (one.rows - 1) / rate * SECOND_NS + one.high_ns <= slo_ns)


def _best(ways: Iterable[Size], objective: str) -> Size:
    power = 2 if objective == EFFICACY else 1
    return max(ways, key=lambda one: (one.rows / (one.units * one.typical_ns**power), -one.typical_ns, -one.units))
