"""Request rates as functions of time, and rescaling of recorded instants."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

from cotenant.units.instant import SECOND_NS
from cotenant.units.value import Value


class StepRate(Value, frozen=True):
    """A Poisson process whose rate changes at given instants; the first one is the start."""

    rates: tuple[tuple[int, float], ...]
    """(start instant, requests per second), ascending."""

    @property
    def peak_per_s(self) -> float:
        """Return the highest rate."""
        return max(rate for _, rate in self.rates)

    def at(self, instant_ns: int) -> float:
        """Return requests per second at an instant."""
        return self.rates[max(bisect.bisect_right(self.rates, (instant_ns, math.inf)) - 1, 0)][1]


class DiurnalRate(Value, frozen=True):
    """A diurnal rate as a sine with a shortened period: lowest at the start, highest in the middle."""

    mean_per_s: float
    cycle_ns: int
    swing: float = 0.8
    """Amplitude relative to the mean."""

    @property
    def peak_per_s(self) -> float:
        """Return the highest rate."""
        return self.mean_per_s * (1 + self.swing)

    def at(self, instant_ns: int) -> float:
        """Return requests per second at an instant."""
        return self.mean_per_s * (1 - self.swing * math.cos(2 * math.pi * instant_ns / self.cycle_ns))


class BurstRate(Value, frozen=True):
    """A Markov-modulated Poisson process with two states."""

    low_per_s: float
    high_per_s: float
    low_ns: int
    """Mean duration of the low state."""
    high_ns: int

    @property
    def mean_per_s(self) -> float:
        """Return the long-term mean rate."""
        return (self.low_per_s * self.low_ns + self.high_per_s * self.high_ns) / (self.low_ns + self.high_ns)


RateProcess: TypeAlias = StepRate | DiurnalRate | BurstRate


def constant_rate(rate_per_s: float) -> StepRate:
    """Return a constant rate."""
    return StepRate(((0, rate_per_s),))


def bursty_rate(mean_per_s: float, ratio: float, low_ns: int, high_ns: int) -> BurstRate:
    """Return bursts with this mean rate and this ratio between the rates of the two states."""
    low_per_s = mean_per_s * (low_ns + high_ns) / (low_ns + ratio * high_ns)
    return BurstRate(low_per_s, ratio * low_per_s, low_ns, high_ns)


def rescale_trace(recorded_ns: Sequence[int], rate_per_s: float, for_ns: int, begin: float = 0.0) -> tuple[int, ...]:
    """Rescale recorded instants to a rate and a period.

    Starts at a fraction of the recording (0 to 1) and keeps its shape: bursts and pauses scale with the time axis. A
    recording that is too short is repeated.
    """
    count = max(round(rate_per_s * for_ns / SECOND_NS), 1)
    first = min(int(begin * len(recorded_ns)), len(recorded_ns) - 1)
    gaps = [max(after - before, 0) for before, after in itertools.pairwise(recorded_ns)] or [1]
    chosen = list(itertools.islice(itertools.cycle(gaps[first:] + gaps[:first]), count))
    span_ns = max(sum(chosen), 1)
    ends = itertools.accumulate(chosen[:-1], initial=0)
    return tuple(for_ns * end_ns // span_ns for end_ns in ends)
