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
def test_merging_is_commutative_in_what_it_counts(one: Profile, other: Profile) -> None:
    there, back = one.merged(other), other.merged(one)
    assert by_kernel(there) == by_kernel(back)
    assert by_history(there) == by_history(back)
    assert (there.runs, there.span_ns, there.busy_ns) == (back.runs, back.span_ns, back.busy_ns)


@given(profiles, profiles, profiles)
def test_merging_is_associative(one: Profile, two: Profile, three: Profile) -> None:
    assert one.merged(two).merged(three) == one.merged(two.merged(three))


@given(profiles)
def test_merging_an_empty_profile_changes_nothing(one: Profile) -> None:
    assert one.merged(Profile("task")) == one
    assert merge([one], "task", "V100") == one


@given(profiles, profiles)
def test_every_launch_is_kept(one: Profile, other: Profile) -> None:
    def launches(profile: Profile) -> int:
        return sum(timing.launches for timing in profile.timings)

    assert launches(one.merged(other)) == launches(one) + launches(other)


@given(kernels)
def test_different_grid_is_a_different_kernel(kernel: KernelIdentity) -> None:
    wider = KernelIdentity(
        kernel.function, (kernel.grid[0] + 1, *kernel.grid[1:]), kernel.block, kernel.shared_bytes, kernel.work
    )
    merged = Profile("task", timings=(KernelTiming(kernel),)).merged(Profile("task", timings=(KernelTiming(wider),)))
    assert [timing.kernel for timing in merged.timings] == [kernel, wider]


def test_means_and_derived_values() -> None:
    kernel = KernelIdentity("gemm", (100, 1, 1), (32, 1, 1))
    seen = KernelTiming(kernel, 8, histogram([20, 30]), histogram([10, 20]), blocks_per_sm=4)
    assert (seen.mean_device_ns, seen.mean_gap_ns, seen.expected_ns) == (25.0, 15.0, 200.0)
    assert (seen.sms_needed(80), seen.sms_needed(10)) == (25, 10)
    assert not seen.varies
    assert KernelTiming(kernel, 100, histogram([1] * 98 + [1000] * 2)).varies
    never = KernelTiming(kernel)
    assert (never.mean_device_ns, never.mean_gap_ns, never.expected_ns, never.sms_needed(80)) == (0.0, 0.0, 0.0, 0)
    assert Profile("task", span_ns=5, busy_ns=9).idle_ns == 0
