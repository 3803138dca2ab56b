"""How much of a task's idle device time could a neighbour have, and what would that cost the task?

The rule predicted here: after each kernel the gap is expected to last at least as long as the shorter quarter of those
seen after it; the neighbour's kernels go into that, one after the other, as long as they fit. Where a gap turns out
shorter, the task waits for the neighbour's kernel that runs by then, and no further one starts. A gap that lasts twice
as long as usual is a pause: the neighbour has the rest of it, and the task, when it comes back, waits for half of one
of the neighbour's kernels on average.
"""

from __future__ import annotations

import math
from typing import Final

from cotenant.domain.histogram import Histogram, bucket_middle
from cotenant.domain.profile import Profile
from cotenant.domain.value import Value

WAKE_NS: Final = 5_000
"""From the end of the task's kernel to the neighbour's start, and again at the end. Our choice."""

SURE: Final = 0.25
"""The quantile of the gaps seen that is taken for the next one."""

NEIGHBOUR_NS: Final = (10_000, 50_000, 100_000, 500_000)
"""Lengths of a neighbour's kernels worth asking about."""


QUIET: Final = 2
"""After so many times its median, a gap is a pause."""


class Fill(Value, frozen=True):
    """What a neighbour whose kernels last `kernel_ns` would get, and cost."""

    kernel_ns: int
    filled_ns: int
    cost_ns: int
    idle_ns: int
    span_ns: int

    @property
    def filled_part(self) -> float:
        """Of the idle time, what the neighbour would have."""
        return self.filled_ns / self.idle_ns if self.idle_ns else 0.0

    @property
    def slowdown(self) -> float:
        """By how much the task's span would grow."""
        return self.cost_ns / self.span_ns if self.span_ns else 0.0


def predict_fill(profile: Profile, kernel_ns: int) -> Fill:
    """For one neighbour; the gaps of the profile are taken to come again as they were."""
    filled = cost = 0.0
    for timing in profile.timings:
        one_filled, one_cost = _after_one(timing.gap, kernel_ns)
        filled += one_filled
        cost += one_cost
    return Fill(kernel_ns, round(filled), round(cost), profile.idle_ns, profile.span_ns)


def _after_one(gaps: Histogram, kernel_ns: int) -> tuple[float, float]:
    """Device time filled and waits caused over all gaps that follow one kernel."""
    planned = max((gaps.quantile(SURE) - 2 * WAKE_NS) // kernel_ns, 0)
    quiet_ns = QUIET * gaps.quantile(0.5) + WAKE_NS
    filled = cost = 0.0
    for bucket, times in gaps.buckets:
        gap_ns = bucket_middle(bucket)
        usable_ns = max(gap_ns - WAKE_NS, 0)
        started = min(planned, math.ceil(usable_ns / kernel_ns))
        filled += times * min(started * kernel_ns, usable_ns)
        cost += times * max(started * kernel_ns - usable_ns, 0)
        if gap_ns > quiet_ns:
            filled += times * (gap_ns - quiet_ns)
            cost += times * kernel_ns / 2
    return filled, cost
