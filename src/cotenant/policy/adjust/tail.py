"""What is the tail of a tenant's latencies, and how sure is that after so few requests?

With hundreds of requests the tail is counted. With fewer it is drawn out from the middle, as of a logarithmic normal
distribution: a p99 of twenty requests is their luckless longest, and says little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from cotenant.domain.control import count_above, quantile_of

_ENOUGH_ABOVE: Final = 5
"""With so many requests beyond it a quantile is counted rather than drawn out."""
_LEAST_SPREAD: Final = 0.04
"""A bucket is 1/16 wide: no distribution looks narrower than this through it."""
_MIDDLE: Final = 0.5
_SHOULDER: Final = 0.9
_SHOULDER_DEVIATES: Final = 1.2816
"""Of a normal distribution, how many standard deviations the quantile above lies above the middle."""


class Tail(NamedTuple):
    """A high quantile: what it is taken for, and what it hardly exceeds."""

    requests: float
    likely_ns: float
    hardly_ns: float


class Latencies:
    """Latencies that fade, but never below so many requests by time alone."""

    __slots__ = ("_buckets", "_keep", "requests")

    def __init__(self, keep: int) -> None:
        """Nothing was seen yet."""
        self._keep = keep
        self._buckets: dict[int, float] = {}
        self.requests = 0.0

    def add(self, latencies: Iterable[tuple[int, int]]) -> None:
        """Count what ended."""
        for bucket, count in latencies:
            self._buckets[bucket] = self._buckets.get(bucket, 0.0) + count
            self.requests += count

    def fade(self, part: float) -> None:
        """Only this part of them counts from now on, or as many as are always kept."""
        if self.requests > self._keep:
            part = max(part, self._keep / self.requests)
            self._buckets = {bucket: count * part for bucket, count in self._buckets.items()}
            self.requests *= part

    def clear(self) -> None:
        """What was seen says nothing about what comes."""
        self._buckets.clear()
        self.requests = 0.0

    def above(self, latency_ns: float) -> float:
        """How many took longer."""
        return count_above(self._buckets.items(), latency_ns)

    def quantile(self, fraction: float) -> float:
        """As it was counted."""
        return quantile_of(sorted(self._buckets.items()), fraction)

    def tail(self, fraction: float, sure: float, together: float = 1.0) -> Tail:
        """The quantile, and what it hardly exceeds: so many standard deviations of the estimate above it.

        Requests that are slow together, so many at a time, tell no more than one of them.
        """
        if not self.requests:
            return Tail(0.0, 0.0, math.inf)
        buckets = sorted(self._buckets.items())
        middle, shoulder = quantile_of(buckets, _MIDDLE), quantile_of(buckets, _SHOULDER)
        counted = quantile_of(buckets, fraction)
        deviates = deviates_of(fraction)
        spread = max(math.log(shoulder / middle) / _SHOULDER_DEVIATES, _LEAST_SPREAD)
        likely_ns = counted
        if self.requests * (1 - fraction) < _ENOUGH_ABOVE:
            likely_ns = max(counted, middle * math.exp(spread * deviates))
        spread = max(spread, math.log(max(likely_ns / middle, 1.0)) / deviates)
        doubt = sure * spread * math.sqrt((1 + deviates * deviates / 2) * together / self.requests)
        return Tail(self.requests, likely_ns, likely_ns * math.exp(min(doubt, 5.0)))


def deviates_of(fraction: float) -> float:
    """How many standard deviations a quantile of a normal distribution lies above the middle.

    By Hastings' rational approximation (Abramowitz and Stegun 26.2.23), wrong by less than 0.00045.
    """
    root = math.sqrt(-2 * math.log(max(1 - fraction, 1e-12)))
    above = 2.515517 + 0.802853 * root + 0.010328 * root * root
    return root - above / (1 + 1.432788 * root + 0.189269 * root * root + 0.001308 * root**3)
