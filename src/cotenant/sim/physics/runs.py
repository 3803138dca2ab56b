"""How fast does a run get on with so many units of a device? A measured table, and what lies between its points.

*Speed* is one over the time that the whole run would take. Between two measured numbers of units speed is a straight
line, and below the least one a line to nothing: a device that switches between two numbers of units of its own accord
is then as fast as one that holds the number between. Between two measured numbers of rows, and beyond the largest,
*time* is a straight line. More units are never slower and more rows never faster than fewer, whatever noise the table
holds: a run may leave units alone.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from cotenant.domain.curve import KNEE_SLACK
from cotenant.domain.runtimes import RunTimes, table

_NO_FASTER: Final = 1e-9


class RunSpeeds:
    """One model's runs on one device, as they are; what a server believes of them may differ."""

    def __init__(self, times: RunTimes) -> None:
        """Make the table even: no slower with more units, no faster with more rows."""
        by_units = table(times.times)
        self.all_units = times.all_units
        self.widths: tuple[int, ...] = times.widths()
        self._batches: tuple[int, ...] = times.batches()
        self._took_ns: dict[int, list[float]] = {}  # by rows, over the widths
        before = [0.0] * len(self.widths)
        for rows in self._batches:
            least = float("inf")
            row: list[float] = []
            for place, units in enumerate(self.widths):
                cell = by_units[units].get(rows)
                least = least if cell is None else min(least, float(cell.typical_ns))
                row.append(max(least, before[place]))
            self._took_ns[rows] = before = row
        self._speeds: dict[int, list[float]] = {}

    def speeds(self, rows: int) -> list[float]:
        """By the widths: runs of so many rows a nanosecond."""
        found = self._speeds.get(rows)
        if found is None:
            found = self._speeds[rows] = [1 / max(took, 1.0) for took in self._times(rows)]
        return found

    def _times(self, rows: int) -> list[float]:
        known = self._took_ns.get(rows)
        if known is not None:
            return known
        batches = self._batches
        if rows < batches[0] or len(batches) == 1:
            return [max(took * rows / batches[0], took) for took in self._took_ns[batches[0]]]
        above = min(bisect_left(batches, rows), len(batches) - 1)
        low, high = batches[above - 1], batches[above]
        part = (rows - low) / (high - low)
        return [
            left + part * (right - left) for left, right in zip(self._took_ns[low], self._took_ns[high], strict=True)
        ]

    def speed(self, rows: int, units: float) -> float:
        """Of a run of so many rows on so many units, whole or not."""
        speeds, widths = self.speeds(rows), self.widths
        if units <= widths[0]:
            return speeds[0] * units / widths[0]
        if units >= widths[-1]:
            return speeds[-1]
        above = bisect_left(widths, units)
        part = (units - widths[above - 1]) / (widths[above] - widths[above - 1])
        return speeds[above - 1] + part * (speeds[above] - speeds[above - 1])

    def took_ns(self, rows: int, units: float) -> float:
        """How long such a run takes alone."""
        return 1 / self.speed(rows, units)

    def most_units(self, rows: int) -> int:
        """Past which a run is no faster at all."""
        speeds = self.speeds(rows)
        enough = speeds[-1] * (1 - _NO_FASTER)
        return next(units for units, speed in zip(self.widths, speeds, strict=True) if speed >= enough)

    def knee_units(self, rows: int) -> int:
        """Past which a run is hardly faster: what it can put to use."""
        speeds = self.speeds(rows)
        enough = speeds[-1] / (1 + KNEE_SLACK)
        return next(units for units, speed in zip(self.widths, speeds, strict=True) if speed >= enough)
