"""Latency buckets count what their bounds say, and quantiles over them are close."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.request_buckets import REQUEST_BUCKETS, bounds_of, bucket_of, count_above, quantile_of

latencies = st.integers(1 << 14, (1 << 36) - 1)


def test_buckets_follow_each_other_without_gaps() -> None:
    assert REQUEST_BUCKETS == 352
    bounds = [bounds_of(bucket) for bucket in range(REQUEST_BUCKETS)]
    assert bounds[0][0] == 1 << 14
    assert bounds[-1][1] == 1 << 36
    assert all(lower[1] == upper[0] for lower, upper in itertools.pairwise(bounds))
    assert [bucket_of(begin) for begin, _ in bounds] == list(range(REQUEST_BUCKETS))
    assert [bucket_of(end - 1) for _, end in bounds] == list(range(REQUEST_BUCKETS))
    assert [bucket_of(ns) for ns in (0, 1, (1 << 14) - 1, 1 << 36, 1 << 60)] == [0, 0, 0, 351, 351]


@given(latencies)
def test_bucket_is_at_most_a_sixteenth_wide(latency_ns: int) -> None:
    begin, end = bounds_of(bucket_of(latency_ns))
    assert begin <= latency_ns < end
    assert (end - begin) * 16 <= begin


@given(st.lists(latencies, min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_quantile_is_within_a_bucket_of_the_exact_one(values: list[int], fraction: float) -> None:
    counts: dict[int, int] = {}
    for value in values:
        counts[bucket_of(value)] = counts.get(bucket_of(value), 0) + 1
    exact = sorted(values)[max(math.ceil(round(fraction * len(values), 9)), 1) - 1]
    begin, end = bounds_of(bucket_of(exact))
    assert begin * 15 / 16 <= quantile_of(sorted(counts.items()), fraction) <= end * 17 / 16


@given(st.lists(latencies, max_size=50), latencies)
def test_count_above_is_exact_except_within_the_bucket(values: list[int], threshold_ns: int) -> None:
    counts = [(bucket_of(value), 1) for value in values]
    above = sum(bucket_of(value) > bucket_of(threshold_ns) for value in values)
    same_bucket = sum(bucket_of(value) == bucket_of(threshold_ns) for value in values)
    assert above <= count_above(counts, threshold_ns) <= above + same_bucket
    assert quantile_of([], 0.99) == 0
