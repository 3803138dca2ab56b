"""Speed of a run as a function of units: a measured table with interpolation.

*Speed* is one over the time of the whole run. Between two measured numbers of units, speed is linear, and below the
smallest one it is proportional: a device that alternates between two numbers of units is then as fast as one that holds
the number between them. Between two measured numbers of rows, and beyond the largest, *time* is linear. More units are
never slower and more rows are never faster, whatever noise the table contains, because a run may leave units idle.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from cotenant.predict.curve import KNEE_SLACK
from cotenant.serve.model.run_times import RunTimes, table

_EQUAL_SPEED: Final = 1e-9


class RunSpeeds:
    """The true run times of one model on one device; a server's estimates may differ."""

    def __init__(self, times: RunTimes) -> None:
        """Make the table monotonic: no slower with more units, no faster with more rows."""
        by_units = table(times.times)
        self.all_units = times.all_units
        self.widths: tuple[int, ...] = times.widths()
        self._batches: tuple[int, ...] = times.batches()
        self._run_ns: dict[int, list[float]] = {}  # by rows, one value per width
        before = [0.0] * len(self.widths)
        for rows in self._batches:
            least = float("inf")
            row: list[float] = []
            for place, units in enumerate(self.widths):
                cell = by_units[units].get(rows)
                least = least if cell is None else min(least, float(cell.typical_ns))
                row.append(max(least, before[place]))
            self._run_ns[rows] = before = row
        self._speeds: dict[int, list[float]] = {}

    def speeds(self, rows: int) -> list[float]:
        """Return runs per nanosecond for each width."""
        found = self._speeds.get(rows)
        if found is None:
            found = self._speeds[rows] = [1 / max(took, 1.0) for took in self._times(rows)]
        return found

    def _times(self, rows: int) -> list[float]:
        known = self._run_ns.get(rows)
        if known is not None:
            return known
        batches = self._batches
        if rows < batches[0] or len(batches) == 1:
            return [max(took * rows / batches[0], took) for took in self._run_ns[batches[0]]]
        above = min(bisect_left(batches, rows), len(batches) - 1)
        low, high = batches[above - 1], batches[above]
        part = (rows - low) / (high - low)
        return [left + part * (right - left) for left, right in zip(self._run_ns[low], self._run_ns[high], strict=True)]

    def speed(self, rows: int, units: float) -> float:
        """Return the speed of a run on a number of units, which need not be an integer."""
        speeds, widths = self.speeds(rows), self.widths
        if units <= widths[0]:
            return speeds[0] * units / widths[0]
        if units >= widths[-1]:
            return speeds[-1]
        above = bisect_left(widths, units)
        part = (units - widths[above - 1]) / (widths[above] - widths[above - 1])
        return speeds[above - 1] + part * (speeds[above] - speeds[above - 1])

    def run_ns(self, rows: int, units: float) -> float:
        """Return the time of such a run alone."""
        return 1 / self.speed(rows, units)

    def max_units(self, rows: int) -> int:
        """Return the number of units beyond which a run is no faster."""
        speeds = self.speeds(rows)
        enough = speeds[-1] * (1 - _EQUAL_SPEED)
        return next(units for units, speed in zip(self.widths, speeds, strict=True) if speed >= enough)

    def knee_units(self, rows: int) -> int:
        """Return the number of units beyond which a run is hardly faster: what it can use."""
        speeds = self.speeds(rows)
        enough = speeds[-1] / (1 + KNEE_SLACK)
        return next(units for units, speed in zip(self.widths, speeds, strict=True) if speed >= enough)
