"""Merging recordings keeps every launch, in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cotenant.profile.profile import KernelTiming, LaunchInterval, Profile, merge
from cotenant.units.histogram import Histogram, Recorder
from cotenant.workload.kernel import KernelIdentity, WorkKind

extents = st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
kernels = st.builds(
    KernelIdentity,
    st.sampled_from(["gemm", "relu"]),
    extents,
    extents,
    st.sampled_from([0, 1024]),
    st.sampled_from(WorkKind),
)


def histogram(values: list[int]) -> Histogram:
    recorder = Recorder()
    for value in values:
        recorder.record(value)
    return recorder.histogram()


histograms = st.lists(st.integers(0, 10**9), max_size=6).map(histogram)
timings = st.builds(
    KernelTiming, kernels, st.integers(0, 100), histograms, histograms, st.integers(0, 32), st.none() | st.booleans()
)
intervals = st.builds(LaunchInterval, st.lists(kernels, min_size=1, max_size=3).map(tuple), histograms)
profiles = st.builds(
    Profile,
    st.just("task"),
    st.just("V100"),
    st.integers(0, 3),
    st.lists(timings, max_size=6, unique_by=lambda timing: timing.kernel).map(tuple),
    st.lists(intervals, max_size=4, unique_by=lambda interval: interval.after).map(tuple),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
)


def by_kernel(profile: Profile) -> dict[KernelIdentity, tuple[int, Histogram, Histogram]]:
    return {timing.kernel: (timing.launches, timing.device, timing.gap) for timing in profile.timings}


def by_history(profile: Profile) -> dict[tuple[KernelIdentity, ...], Histogram]:
    return {interval.after: interval.host for interval in profile.intervals}


@given(profiles, profiles)
def test_merged_counts_do_not_depend_on_the_order(first: Profile, second: Profile) -> None:
    merged, reversed_ = first.merged(second), second.merged(first)
    assert by_kernel(merged) == by_kernel(reversed_)
    assert by_history(merged) == by_history(reversed_)
    assert (merged.runs, merged.span_ns, merged.busy_ns) == (reversed_.runs, reversed_.span_ns, reversed_.busy_ns)


@given(profiles, profiles, profiles)
def test_merging_is_associative(first: Profile, second: Profile, third: Profile) -> None:
    assert first.merged(second).merged(third) == first.merged(second.merged(third))


@given(profiles)
def test_merging_an_empty_profile_changes_nothing(profile: Profile) -> None:
    assert profile.merged(Profile("task")) == profile
    assert merge([profile], "task", "V100") == profile


@given(profiles, profiles)
def test_merging_keeps_every_launch(first: Profile, second: Profile) -> None:
    def launches(profile: Profile) -> int:
        return sum(timing.launches for timing in profile.timings)

    assert launches(first.merged(second)) == launches(first) + launches(second)


@given(kernels)
def test_different_grid_is_a_different_kernel(kernel: KernelIdentity) -> None:
    wider = KernelIdentity(
        kernel.function, (kernel.grid[0] + 1, *kernel.grid[1:]), kernel.block, kernel.shared_bytes, kernel.work
    )
    merged = Profile("task", timings=(KernelTiming(kernel),)).merged(Profile("task", timings=(KernelTiming(wider),)))
    assert [timing.kernel for timing in merged.timings] == [kernel, wider]


def test_means_and_derived_values() -> None:
    kernel = KernelIdentity("gemm", (100, 1, 1), (32, 1, 1))
    timing = KernelTiming(kernel, 8, histogram([20, 30]), histogram([10, 20]), blocks_per_sm=4)
    assert (timing.mean_device_ns, timing.mean_gap_ns, timing.expected_ns) == (25.0, 15.0, 200.0)
    assert (timing.sms_needed(80), timing.sms_needed(10)) == (25, 10)
    assert not timing.varies
    assert KernelTiming(kernel, 100, histogram([1] * 98 + [1000] * 2)).varies
    untimed = KernelTiming(kernel)
    assert (untimed.mean_device_ns, untimed.mean_gap_ns, untimed.expected_ns, untimed.sms_needed(80)) == (
        0.0,
        0.0,
        0.0,
        0,
    )
    assert Profile("task", span_ns=5, busy_ns=9).idle_ns == 0
