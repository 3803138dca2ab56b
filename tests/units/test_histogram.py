"""Histogram quantiles are as close as promised, and merging equals recording together."""

import itertools
import math
from fractions import Fraction

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotenant.units.histogram import RELATIVE_ERROR, Histogram, Recorder, bucket_middle, bucket_of
from tests.support.strategies import histogram_of

# Latencies, small counts, and the edges of octaves, where a bucket ends.
values = st.one_of(
    st.integers(0, 300),
    st.integers(0, 1 << 62),
    st.builds(lambda bits, off: max((1 << bits) + off, 0), st.integers(0, 62), st.integers(-2, 2)),
)
lists = st.lists(values, max_size=60)
fractions = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999, 1.0]))


def nearest_rank(sorted_values: list[int], fraction: float) -> int:
    """Return the nearest-rank quantile; the fraction is taken as its decimal text."""
    rank = math.ceil(Fraction(repr(fraction)) * len(sorted_values))
    return sorted_values[max(rank, 1) - 1]


@pytest.mark.parametrize("percent", range(1, 101))
def test_percentile_of_1_to_100_is_the_percentage(percent: int) -> None:
    assert histogram_of(list(range(1, 101))).quantile(percent / 100) == percent


@given(lists.filter(bool), fractions)
@example([1, 10**9], 0.5)
@example([1 << 62] * 3, 0.99)
def test_quantile_is_within_the_relative_error(recorded: list[int], fraction: float) -> None:
    exact = nearest_rank(sorted(recorded), fraction)
    answer = histogram_of(recorded).quantile(fraction)
    assert abs(answer - exact) <= Fraction(RELATIVE_ERROR) * exact
    assert min(recorded) <= answer <= max(recorded)


@given(st.lists(st.integers(0, 127), min_size=1, max_size=60), fractions)
def test_small_values_are_exact(recorded: list[int], fraction: float) -> None:
    assert histogram_of(recorded).quantile(fraction) == nearest_rank(sorted(recorded), fraction)


@given(lists.filter(bool), fractions, fractions)
def test_quantiles_are_monotonic(recorded: list[int], first: float, second: float) -> None:
    histogram = histogram_of(recorded)
    assert histogram.quantile(min(first, second)) <= histogram.quantile(max(first, second))


@given(lists)
def test_count_extremes_and_mean_are_exact(recorded: list[int]) -> None:
    histogram = histogram_of(recorded)
    assert histogram.count == len(recorded)
    assert histogram.total == sum(recorded)
    assert histogram.lowest == min(recorded, default=0)
    assert histogram.highest == max(recorded, default=0)
    assert histogram.mean == (float(Fraction(sum(recorded), len(recorded))) if recorded else 0.0)
    assert list(histogram.buckets) == sorted(histogram.buckets)


def test_empty_histogram_has_zero_statistics() -> None:
    empty = Histogram()
    assert Recorder().histogram() == empty
    assert (empty.quantile(0.5), empty.mean, empty.count) == (0, 0.0, 0)
    assert empty.merged(empty) == empty


def test_negative_value_counts_as_zero() -> None:
    assert histogram_of([-5, 3]) == histogram_of([0, 3])


@given(lists, lists)
def test_merged_histogram_equals_recording_all_values(first: list[int], second: list[int]) -> None:
    assert histogram_of(first).merged(histogram_of(second)) == histogram_of(first + second)


@given(lists, lists, lists)
def test_merge_is_commutative_and_associative(first: list[int], second: list[int], third: list[int]) -> None:
    a, b, c = histogram_of(first), histogram_of(second), histogram_of(third)
    assert a.merged(b) == b.merged(a)
    assert a.merged(b).merged(c) == a.merged(b.merged(c))
    assert a.merged(Histogram()) == a


@given(lists)
def test_recorder_returns_copies(recorded: list[int]) -> None:
    recorder = Recorder()
    for value in recorded:
        recorder.record(value)
    before = recorder.histogram()
    recorder.record(1)
    assert before == histogram_of(recorded)


def test_buckets_are_contiguous_and_monotonic() -> None:
    buckets = [bucket_of(value) for value in range(1 << 14)]
    assert all(later - earlier in {0, 1} for earlier, later in itertools.pairwise(buckets))
    assert buckets[0] == 0


@given(st.integers(0, 1 << 63))
def test_next_value_is_in_the_same_or_the_next_bucket(value: int) -> None:
    assert bucket_of(value + 1) - bucket_of(value) in {0, 1}


@given(st.integers(0, 1 << 63))
def test_bucket_middle_is_in_the_bucket_and_within_the_error(value: int) -> None:
    middle = bucket_middle(bucket_of(value))
    assert bucket_of(middle) == bucket_of(value)
    assert abs(middle - value) <= Fraction(RELATIVE_ERROR) * value


# The encoded sum is a 64-bit integer: 292 years of latencies in nanoseconds.
@given(st.lists(st.integers(0, 1 << 57), max_size=60))
def test_histogram_round_trips(recorded: list[int]) -> None:
    histogram = histogram_of(recorded)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(histogram), type=Histogram) == histogram
    assert msgspec.json.decode(msgspec.json.encode(histogram), type=Histogram) == histogram
