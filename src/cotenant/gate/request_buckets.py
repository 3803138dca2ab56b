"""Latency buckets of requests, as the gate pages count them (native/gate/request.h).

There are 16 buckets per power of two, so that a bucket is at most 1/16 wider than the latencies in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

_PARTS_BITS: Final = 4
_FIRST_BITS: Final = 14
_LAST_BITS: Final = 36
REQUEST_BUCKETS: Final = (_LAST_BITS - _FIRST_BITS) << _PARTS_BITS
"""From 2^14 ns (16 us) to 2^36 ns (69 s); shorter and longer latencies count in the first and the last bucket."""

Sparse: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of bucket and count, in ascending order."""


def bucket_of(latency_ns: int) -> int:
    """Return the bucket that counts this latency."""
    bits = latency_ns.bit_length() - 1
    if bits < _FIRST_BITS:
        return 0
    if bits >= _LAST_BITS:
        return REQUEST_BUCKETS - 1
    return ((bits - _FIRST_BITS - 1) << _PARTS_BITS) + (latency_ns >> (bits - _PARTS_BITS))


def bounds_of(bucket: int) -> tuple[int, int]:
    """Return the latencies of a bucket: from the first value, up to but excluding the second."""
    octave, part = divmod(bucket, 1 << _PARTS_BITS)
    step = 1 << (octave + _FIRST_BITS - _PARTS_BITS)
    begin = step * (part + (1 << _PARTS_BITS))
    return begin, begin + step


def quantile_of(buckets: Iterable[tuple[int, float]], fraction: float) -> float:
    """Return the latency that this fraction of requests did not exceed, interpolated; 0 without requests."""
    counted = [(bucket, count) for bucket, count in buckets if count > 0]
    rank = fraction * sum(count for _, count in counted)
    smaller = 0.0
    for bucket, count in counted:
        if smaller + count >= rank:
            begin, end = bounds_of(bucket)
            return begin + (end - begin) * max(rank - smaller, 0.0) / count
        smaller += count
    return float(bounds_of(counted[-1][0])[1]) if counted else 0.0


def count_above(buckets: Iterable[tuple[int, float]], latency_ns: float) -> float:
    """Return how many requests took longer, with the bucket of the latency itself counted in proportion."""
    longer = 0.0
    for bucket, count in buckets:
        begin, end = bounds_of(bucket)
        longer += count * min(max((end - latency_ns) / (end - begin), 0.0), 1.0)
    return longer
