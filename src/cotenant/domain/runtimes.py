"""How long do a model's runs take, by their rows and their part of the device? A table, as measured."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.domain.instant import Duration
from cotenant.domain.value import Value


class RunTime(Value, frozen=True):
    """What runs of so many rows took on so many units of a device: cores of a machine, percent of a GPU."""

    units: int
    rows: int
    typical_ns: Duration
    """The median."""
    high_ns: Duration
    """What one run in a hundred exceeds."""


class RunTimes(Value, frozen=True):
    """A model's measured runs on one device."""

    all_units: int
    """Of the device: so many cores, or 100."""
    times: tuple[RunTime, ...]
    knee_units: int
    """The units past which runs hardly get faster, by the curve at the largest batch measured."""

    def widths(self) -> tuple[int, ...]:
        """Every number of units that was measured, ascending."""
        return tuple(sorted({one.units for one in self.times}))

    def batches(self) -> tuple[int, ...]:
        """Every number of rows that was measured, ascending."""
        return tuple(sorted({one.rows for one in self.times}))


def table(times: Sequence[RunTime]) -> dict[int, dict[int, RunTime]]:
    """By units, then by rows."""
    found: dict[int, dict[int, RunTime]] = {}
    for one in times:
        found.setdefault(one.units, {})[one.rows] = one
    return found
