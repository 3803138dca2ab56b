"""Launches of one request from a profile, which has kernels and their times, but no order."""

from __future__ import annotations

from typing import Final

from cotenant.profile.profile import Profile
from cotenant.units.instant import MICROSECOND_NS
from cotenant.workload.load import Launch

_MAX_REPEATS: Final = 64
"""Limit of a kernel's launches within one request."""


def launches_of_profile(profile: Profile) -> tuple[Launch, ...]:
    """Return launches of a profile, which has no order: each kernel at its mean, in proportion to its launches."""
    timed = [timing for timing in profile.timings if timing.device.count]
    launches = sum(timing.launches for timing in timed)
    least = min((timing.launches for timing in timed), default=1) or 1
    interval_ns = round(profile.span_ns / launches) if launches else MICROSECOND_NS
    return tuple(
        Launch(timing.kernel, max(round(timing.mean_device_ns), 1), interval_ns)
        for timing in timed
        for _ in range(min(max(round(timing.launches / least), 1), _MAX_REPEATS))
    )
