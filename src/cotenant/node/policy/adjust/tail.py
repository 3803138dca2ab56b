"""Tail latency of a tenant and its uncertainty after few requests.

With hundreds of requests the tail quantile is counted. With fewer it is extrapolated from the middle of a log-normal
distribution, because the p99 of twenty requests is just the longest of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from cotenant.gate.request_buckets import count_above, quantile_of

_ENOUGH_ABOVE: Final = 5
"""With this many requests beyond it, a quantile is counted rather than extrapolated."""
_LEAST_SPREAD: Final = 0.04
"""A bucket is 1/16 wide, so no distribution appears narrower than this."""
_MIDDLE: Final = 0.5
_SHOULDER: Final = 0.9
_SHOULDER_DEVIATES: Final = 1.2816
"""Standard deviations between this quantile of a normal distribution and its middle."""


class TailEstimate(NamedTuple):
    """A high quantile: its estimate and its upper confidence bound."""

    requests: float
    estimate_ns: float
    upper_ns: float


class Latencies:
    """Latencies with exponential decay that always keeps a minimum number of requests."""

    __slots__ = ("_buckets", "_keep", "requests")

    def __init__(self, keep: int) -> None:
        """Begin without requests."""
        self._keep = keep
        self._buckets: dict[int, float] = {}
        self.requests = 0.0

    def add(self, latencies: Iterable[tuple[int, int]]) -> None:
        """Count requests that ended."""
        for bucket, count in latencies:
            self._buckets[bucket] = self._buckets.get(bucket, 0.0) + count
            self.requests += count

    def fade(self, part: float) -> None:
        """Multiply the counts by this factor, but keep the minimum number of requests."""
        if self.requests > self._keep:
            part = max(part, self._keep / self.requests)
            self._buckets = {bucket: count * part for bucket, count in self._buckets.items()}
            self.requests *= part

    def clear(self) -> None:
        """Forget all requests."""
        self._buckets.clear()
        self.requests = 0.0

    def above(self, latency_ns: float) -> float:
        """Return how many requests took longer."""
        return count_above(self._buckets.items(), latency_ns)

    def quantile(self, fraction: float) -> float:
        """Return the counted quantile."""
        return quantile_of(sorted(self._buckets.items()), fraction)

    def tail(self, fraction: float, sure: float, together: float = 1.0) -> TailEstimate:
        """Return the quantile and its bound, `sure` standard deviations of the estimate above it.

        Requests that are slow together, `together` at a time, count as one.
        """
        if not self.requests:
            return TailEstimate(0.0, 0.0, math.inf)
        buckets = sorted(self._buckets.items())
        middle, shoulder = quantile_of(buckets, _MIDDLE), quantile_of(buckets, _SHOULDER)
        counted = quantile_of(buckets, fraction)
        deviates = deviates_of(fraction)
        spread = max(math.log(shoulder / middle) / _SHOULDER_DEVIATES, _LEAST_SPREAD)
        estimate_ns = counted
        if self.requests * (1 - fraction) < _ENOUGH_ABOVE:
            estimate_ns = max(counted, middle * math.exp(spread * deviates))
        spread = max(spread, math.log(max(estimate_ns / middle, 1.0)) / deviates)
        uncertainty = sure * spread * math.sqrt((1 + deviates * deviates / 2) * together / self.requests)
        return TailEstimate(self.requests, estimate_ns, estimate_ns * math.exp(min(uncertainty, 5.0)))


def deviates_of(fraction: float) -> float:
    """Return how many standard deviations a quantile of a normal distribution lies above its middle.

    Hastings' rational approximation (Abramowitz and Stegun 26.2.23), with an error below 0.00045.
    """
    root = math.sqrt(-2 * math.log(max(1 - fraction, 1e-12)))
    above = 2.515517 + 0.802853 * root + 0.010328 * root * root
    return root - above / (1 + 1.432788 * root + 0.189269 * root * root + 0.001308 * root**3)
