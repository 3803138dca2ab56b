"""How long did it take, at which quantile? Mergeable, and its error is bounded by `RELATIVE_ERROR`.

Values below 128 are counted exactly. Above, every octave has 64 buckets and a quantile is answered by the middle of
its bucket, so the answer differs from the exact nearest-rank quantile by at most 1/128 of it. The smallest and the
largest value are kept exactly, and every answer lies between them.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Final

from cotenant.domain.value import Value

_OCTAVE_BITS: Final = 6
_EXACT_BELOW: Final = 1 << (_OCTAVE_BITS + 1)
RELATIVE_ERROR: Final = 1 / (1 << (_OCTAVE_BITS + 1))


def bucket_of(value: int) -> int:
    """The bucket that counts this value; grows with the value, without gaps."""
    if value < _EXACT_BELOW:
        return value
    shift = value.bit_length() - _OCTAVE_BITS - 1
    return (shift << _OCTAVE_BITS) + (value >> shift)


def bucket_middle(bucket: int) -> int:
    """The value that stands for all values of a bucket."""
    if bucket < _EXACT_BELOW:
        return bucket
    shift = (bucket >> _OCTAVE_BITS) - 1
    lowest = (bucket - (shift << _OCTAVE_BITS)) << shift
    return lowest + ((1 << shift) - 1) // 2


class Histogram(Value, frozen=True):
    """Counts by bucket, ascending, of non-negative integers."""

    buckets: tuple[tuple[int, int], ...] = ()
    count: int = 0
    total: int = 0
    lowest: int = 0
    highest: int = 0

    @property
    def mean(self) -> float:
        """The exact mean."""
        return self.total / self.count if self.count else 0.0

    @property
    def sound(self) -> bool:
        """Whether it could have been recorded: what comes from outside may contradict itself."""
        numbers = [bucket for bucket, _ in self.buckets]
        counts = [times for _, times in self.buckets]
        if not self.count:
            return not self.buckets and self.total == self.lowest == self.highest == 0
        return (
            sum(counts) == self.count
            and min(counts) > 0
            and all(one < other for one, other in itertools.pairwise(numbers))
            and 0 <= self.lowest <= self.highest
            and (bucket_of(self.lowest), bucket_of(self.highest)) == (numbers[0], numbers[-1])
            and self.lowest * self.count <= self.total <= self.highest * self.count
        )

    def quantile(self, fraction: float) -> int:
        """The nearest-rank quantile within `RELATIVE_ERROR`; 0 when nothing was recorded."""
        if not self.count:
            return 0
        rank = max(1, math.ceil(Fraction(str(fraction)) * self.count))  # 0.55 * 100 is more than 55 in floats
        seen = 0
        for bucket, times in self.buckets:
            seen += times
            if seen >= rank:
                return min(max(bucket_middle(bucket), self.lowest), self.highest)
        return self.highest

    def merged(self, other: Histogram) -> Histogram:
        """Both as if everything had been recorded in one."""
        recorder = Recorder()
        recorder.add(self)
        recorder.add(other)
        return recorder.histogram()


class Recorder:
    """The one owner that counts; everybody else gets the frozen `histogram()`."""

    __slots__ = ("_counts", "_highest", "_lowest", "_total")

    def __init__(self) -> None:
        """Start empty."""
        self._counts: dict[int, int] = {}
        self._total = 0
        self._lowest = 0
        self._highest = -1

    def record(self, value: int) -> None:
        """Count one value; negative ones are a caller's mistake and count as zero."""
        value = max(value, 0)
        bucket = bucket_of(value)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._total += value
        self._lowest = value if self._highest < 0 else min(self._lowest, value)
        self._highest = max(self._highest, value)

    def add(self, other: Histogram) -> None:
        """Take over everything another histogram counted."""
        if not other.count:
            return
        for bucket, times in other.buckets:
            self._counts[bucket] = self._counts.get(bucket, 0) + times
        self._total += other.total
        self._lowest = other.lowest if self._highest < 0 else min(self._lowest, other.lowest)
        self._highest = max(self._highest, other.highest)

    def histogram(self) -> Histogram:
        """What was counted so far, as a value."""
        return Histogram(
            tuple(sorted(self._counts.items())),
            sum(self._counts.values()),
            self._total,
            self._lowest,
            max(self._highest, 0),
        )
