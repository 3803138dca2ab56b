"""Profiles: merging runs loses nothing, in whichever order they come."""

from hypothesis import given
from hypothesis import strategies as st

from cotenant.domain.kernel import KernelIdentity
from cotenant.domain.profile import KernelTiming, Profile

extents = st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
kernels = st.builds(KernelIdentity, st.sampled_from(["gemm", "relu"]), extents, extents, st.sampled_from([0, 1024]))
timings = st.builds(
    KernelTiming, kernels, st.integers(1, 100), st.integers(0, 10**9), st.integers(0, 100), st.integers(0, 10**9)
)
profiles = st.lists(timings, max_size=6, unique_by=lambda timing: timing.kernel).map(
    lambda found: Profile("task", tuple(found))
)


def by_kernel(profile: Profile) -> dict[KernelIdentity, KernelTiming]:
    return {timing.kernel: timing for timing in profile.timings}


@given(profiles, profiles, profiles)
def test_merging_is_adding_in_any_order(one: Profile, two: Profile, three: Profile) -> None:
    assert by_kernel(one.merged(two)) == by_kernel(two.merged(one))
    assert one.merged(two).merged(three) == one.merged(two.merged(three))
    assert one.merged(two).device_ns == one.device_ns + two.device_ns
    assert one.merged(Profile("task")) == one


@given(profiles, profiles)
def test_kernels_keep_the_order_in_which_they_were_first_seen(one: Profile, two: Profile) -> None:
    merged = [timing.kernel for timing in one.merged(two).timings]
    assert merged == list(dict.fromkeys(timing.kernel for timing in (*one.timings, *two.timings)))


@given(kernels)
def test_another_grid_is_another_kernel(kernel: KernelIdentity) -> None:
    wider = KernelIdentity(kernel.function, (kernel.grid[0] + 1, *kernel.grid[1:]), kernel.block, kernel.shared_bytes)
    assert wider != kernel
    assert wider.blocks > kernel.blocks
    assert wider.threads_per_block == kernel.threads_per_block


def test_means_are_of_what_was_seen_and_zero_of_nothing() -> None:
    kernel = KernelIdentity("gemm", (1, 1, 1), (32, 1, 1))
    seen = KernelTiming(kernel, runs=4, device_ns=100, gaps=2, gap_ns=30)
    assert (seen.mean_device_ns, seen.mean_gap_ns) == (25.0, 15.0)
    never = KernelTiming(kernel, runs=0, device_ns=0)
    assert (never.mean_device_ns, never.mean_gap_ns) == (0.0, 0.0)
