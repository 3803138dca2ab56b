"""How much will it be, and how sure is that? A point, and an interval that is to hold the outcome so often."""

from __future__ import annotations

import math
from typing import Final

from cotenant.domain.value import Value

COVERAGE: Final = 0.9
"""How often the outcome should lie within the interval, where nothing else is said."""

_MOST_LOG: Final = 50.0
_NOTHING: Final = 1e-200
"""Points up to this are 0 as far as ratios go."""


class Estimate(Value, frozen=True):
    """What is expected; `low` to `high` is meant to hold `coverage` of the outcomes."""

    low: float
    point: float
    high: float
    coverage: float = COVERAGE

    def holds(self, outcome: float) -> bool:
        """Whether the outcome lies within the interval."""
        return self.low <= outcome <= self.high

    def moved(self, shift: float, scale: float) -> Estimate:
        """Times exp(shift), and an interval `scale` times as wide, both on the scale of ratios."""
        factor = math.exp(shift)
        if self.point <= _NOTHING:
            return Estimate(self.low * factor, self.point * factor, self.high * factor * max(scale, 1.0), self.coverage)
        low = self.point * (self.low / self.point) ** scale
        high = self.point * _grown(self.high / self.point, scale)
        return Estimate(low * factor, self.point * factor, high * factor, self.coverage)

    def by(self, factor: Estimate) -> Estimate:
        """Times another one that errs by itself, as latency alone by a slowdown; the lower coverage holds."""
        low = math.hypot(_log(self.point, self.low), _log(factor.point, factor.low))
        high = math.hypot(_log(self.high, self.point), _log(factor.high, factor.point))
        point = self.point * factor.point
        return Estimate(point * math.exp(-low), point, point * math.exp(high), min(self.coverage, factor.coverage))

    def times(self, factor: float) -> Estimate:
        """The same of something `factor` times as large."""
        return Estimate(self.low * factor, self.point * factor, self.high * factor, self.coverage)


def around(point: float, doubt: float, coverage: float = COVERAGE) -> Estimate:
    """A point, uncertain by a factor exp(doubt) either way."""
    factor = math.exp(min(doubt, _MOST_LOG))
    return Estimate(point / factor, point, point * factor, coverage)


def _log(above: float, below: float) -> float:
    """The logarithm of their ratio, within what can be raised to again."""
    return min(math.log(above / below), _MOST_LOG) if below > 0 else _MOST_LOG


def _grown(ratio: float, scale: float) -> float:
    return math.exp(min(math.log(ratio) * scale, _MOST_LOG))
