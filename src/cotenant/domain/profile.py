"""What is known of a task's kernels: how long each runs, what idles after it, when the next one comes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cotenant.domain.histogram import Histogram
from cotenant.domain.kernel import KernelIdentity, Work
from cotenant.domain.value import Value

HISTORY: Final = 3
"""How many launches an interval is keyed by: enough to tell a pause inside a request from the one after it."""

VARIES: Final = 4
"""A kernel whose p99 is above so many means has no duration worth predicting."""


class KernelTiming(Value, frozen=True):
    """Histograms rather than means, so that merging two runs loses nothing and a tail can be seen."""

    kernel: KernelIdentity
    launches: int = 0
    device: Histogram = Histogram()
    """Device time of the runs that were timed, while nobody else used the device."""
    gap: Histogram = Histogram()
    """Time the device idled after it, until the task's next kernel."""
    blocks_per_sm: int = 0
    """Blocks that fit on one SM at once; 0: unknown."""
    memory_bound: bool | None = None
    """Whether memory, rather than arithmetic, bounds it; None: unknown."""

    @property
    def mean_device_ns(self) -> float:
        """SK: the mean device time of this kernel."""
        return self.device.mean

    @property
    def mean_gap_ns(self) -> float:
        """SG: the mean idle gap that follows this kernel."""
        return self.gap.mean

    @property
    def expected_ns(self) -> float:
        """Device time of all its launches, the untimed ones at the mean of the timed."""
        return self.device.mean * max(self.launches, self.device.count)

    @property
    def varies(self) -> bool:
        """Whether its time is too uncertain to be predicted."""
        return self.device.quantile(0.99) > VARIES * self.device.mean

    def sms_needed(self, sms: int) -> int:
        """How many SMs its grid fills, of a device that has so many; 0: unknown."""
        if not self.blocks_per_sm or self.kernel.work is not Work.KERNEL:
            return 0
        return min(sms, -(-self.kernel.blocks // self.blocks_per_sm))

    def merged(self, other: KernelTiming) -> KernelTiming:
        """Both recordings of one kernel as if they were one; what the later one knows of its shape holds."""
        return KernelTiming(
            self.kernel,
            self.launches + other.launches,
            self.device.merged(other.device),
            self.gap.merged(other.gap),
            other.blocks_per_sm or self.blocks_per_sm,
            self.memory_bound if other.memory_bound is None else other.memory_bound,
        )


class LaunchInterval(Value, frozen=True):
    """How long the host takes from a launch to the next one, after these last launches, the latest last."""

    after: tuple[KernelIdentity, ...]
    host: Histogram

    def merged(self, other: LaunchInterval) -> LaunchInterval:
        """Both recordings as if they were one."""
        return LaunchInterval(self.after, self.host.merged(other.host))


class Profile(Value, frozen=True):
    """All timings of one task key on one kind of device, in the order the kernels were first seen."""

    task: str
    device: str = ""
    """The device's name, for a kernel's time is true of one kind alone; empty: unknown."""
    runs: int = 0
    """How many recordings are in it."""
    timings: tuple[KernelTiming, ...] = ()
    intervals: tuple[LaunchInterval, ...] = ()
    span_ns: int = 0
    """From the first to the last work recorded, over all runs."""
    busy_ns: int = 0
    """Time within the span in which the device did something for this task."""

    @property
    def device_ns(self) -> float:
        """Device time of everything launched."""
        return sum(timing.expected_ns for timing in self.timings)

    @property
    def idle_ns(self) -> int:
        """Time within the span that a neighbour could have had."""
        return max(self.span_ns - self.busy_ns, 0)

    def merged(self, other: Profile) -> Profile:
        """Both recordings as if they were one; kernels keep the order in which they were first seen."""
        timings = {timing.kernel: timing for timing in self.timings}
        for timing in other.timings:
            known = timings.get(timing.kernel)
            timings[timing.kernel] = timing if known is None else known.merged(timing)
        intervals = {interval.after: interval for interval in self.intervals}
        for interval in other.intervals:
            before = intervals.get(interval.after)
            intervals[interval.after] = interval if before is None else before.merged(interval)
        return Profile(
            self.task,
            self.device or other.device,
            self.runs + other.runs,
            tuple(timings.values()),
            tuple(intervals.values()),
            self.span_ns + other.span_ns,
            self.busy_ns + other.busy_ns,
        )


def merge(profiles: Iterable[Profile], task: str, device: str) -> Profile:
    """All of them as one, under this key."""
    merged = Profile(task, device)
    for profile in profiles:
        merged = merged.merged(profile)
    return merged
