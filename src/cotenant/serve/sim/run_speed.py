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
        previous = [0.0] * len(self.widths)
        for rows in self._batches:
            fastest_ns = float("inf")
            times_ns: list[float] = []
            for index, units in enumerate(self.widths):
                cell = by_units[units].get(rows)
                fastest_ns = fastest_ns if cell is None else min(fastest_ns, float(cell.typical_ns))
                times_ns.append(max(fastest_ns, previous[index]))
            self._run_ns[rows] = previous = times_ns
        self._speeds: dict[int, list[float]] = {}

    def speeds(self, rows: int) -> list[float]:
        """Return runs per nanosecond for each width."""
        speeds = self._speeds.get(rows)
        if speeds is None:
            speeds = self._speeds[rows] = [1 / max(run_ns, 1.0) for run_ns in self._times(rows)]
        return speeds

    def _times(self, rows: int) -> list[float]:
        measured = self._run_ns.get(rows)
        if measured is not None:
            return measured
        batches = self._batches
        if rows < batches[0] or len(batches) == 1:
            return [max(run_ns * rows / batches[0], run_ns) for run_ns in self._run_ns[batches[0]]]
        upper = min(bisect_left(batches, rows), len(batches) - 1)
        low, high = batches[upper - 1], batches[upper]
        fraction = (rows - low) / (high - low)
        return [
            low_ns + fraction * (high_ns - low_ns)
            for low_ns, high_ns in zip(self._run_ns[low], self._run_ns[high], strict=True)
        ]

    def speed(self, rows: int, units: float) -> float:
        """Return the speed of a run on a number of units, which need not be an integer."""
        speeds, widths = self.speeds(rows), self.widths
        if units <= widths[0]:
            return speeds[0] * units / widths[0]
        if units >= widths[-1]:
            return speeds[-1]
        upper = bisect_left(widths, units)
        fraction = (units - widths[upper - 1]) / (widths[upper] - widths[upper - 1])
        return speeds[upper - 1] + fraction * (speeds[upper] - speeds[upper - 1])

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
