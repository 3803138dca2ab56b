"""How long does a run of so many rows on so many units take? By a profile, and by what runs took lately."""

from __future__ import annotations

from typing import Final

from cotenant.domain.instant import Duration
from cotenant.domain.runtimes import RunTimes

_WEIGHT: Final = 8
"""Each outcome moves the belief by an eighth: ten runs or so forget a change of speed. Our choice."""


class ServiceTimes:
    """What runs of one model take, by their units and rows."""

    __slots__ = ("_high_ns", "_typical_ns", "widths")

    def __init__(self, times: RunTimes | None = None, units: int = 1) -> None:
        """Believe a profile, or nothing yet."""
        self._typical_ns: dict[int, dict[int, Duration]] = {}
        self._high_ns: dict[int, dict[int, Duration]] = {}
        self.widths: tuple[int, ...] = (units,) if times is None else times.widths()
        for one in () if times is None else times.times:
            self._typical_ns.setdefault(one.units, {})[one.rows] = one.typical_ns
            self._high_ns.setdefault(one.units, {})[one.rows] = one.high_ns

    def learn(self, rows: int, units: int, took_ns: Duration) -> None:
        """A run of so many rows on so many units took so long."""
        typical = self._typical_ns.setdefault(units, {})
        high = self._high_ns.setdefault(units, {})
        before = typical.get(rows)
        typical[rows] = took_ns if before is None else before + (took_ns - before) // _WEIGHT
        ceiling = high.get(rows)
        if ceiling is None or took_ns >= ceiling:
            high[rows] = took_ns
        else:
            high[rows] = ceiling + (took_ns - ceiling) // (8 * _WEIGHT)

    def expected_ns(self, rows: int, units: int) -> Duration:
        """What is believed of a run; zero before the first outcome.

        Of sizes never run, the next larger one is the answer; beyond the largest, time grows in proportion.
        """
        return _look_up(self._typical_ns, rows, units)

    def high_ns(self, rows: int, units: int) -> Duration:
        """What a run exceeds now and then."""
        return _look_up(self._high_ns, rows, units)


def _look_up(known: dict[int, dict[int, Duration]], rows: int, units: int) -> Duration:
    if not known:
        return 0
    at_units = known.get(units)
    if at_units is None:
        below = [one for one in known if one < units]
        at_units = known[max(below) if below else min(known)]
    found = at_units.get(rows)
    if found is not None:
        return found
    larger = [size for size in at_units if size > rows]
    if larger:
        return at_units[min(larger)]
    largest = max(at_units)
    return at_units[largest] * rows // max(largest, 1)
