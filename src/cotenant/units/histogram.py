"""Mergeable histograms of non-negative integers with a bounded relative error.

Values below 128 are counted exactly. Larger values are counted in 64 buckets per octave, and a quantile is the middle
of its bucket, so it differs from the exact nearest-rank quantile by at most 1/128 (`RELATIVE_ERROR`). The smallest and
the largest value are kept exactly, and every quantile lies between them.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

from cotenant.units.value import Value

_OCTAVE_BITS: Final = 6
_EXACT_BELOW: Final = 1 << (_OCTAVE_BITS + 1)
RELATIVE_ERROR: Final = 1 / (1 << (_OCTAVE_BITS + 1))


def bucket_of(value: int) -> int:
    """Return the bucket that counts this value; buckets grow with the value, without gaps."""
    if value < _EXACT_BELOW:
        return value
    shift = value.bit_length() - _OCTAVE_BITS - 1
    return (shift << _OCTAVE_BITS) + (value >> shift)


def bucket_middle(bucket: int) -> int:
    """Return the value that represents all values of a bucket."""
    if bucket < _EXACT_BELOW:
        return bucket
    shift = (bucket >> _OCTAVE_BITS) - 1
    lowest = (bucket - (shift << _OCTAVE_BITS)) << shift
    return lowest + ((1 << shift) - 1) // 2


class Histogram(Value, frozen=True):
    """Counts of non-negative integers by bucket, in ascending order."""

    buckets: tuple[tuple[int, int], ...] = ()
    count: int = 0
    total: int = 0
    lowest: int = 0
    highest: int = 0

    @property
    def mean(self) -> float:
        """Return the exact mean."""
        return self.total / self.count if self.count else 0.0

    @property
    def sound(self) -> bool:
        """Return whether the fields are consistent; a histogram from outside may contradict itself."""
        numbers = [bucket for bucket, _ in self.buckets]
        counts = [times for _, times in self.buckets]
        if not self.count:
            return not self.buckets and self.total == self.lowest == self.highest == 0
        return (
            sum(counts) == self.count
            and min(counts) > 0
            and all(lower < higher for lower, higher in itertools.pairwise(numbers))
            and 0 <= self.lowest <= self.highest
            and (bucket_of(self.lowest), bucket_of(self.highest)) == (numbers[0], numbers[-1])
            and self.lowest * self.count <= self.total <= self.highest * self.count
        )

    def quantile(self, fraction: float) -> int:
        """Return the nearest-rank quantile within `RELATIVE_ERROR`; 0 for an empty histogram."""
        if not self.count:
            return 0
        from fractions import Fraction  # noqa: PLC0415  slow to import

        rank = max(1, math.ceil(Fraction(str(fraction)) * self.count))  # 0.55 * 100 is more than 55 in floats
        cumulative = 0
        for bucket, times in self.buckets:
            cumulative += times
            if cumulative >= rank:
                return min(max(bucket_middle(bucket), self.lowest), self.highest)
        return self.highest

    def merged(self, other: Histogram) -> Histogram:
        """Return the histogram of all values of both."""
        recorder = Recorder()
        recorder.add(self)
        recorder.add(other)
        return recorder.histogram()


class Recorder:
    """Counts values; `histogram()` returns them as a frozen value."""

    __slots__ = ("_counts", "_highest", "_lowest", "_total")

    def __init__(self) -> None:
        """Start empty."""
        self._counts: dict[int, int] = {}
        self._total = 0
        self._lowest = 0
        self._highest = -1

    def record(self, value: int) -> None:
        """Count one value; a negative value counts as zero."""
        value = max(value, 0)
        bucket = bucket_of(value)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._total += value
        self._lowest = value if self._highest < 0 else min(self._lowest, value)
        self._highest = max(self._highest, value)

    def add(self, other: Histogram) -> None:
        """Add all values of another histogram."""
        if not other.count:
            return
        for bucket, times in other.buckets:
            self._counts[bucket] = self._counts.get(bucket, 0) + times
        self._total += other.total
        self._lowest = other.lowest if self._highest < 0 else min(self._lowest, other.lowest)
        self._highest = max(self._highest, other.highest)

    def histogram(self) -> Histogram:
        """Return the values counted so far."""
        return Histogram(
            tuple(sorted(self._counts.items())),
            sum(self._counts.values()),
            self._total,
            self._lowest,
            max(self._highest, 0),
        )
