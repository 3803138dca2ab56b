"""Choice of batch size and width of a model by an objective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cotenant.serve.model.scheduling import ModelQueue
from cotenant.units.instant import SECOND_NS, Duration

EFFICACY: Final = "efficacy"
"""Rows per second over latency and units: D-STACK's measure, which prefers short runs of small batches."""
THROUGHPUT: Final = "throughput"
"""Rows per second over units: the maximum throughput that the SLO allows."""


class RunSize(NamedTuple):
    """A batch size and a number of units, with the run times."""

    rows: int
    units: int
    typical_ns: Duration
    high_ns: Duration

    @property
    def area_ns(self) -> float:
        """Units times time per row."""
        return self.units * self.typical_ns / self.rows


def batches(limit: int) -> tuple[int, ...]:
    """Return the batch sizes to consider: powers of two, and the model's limit."""
    found = [1]
    while found[-1] * 2 <= limit:
        found.append(found[-1] * 2)
    if limit > found[-1]:
        found.append(limit)
    return tuple(found)


def run_sizes(queue: ModelQueue, all_units: int) -> list[RunSize]:
    """Return every measured size of a model; empty if its run times are unknown."""
    widths = sorted({min(one, all_units) for one in queue.widths})
    found = []
    for units in widths:
        for rows in batches(queue.spec.max_batch):
            typical_ns = queue.expected_ns(rows, units)
            if typical_ns:
                found.append(RunSize(rows, units, typical_ns, max(queue.high_ns(rows, units), typical_ns)))
    return found


def right_size(ways: Sequence[RunSize], slo_ns: Duration, rate: float, objective: str) -> RunSize | None:
    """Return the best size by the objective among those that the SLO allows; the fastest if it allows none.

    A run may take half of the SLO, so that a request that just missed a run makes the next one, and its rows must
    arrive within the remaining time. If no size satisfies that, any size whose run fits into the SLO is allowed.
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


def frontier(ways: Sequence[RunSize]) -> list[RunSize]:
    """Return the Pareto-optimal sizes by time and device time per row, the fastest first."""
    found: list[RunSize] = []
    for one in sorted(ways, key=lambda one: (one.high_ns, one.area_ns)):
        if not found or one.area_ns < found[-1].area_ns:
            found.append(one)
    return found


def allowed(one: RunSize, slo_ns: Duration, rate: float) -> bool:
    """Return whether a run of this size can be in time, including the time in which its rows arrive."""
    return not slo_ns or (one.high_ns <= slo_ns and _comes_together(one, slo_ns, rate))


def _comes_together(one: RunSize, slo_ns: Duration, rate: float) -> bool:
    """Return whether the rows of the batch arrive in the time that the run leaves; a single row always does."""
    return one.rows == 1 or (rate > 0 and (one.rows - 1) / rate * SECOND_NS + one.high_ns <= slo_ns)


def _best(ways: Iterable[RunSize], objective: str) -> RunSize:
    power = 2 if objective == EFFICACY else 1
    return max(ways, key=lambda one: (one.rows / (one.units * one.typical_ns**power), -one.typical_ns, -one.units))
