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
    sizes = [1]
    while sizes[-1] * 2 <= limit:
        sizes.append(sizes[-1] * 2)
    if limit > sizes[-1]:
        sizes.append(limit)
    return tuple(sizes)


def run_sizes(queue: ModelQueue, all_units: int) -> list[RunSize]:
    """Return every measured size of a model; empty if its run times are unknown."""
    widths = sorted({min(width, all_units) for width in queue.widths})
    sizes = []
    for units in widths:
        for rows in batches(queue.spec.max_batch):
            typical_ns = queue.expected_ns(rows, units)
            if typical_ns:
                sizes.append(RunSize(rows, units, typical_ns, max(queue.high_ns(rows, units), typical_ns)))
    return sizes


def right_size(sizes: Sequence[RunSize], slo_ns: Duration, rate: float, objective: str) -> RunSize | None:
    """Return the best size by the objective among those that the SLO allows; the fastest if it allows none.

    A run may take half of the SLO, so that a request that just missed a run makes the next one, and its rows must
    arrive within the remaining time. If no size satisfies that, any size whose run fits into the SLO is allowed.
    """
    if not sizes:
        return None
    if slo_ns:
        for divisor in (2, 1):
            fitting = [
                size for size in sizes if size.high_ns * divisor <= slo_ns and _rows_arrive_in_time(size, slo_ns, rate)
            ]
            if fitting:
                return _best(fitting, objective)
        return min(sizes, key=lambda size: (size.high_ns, size.units))
    return _best(sizes, objective)


def frontier(sizes: Sequence[RunSize]) -> list[RunSize]:
    """Return the Pareto-optimal sizes by time and device time per row, the fastest first."""
    optimal: list[RunSize] = []
    for size in sorted(sizes, key=lambda size: (size.high_ns, size.area_ns)):
        if not optimal or size.area_ns < optimal[-1].area_ns:
            optimal.append(size)
    return optimal


def allowed(size: RunSize, slo_ns: Duration, rate: float) -> bool:
    """Return whether a run of this size can be in time, including the time in which its rows arrive."""
    return not slo_ns or (size.high_ns <= slo_ns and _rows_arrive_in_time(size, slo_ns, rate))


def _rows_arrive_in_time(size: RunSize, slo_ns: Duration, rate: float) -> bool:
    """Return whether the rows of the batch arrive in the time that the run leaves; a single row always does."""
    return size.rows == 1 or (rate > 0 and (size.rows - 1) / rate * SECOND_NS + size.high_ns <= slo_ns)


def _best(sizes: Iterable[RunSize], objective: str) -> RunSize:
    power = 2 if objective == EFFICACY else 1
    return max(
        sizes, key=lambda size: (size.rows / (size.units * size.typical_ns**power), -size.typical_ns, -size.units)
    )
