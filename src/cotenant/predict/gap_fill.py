"""Device time that a neighbour could use in the gaps of a task, and the delay that it causes.

The predicted rule: the gap after a kernel is expected to last at least as long as the 25 % quantile of the gaps seen
after that kernel, and the neighbour's kernels run in it one after the other as long as they fit. If the gap is shorter,
the task waits for the neighbour's running kernel, and no further one starts. A gap twice as long as its median is a
pause: the neighbour uses the remainder, and the task then waits for half of one of the neighbour's kernels on average.
"""

from __future__ import annotations

import math
from typing import Final

from cotenant.profile.profile import Profile
from cotenant.units.histogram import Histogram, bucket_middle
from cotenant.units.value import Value

WAKE_NS: Final = 5_000
"""Delay from the end of the task's kernel to the neighbour's start, and again at the end. Our choice."""

SURE: Final = 0.25
"""Quantile of the observed gaps that is expected of the next one."""

NEIGHBOUR_NS: Final = (10_000, 50_000, 100_000, 500_000)
"""Kernel durations of neighbours for which predictions are shown."""


QUIET: Final = 2
"""Multiple of its median after which a gap is a pause."""


class Fill(Value, frozen=True):
    """Prediction for a neighbour with kernels of `kernel_ns`."""

    kernel_ns: int
    filled_ns: int
    cost_ns: int
    idle_ns: int
    span_ns: int

    @property
    def filled_part(self) -> float:
        """Return the part of the idle time that the neighbour would use."""
        return self.filled_ns / self.idle_ns if self.idle_ns else 0.0

    @property
    def slowdown(self) -> float:
        """Return the relative increase of the task's span."""
        return self.cost_ns / self.span_ns if self.span_ns else 0.0


def predict_fill(profile: Profile, kernel_ns: int) -> Fill:
    """Predict for one neighbour, assuming that the recorded gaps repeat."""
    filled = cost = 0.0
    for timing in profile.timings:
        kernel_filled, kernel_cost = _fill_after_kernel(timing.gap, kernel_ns)
        filled += kernel_filled
        cost += kernel_cost
    return Fill(kernel_ns, round(filled), round(cost), profile.idle_ns, profile.span_ns)


def _fill_after_kernel(gaps: Histogram, kernel_ns: int) -> tuple[float, float]:
    """Return the used device time and the caused delay over all gaps after one kernel."""
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
