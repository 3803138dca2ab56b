"""How does the load of a service change over time? Rates by the instant, and instants that were recorded."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

from cotenant.domain.instant import SECOND_NS
from cotenant.domain.value import Value


class Steps(Value, frozen=True):
    """A rate from each of these instants on, at random within it; the first is of the beginning."""

    rates: tuple[tuple[int, float], ...]
    """(from when, requests per second), ascending."""

    @property
    def most_per_s(self) -> float:
        """It is never above this."""
        return max(rate for _, rate in self.rates)

    def at(self, instant_ns: int) -> float:
        """Requests per second at an instant."""
        return self.rates[max(bisect.bisect_right(self.rates, (instant_ns, math.inf)) - 1, 0)][1]


class Diurnal(Value, frozen=True):
    """A day as a sine, sped up: lowest at its beginning, highest half way through."""

    mean_per_s: float
    day_ns: int
    swing: float = 0.8
    """Of the mean, what the curve rises above it and falls below it."""

    @property
    def most_per_s(self) -> float:
        """It is never above this."""
        return self.mean_per_s * (1 + self.swing)

    def at(self, instant_ns: int) -> float:
        """Requests per second at an instant."""
        return self.mean_per_s * (1 - self.swing * math.cos(2 * math.pi * instant_ns / self.day_ns))


class Bursts(Value, frozen=True):
    """Two states that change at random, and a rate in each: a Markov-modulated Poisson process."""

    low_per_s: float
    high_per_s: float
    low_ns: int
    """How long the low state lasts in the mean."""
    high_ns: int

    @property
    def mean_per_s(self) -> float:
        """In the long run."""
        return (self.low_per_s * self.low_ns + self.high_per_s * self.high_ns) / (self.low_ns + self.high_ns)


Rhythm: TypeAlias = Steps | Diurnal | Bursts


def steady(rate_per_s: float) -> Steps:
    """One rate throughout, at random instants."""
    return Steps(((0, rate_per_s),))


def bursty(mean_per_s: float, ratio: float, low_ns: int, high_ns: int) -> Bursts:
    """With this mean, and bursts so many times as dense as what is between them."""
    low_per_s = mean_per_s * (low_ns + high_ns) / (low_ns + ratio * high_ns)
    return Bursts(low_per_s, ratio * low_per_s, low_ns, high_ns)


def rescaled(recorded_ns: Sequence[int], rate_per_s: float, for_ns: int, begin: float = 0.0) -> tuple[int, ...]:
    """As many recorded instants as come in so long at this rate, with time stretched or pressed to fit.

    From a part of the recording on (0 to 1); what is recorded keeps its shape: bursts and pauses scale with the rest.
    A recording that is too short goes round.
    """
    count = max(round(rate_per_s * for_ns / SECOND_NS), 1)
    first = min(int(begin * len(recorded_ns)), len(recorded_ns) - 1)
    gaps = [max(after - before, 0) for before, after in itertools.pairwise(recorded_ns)] or [1]
    chosen = list(itertools.islice(itertools.cycle(gaps[first:] + gaps[:first]), count))
    span_ns = max(sum(chosen), 1)
    ends = itertools.accumulate(chosen[:-1], initial=0)
    return tuple(for_ns * end_ns // span_ns for end_ns in ends)
