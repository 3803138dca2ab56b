"""Does an exported profile come back as it was, and is every damaged one refused in one sentence?"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotenant.domain.kernel import KernelIdentity, Work
from cotenant.domain.profile import KernelTiming, LaunchInterval, Profile
from cotenant.errors import ConfigError
from cotenant.format.profile import decode_profile, encode_profile, looks_like_profile
from tests.property.test_profile import histogram, profiles


def within(profile: Profile) -> Profile:
    """Without intervals after kernels that the profile does not time: a recording has none."""
    known = {timing.kernel for timing in profile.timings}
    kept = tuple(one for one in profile.intervals if known.issuperset(one.after))
    return Profile(profile.task, profile.device, profile.runs, profile.timings, kept, profile.span_ns, profile.busy_ns)


@given(profiles)
def test_a_file_says_what_the_profile_said(profile: Profile) -> None:
    data = encode_profile(profile)
    assert looks_like_profile(data)
    assert decode_profile(data, "here") == within(profile)


@pytest.mark.parametrize("work", [Work.COPY, Work.MEMSET])
def test_an_engine_may_move_less_than_a_kilobyte(work: Work) -> None:
    small = KernelIdentity("copy HtoD", (0, 1, 1), (1, 1, 1), 0, work)
    profile = Profile("task", "V100", 1, (KernelTiming(small, 1, histogram([5]), histogram([])),), (), 100, 50)
    assert decode_profile(encode_profile(profile), "here") == profile


ONE = Profile(
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
    "counts that do not add up": (["kernels", 0, "device_ns", "count"], 3, "does not add up"),
    "buckets out of order": (["kernels", 0, "device_ns", "buckets"], [[9, 1], [5, 1]], "does not add up"),
    "a total that cannot be": (["kernels", 0, "device_ns", "total"], 5000, "does not add up"),
    "a grid of nothing": (["kernels", 0, "grid"], [0, 1, 1], "cannot be"),
    "negative launches": (["kernels", 0, "launches"], -1, "cannot be"),
    "after a kernel that is not there": (["intervals", 0, "after"], [1], "by place"),
    "after nothing": (["intervals", 0, "after"], [], "by place"),
    "an unknown field": (["kernels", 0, "colour"], "red", "colour"),
    "text for a number": (["runs"], "one", "runs"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_wrong_is_named(name: str) -> None:
    path, value, word = BREAKS[name]
    file = json.loads(encode_profile(ONE))
    place = file
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ConfigError, match=word):
        decode_profile(json.dumps(file).encode(), "here")


def test_the_same_kernel_twice_is_refused() -> None:
    file = json.loads(encode_profile(ONE))
    file["kernels"] *= 2
    with pytest.raises(ConfigError, match="twice"):
        decode_profile(json.dumps(file).encode(), "here")


@given(st.binary(max_size=200))
@example(b"[1e400]")
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError):
        decode_profile(data, "here")


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_is_a_refusal_or_another_sound_profile(place: int, flip: int) -> None:
    data = bytearray(encode_profile(ONE))
    data[place % len(data)] ^= flip
    try:
        profile = decode_profile(bytes(data), "here")
    except ConfigError:
        return
    assert all(timing.device.sound and timing.gap.sound for timing in profile.timings)
