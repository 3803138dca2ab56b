"""Estimates: a point and an interval that contains the outcome with a given probability."""

from __future__ import annotations

import math
from typing import Final

from cotenant.units.value import Value

COVERAGE: Final = 0.9
"""The default probability that the outcome lies within the interval."""

_MAX_LOG: Final = 50.0
_ZERO: Final = 1e-200
"""Points up to this value count as 0 where ratios are computed."""


class Estimate(Value, frozen=True):
    """An expected value; `low` to `high` should contain the fraction `coverage` of the outcomes."""

    low: float
    point: float
    high: float
    coverage: float = COVERAGE

    def holds(self, outcome: float) -> bool:
        """Return whether the outcome lies within the interval."""
        return self.low <= outcome <= self.high

    def moved(self, shift: float, scale: float) -> Estimate:
        """Return this estimate times exp(shift), with an interval `scale` times as wide on the logarithmic scale."""
        factor = math.exp(shift)
        if self.point <= _ZERO:
            return Estimate(self.low * factor, self.point * factor, self.high * factor * max(scale, 1.0), self.coverage)
        low = self.point * (self.low / self.point) ** scale
        high = self.point * _power(self.high / self.point, scale)
        return Estimate(low * factor, self.point * factor, high * factor, self.coverage)

    def by(self, factor: Estimate) -> Estimate:
        """Return the product with an independent estimate, such as a latency times a slowdown.

        The coverage is the lower of the two.
        """
        low = math.hypot(_log(self.point, self.low), _log(factor.point, factor.low))
        high = math.hypot(_log(self.high, self.point), _log(factor.high, factor.point))
        point = self.point * factor.point
        return Estimate(point * math.exp(-low), point, point * math.exp(high), min(self.coverage, factor.coverage))

    def inverse(self) -> Estimate:
        """Return the estimate of one over the value, which is positive."""
        return Estimate(1 / self.high, 1 / self.point, 1 / self.low, self.coverage)

    def times(self, factor: float) -> Estimate:
        """Return this estimate times an exact factor."""
        return Estimate(self.low * factor, self.point * factor, self.high * factor, self.coverage)


def around(point: float, doubt: float, coverage: float = COVERAGE) -> Estimate:
    """Return a point that is uncertain by a factor exp(doubt) in both directions."""
    factor = math.exp(min(doubt, _MAX_LOG))
    return Estimate(point / factor, point, point * factor, coverage)


def _log(larger: float, smaller: float) -> float:
    """Return the logarithm of the ratio, bounded so that exp() of it does not overflow."""
    return min(math.log(larger / smaller), _MAX_LOG) if smaller > 0 else _MAX_LOG


def _power(ratio: float, scale: float) -> float:
    return math.exp(min(math.log(ratio) * scale, _MAX_LOG))
