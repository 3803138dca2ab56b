"""An exported profile imports unchanged, and every damaged file is refused in one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotenant.errors import ConfigError
from cotenant.profile.profile import KernelTiming, LaunchInterval, Profile
from cotenant.profile.profile_file import decode_profile, encode_profile, looks_like_profile
from cotenant.workload.kernel import KernelIdentity, WorkKind
from tests.profile.test_profile import histogram, profiles


def without_untimed_intervals(profile: Profile) -> Profile:
    """Return the profile without intervals after untimed kernels, which no recording has."""
    kernels = {timing.kernel for timing in profile.timings}
    intervals = tuple(interval for interval in profile.intervals if kernels.issuperset(interval.after))
    return Profile(
        profile.task, profile.device, profile.runs, profile.timings, intervals, profile.span_ns, profile.busy_ns
    )


@given(profiles)
def test_file_round_trips_the_profile(profile: Profile) -> None:
    data = encode_profile(profile)
    assert looks_like_profile(data)
    assert decode_profile(data, "here") == without_untimed_intervals(profile)


@pytest.mark.parametrize("work", [WorkKind.COPY, WorkKind.MEMSET])
def test_an_engine_may_move_less_than_a_kilobyte(work: WorkKind) -> None:
    small = KernelIdentity("copy HtoD", (0, 1, 1), (1, 1, 1), 0, work)
    profile = Profile("task", "V100", 1, (KernelTiming(small, 1, histogram([5]), histogram([])),), (), 100, 50)
    assert decode_profile(encode_profile(profile), "here") == profile


PROFILE = Profile(
    "task",
    "V100",
    1,
    (KernelTiming(KernelIdentity("gemm", (8, 1, 1), (32, 1, 1)), 3, histogram([5, 900]), histogram([7])),),
    (LaunchInterval((KernelIdentity("gemm", (8, 1, 1), (32, 1, 1)),), histogram([11])),),
    100,
    50,
)
BREAKS: dict[str, tuple[list[Any], Any, str]] = {
    "another version": (["version"], 2, "version"),
    "another format": (["format"], "letter", "format"),
    "a negative span": (["span_ns"], -1, "negative"),
    "counts that do not add up": (["kernels", 0, "device_ns", "count"], 3, "is inconsistent"),
    "buckets out of order": (["kernels", 0, "device_ns", "buckets"], [[9, 1], [5, 1]], "is inconsistent"),
    "a total that cannot be": (["kernels", 0, "device_ns", "total"], 5000, "is inconsistent"),
    "a grid of nothing": (["kernels", 0, "grid"], [0, 1, 1], "impossible"),
    "negative launches": (["kernels", 0, "launches"], -1, "impossible"),
    "after a kernel that is not there": (["intervals", 0, "after"], [1], "by index"),
    "after nothing": (["intervals", 0, "after"], [], "by index"),
    "an unknown field": (["kernels", 0, "colour"], "red", "colour"),
    "text for a number": (["runs"], "one", "runs"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_error_names_the_fault(name: str) -> None:
    path, value, word = BREAKS[name]
    file = json.loads(encode_profile(PROFILE))
    parent = file
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    with pytest.raises(ConfigError, match=word):
        decode_profile(json.dumps(file).encode(), "here")


def test_duplicate_kernel_is_refused() -> None:
    file = json.loads(encode_profile(PROFILE))
    file["kernels"] *= 2
    with pytest.raises(ConfigError, match="twice"):
        decode_profile(json.dumps(file).encode(), "here")


@given(st.binary(max_size=200))
@example(b"[1e400]")
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError):
        decode_profile(data, "here")


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_flipped_byte_is_refused_or_decodes_to_a_valid_profile(offset: int, flip: int) -> None:
    data = bytearray(encode_profile(PROFILE))
    data[offset % len(data)] ^= flip
    try:
        profile = decode_profile(bytes(data), "here")
    except ConfigError:
        return
    assert all(timing.device.sound and timing.gap.sound for timing in profile.timings)
