"""How many requests come in the next window? By the last windows, and by the time of day once it is known.

Several opinions are kept: means of the last windows that forget more or less quickly, and the mean of the same time on
earlier days. Each is weighted by how small its squared errors were of late. The interval is made of the errors that
the mixture itself made of late, at least those of arrivals that know nothing of each other. Instants count from a
midnight: whoever has another clock (machine/days.py) says how far that is from one.
"""

from __future__ import annotations

import math
from typing import Final

from cotenant.domain.day import DAY_NS, PARTS_OF_A_DAY
from cotenant.domain.estimate import COVERAGE, Estimate
from cotenant.domain.value import Value

_SURE: Final = 1.645
"""Standard deviations either side that hold nine tenths of a normal distribution."""


class Watch(Value, frozen=True):
    """How it looks at load. Our choices; `cotenant lab predictor-node` shows what they do."""

    rates: tuple[float, ...] = (1.0, 0.3, 0.05)
    """Weight of the latest window in each mean, the quickest first."""
    forget: float = 0.05
    """Weight of the latest error in what is known of errors."""
    bins: int = PARTS_OF_A_DAY
    """Of a day: the memory is bounded by them."""
    days: int = 1
    """So many earlier days before the time of day has an opinion."""
    day_weight: float = 0.3
    """Least weight of the latest day in a bin."""


class Bin(Value, frozen=True):
    """A time of day: mean requests per window on earlier days, and the sum of the day that is under way."""

    mean: float = 0.0
    days: int = 0
    day: int = -1
    total: float = 0.0
    windows: int = 0

    def usual(self, day: int, weight: float) -> tuple[float, int]:
        """Mean per window and number of the days before this one."""
        if self.day in {-1, day} or not self.windows:
            return self.mean, self.days
        latest = self.total / self.windows
        return self.mean + max(weight, 1 / (self.days + 1)) * (latest - self.mean), self.days + 1

    def after(self, day: int, requests: float, weight: float) -> Bin:
        """With one more window counted."""
        if day == self.day:
            return Bin(self.mean, self.days, day, self.total + requests, self.windows + 1)
        mean, days = self.usual(day, weight)
        return Bin(mean, days, day, requests, 1)


class Load(Value, frozen=True):
    """All that is remembered; begin with `Load()`."""

    windows: int = 0
    means: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()
    """Mean squared error of each opinion of late: the means', then that of the time of day."""
    mixed_error: float = 0.0
    """Mean of squared error over expected requests of late, of the mixture."""
    day: tuple[Bin, ...] = ()

    def next_window(self, at_ns: int, watch: Watch | None = None) -> Estimate | None:
        """Requests in the window that begins at this instant; None: nothing was seen yet."""
        rules = watch or Watch()
        if not self.windows:
            return None
        point = self._mixed(at_ns, rules)
        spread = math.sqrt(max(self.mixed_error, 1.0) * max(point, 1.0))
        return Estimate(max(0.0, point - _SURE * spread), point, point + _SURE * spread, COVERAGE)

    def after(self, requests: int, at_ns: int, watch: Watch | None = None) -> Load:
        """With the window that began at this instant counted."""
        rules = watch or Watch()
        bins = self.day or (Bin(),) * rules.bins
        place, day = _place(at_ns, len(bins))
        known = (*bins[:place], bins[place].after(day, float(requests), rules.day_weight), *bins[place + 1 :])
        if not self.windows:
            first = (float(requests),) * len(rules.rates)
            return Load(1, first, (0.0,) * (len(rules.rates) + 1), 1.0, known)
        opinions, point = self._opinions(at_ns, rules), self._mixed(at_ns, rules)
        forget = _weight(rules.forget, self.windows)
        errors = tuple(
            old if opinion is None else old + forget * ((requests - opinion) ** 2 - old)
            for old, opinion in zip(self.errors, opinions, strict=True)
        )
        means = tuple(
            mean + _weight(rate, self.windows) * (requests - mean)
            for mean, rate in zip(self.means, rules.rates, strict=True)
        )
        surprise = (requests - point) ** 2 / max(point, 1.0)
        mixed_error = self.mixed_error + forget * (surprise - self.mixed_error)
        return Load(self.windows + 1, means, errors, mixed_error, known)

    def _opinions(self, at_ns: int, rules: Watch) -> tuple[float | None, ...]:
        usual = None
        if self.day:
            place, day = _place(at_ns, len(self.day))
            mean, days = self.day[place].usual(day, rules.day_weight)
            usual = mean if days >= rules.days else None
        return (*self.means, usual)

    def _mixed(self, at_ns: int, rules: Watch) -> float:
        said = [
            (opinion, 1 / max(error, 1e-3) ** 2)
            for opinion, error in zip(self._opinions(at_ns, rules), self.errors, strict=True)
            if opinion is not None
        ]
        return sum(opinion * weight for opinion, weight in said) / sum(weight for _, weight in said)


def _place(at_ns: int, bins: int) -> tuple[int, int]:
    return at_ns % DAY_NS * bins // DAY_NS, at_ns // DAY_NS


def _weight(rate: float, seen: int) -> float:
    """The first ones are averaged: one early window should not count for long."""
    return max(rate, 1 / (seen + 1))
