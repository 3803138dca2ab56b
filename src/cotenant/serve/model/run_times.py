"""Measured run times of a model by rows and units."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.units.instant import Duration
from cotenant.units.value import Value


class RunTime(Value, frozen=True):
    """Run time of a number of rows on a number of units (cores, or percent of a GPU)."""

    units: int
    rows: int
    typical_ns: Duration
    """Median."""
    high_ns: Duration
    """99th percentile."""


class RunTimes(Value, frozen=True):
    """All measured run times of a model on one device."""

    all_units: int
    """Units of the device: the number of cores, or 100."""
    times: tuple[RunTime, ...]
    knee_units: int
    """Number of units beyond which runs hardly get faster, from the curve at the largest measured batch."""

    def widths(self) -> tuple[int, ...]:
        """Return the measured numbers of units, ascending."""
        return tuple(sorted({time.units for time in self.times}))

    def batches(self) -> tuple[int, ...]:
        """Return the measured numbers of rows, ascending."""
        return tuple(sorted({time.rows for time in self.times}))


def next_to_others(times: RunTimes, interference: float) -> RunTimes:
    """Return the times of runs on a part of the device while others run, from times of runs alone."""
    if interference == 1:
        return times
    cells = tuple(
        time
        if time.units >= times.all_units
        else RunTime(time.units, time.rows, round(time.typical_ns * interference), round(time.high_ns * interference))
        for time in times.times
    )
    return RunTimes(times.all_units, cells, times.knee_units)


def table(times: Sequence[RunTime]) -> dict[int, dict[int, RunTime]]:
    """Index run times by units, then by rows."""
    by_units: dict[int, dict[int, RunTime]] = {}
    for time in times:
        by_units.setdefault(time.units, {})[time.rows] = time
    return by_units
