"""Prediction of the number of requests in the next window, from recent windows and the time of day.

Several predictors are kept: means of recent windows with different rates, and the mean of the same time on earlier
days. Each is weighted by its recent squared errors. The interval follows the recent errors of the mixture, and is at
least that of a Poisson process. Instants count from a midnight; a caller with another clock converts.
"""

from __future__ import annotations

import math
from typing import Final

from cotenant.predict.diurnal_profile import BINS_PER_DAY, DAY_NS
from cotenant.units.estimate import COVERAGE, Estimate
from cotenant.units.value import Value

_Z_90: Final = 1.645
"""Standard deviations either side that contain 90 % of a normal distribution."""


class LoadRules(Value, frozen=True):
    """Rates and limits. Our choices; `cotenant-lab study predictor` shows their effect."""

    rates: tuple[float, ...] = (1.0, 0.3, 0.05)
    """Weight of the latest window in each mean, the fastest first."""
    forget: float = 0.05
    """Weight of the latest error in the error estimates."""
    bins: int = BINS_PER_DAY
    """Bins of a day; they bound the memory."""
    days: int = 1
    """Earlier days that are needed before the time of day is used."""
    day_weight: float = 0.3
    """Smallest weight of the latest day in a bin."""


_RULES: Final = LoadRules()


class Bin(Value, frozen=True):
    """A bin of the day: mean requests per window on earlier days, and the sum of the present day."""

    mean: float = 0.0
    days: int = 0
    day: int = -1
    total: float = 0.0
    windows: int = 0

    def usual(self, day: int, weight: float) -> tuple[float, int]:
        """Return the mean per window and the number of the days before this one."""
        if self.day in {-1, day} or not self.windows:
            return self.mean, self.days
        latest = self.total / self.windows
        return self.mean + max(weight, 1 / (self.days + 1)) * (latest - self.mean), self.days + 1

    def after(self, day: int, requests: float, weight: float) -> Bin:
        """Return the bin with one more window."""
        if day == self.day:
            return Bin(self.mean, self.days, day, self.total + requests, self.windows + 1)
        mean, days = self.usual(day, weight)
        return Bin(mean, days, day, requests, 1)


class Load(Value, frozen=True):
    """State of the prediction; begin with `Load()`."""

    windows: int = 0
    means: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()
    """Recent mean squared error of each predictor: the means, then the time of day."""
    mixed_error: float = 0.0
    """Recent mean of squared error over expected requests, of the mixture."""
    day: tuple[Bin, ...] = ()

    def next_window(self, at_ns: int, watch: LoadRules | None = None) -> Estimate | None:
        """Return the requests in the window that begins at this instant; None: there was no window yet."""
        rules = watch or _RULES
        if not self.windows:
            return None
        point = self._mixed(self._predictions(at_ns, rules))
        spread = math.sqrt(max(self.mixed_error, 1.0) * max(point, 1.0))
        return Estimate(max(0.0, point - _Z_90 * spread), point, point + _Z_90 * spread, COVERAGE)

    def after(self, requests: int, at_ns: int, watch: LoadRules | None = None) -> Load:
        """Return the load with the window that began at this instant."""
        rules = watch or _RULES
        bins = self.day or (Bin(),) * rules.bins
        index, day = _bin_and_day(at_ns, len(bins))
        updated = (*bins[:index], bins[index].after(day, float(requests), rules.day_weight), *bins[index + 1 :])
        if not self.windows:
            first = (float(requests),) * len(rules.rates)
            return Load(1, first, (0.0,) * (len(rules.rates) + 1), 1.0, updated)
        predictions = self._predictions(at_ns, rules)
        point = self._mixed(predictions)
        forget = _weight(rules.forget, self.windows)
        errors = tuple(
            old if prediction is None else old + forget * ((requests - prediction) ** 2 - old)
            for old, prediction in zip(self.errors, predictions, strict=True)
        )
        means = tuple(
            mean + _weight(rate, self.windows) * (requests - mean)
            for mean, rate in zip(self.means, rules.rates, strict=True)
        )
        surprise = (requests - point) ** 2 / max(point, 1.0)
        mixed_error = self.mixed_error + forget * (surprise - self.mixed_error)
        return Load(self.windows + 1, means, errors, mixed_error, updated)

    def _predictions(self, at_ns: int, rules: LoadRules) -> tuple[float | None, ...]:
        usual = None
        if self.day:
            index, day = _bin_and_day(at_ns, len(self.day))
            mean, days = self.day[index].usual(day, rules.day_weight)
            usual = mean if days >= rules.days else None
        return (*self.means, usual)

    def _mixed(self, predictions: tuple[float | None, ...]) -> float:
        """Return the mean of these predictions, weighted by the recent errors of their predictors."""
        weighted_sum = weights = 0.0
        for prediction, error in zip(predictions, self.errors, strict=True):
            if prediction is not None:
                weight = 1 / max(error, 1e-3) ** 2
                weighted_sum += prediction * weight
                weights += weight
        return weighted_sum / weights


def _bin_and_day(at_ns: int, bins: int) -> tuple[int, int]:
    return at_ns % DAY_NS * bins // DAY_NS, at_ns // DAY_NS


def _weight(rate: float, count: int) -> float:
    """Return the weight of the latest value; the first values are averaged so that none dominates."""
    return max(rate, 1 / (count + 1))
