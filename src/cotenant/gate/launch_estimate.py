"""The estimate of a launch from the times that its kernel took."""

from __future__ import annotations

from typing import Final

from cotenant.profile.profile import VARIES
from cotenant.units.instant import MICROSECOND_NS
from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value

SHORT_NS: Final = 100 * MICROSECOND_NS
"""What may be submitted at once into a gap (CT_GATE_DEPTH_NS in native/gate/gate.h): shorter kernels are no risk."""


class LaunchEstimate(Value, frozen=True):
    """The expected duration of a launch and the conditions under which it may run in a gap."""

    expect_ns: int
    sure_ns: int
    """A duration that it rarely exceeds."""
    may_fill: bool = True
    """Whether its duration is predictable enough for a gap."""
    granularity_ns: int = 0
    """The preemption granularity: a launch of higher priority waits no longer, as blocks end one by one.

    0: it waits until the whole launch has ended.
    """
    kernel_count: int = 1
    free_ppm: int = 0
    """Part of the device that stays free while it runs; known under MPS."""
    blocks: int = 0
    """Blocks of a kernel that can be launched in parts; 0: it cannot."""
    wave_blocks: int = 0
    """How many of them the device runs at once."""


def granularity_of(mean_ns: float, blocks: int, slots: int) -> int:
    """Return the duration of one block, scaled by how far the grid fills the device's slots."""
    waves = max(-(-blocks // slots), 1) if slots else 1
    return max(round(mean_ns / waves * min(1.0, blocks / slots)), 1) if slots else 0


def free_part(blocks: int, slots: int) -> int:
    """Return the part of the device, in millionths, that so many blocks leave free; `slots` 0: unknown."""
    return max(WHOLE_PPM - WHOLE_PPM * blocks // slots, 0) if slots else 0


def estimate_launch(
    mean_ns: float, p90_ns: float, p99_ns: float, granularity_ns: int = 0, free_ppm: int = 0
) -> LaunchEstimate:
    """Return the estimate of a launch from its profile's quantiles.

    A kernel of very variable duration counts with twice its p99, or with its p99 if that is short: many kernels of a
    few microseconds vary so.
    """
    expect_ns = max(round(mean_ns), 1)  # 0 means unknown
    bound_ns = p90_ns if p99_ns <= VARIES * mean_ns else p99_ns if p99_ns <= SHORT_NS else 2 * p99_ns
    return LaunchEstimate(expect_ns, max(round(bound_ns), expect_ns), granularity_ns=granularity_ns, free_ppm=free_ppm)
