"""Profiles: the durations of a task's kernels, the idle gaps after them, and the host's launch intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cotenant.units.histogram import Histogram
from cotenant.units.value import Value
from cotenant.workload.kernel import KernelIdentity, WorkKind

HISTORY: Final = 3
"""The number of launches that key an interval: enough to distinguish pauses inside and after a request."""

VARIES: Final = 4
"""A kernel whose p99 exceeds this multiple of its mean has no predictable duration."""


class KernelTiming(Value, frozen=True):
    """The timings of one kernel, as histograms, so that merging two runs loses nothing and tails stay visible."""

    kernel: KernelIdentity
    launches: int = 0
    device: Histogram = Histogram()
    """Device time of the timed runs, measured without co-running programs."""
    gap: Histogram = Histogram()
    """Time that the device idled after this kernel, until the task's next one."""
    blocks_per_sm: int = 0
    """Blocks that fit on one SM at once; 0: unknown."""
    memory_bound: bool | None = None
    """Whether memory, rather than arithmetic, bounds it; None: unknown."""

    @property
    def mean_device_ns(self) -> float:
        """Return the mean device time of this kernel (SK in FIKIT)."""
        return self.device.mean

    @property
    def mean_gap_ns(self) -> float:
        """Return the mean idle gap after this kernel (SG in FIKIT)."""
        return self.gap.mean

    @property
    def expected_ns(self) -> float:
        """Return the device time of all launches; untimed launches count with the mean of the timed ones."""
        return self.device.mean * max(self.launches, self.device.count)

    @property
    def varies(self) -> bool:
        """Return whether its duration is too variable to be predicted."""
        return self.device.quantile(0.99) > VARIES * self.device.mean

    def sms_needed(self, sms: int) -> int:
        """Return how many SMs of a device with `sms` its grid fills; 0 if unknown."""
        if not self.blocks_per_sm or self.kernel.work is not WorkKind.KERNEL:
            return 0
        return min(sms, -(-self.kernel.blocks // self.blocks_per_sm))

    def merged(self, other: KernelTiming) -> KernelTiming:
        """Return both recordings of one kernel as one; occupancy facts of the later one take precedence."""
        return KernelTiming(
            self.kernel,
            self.launches + other.launches,
            self.device.merged(other.device),
            self.gap.merged(other.gap),
            other.blocks_per_sm or self.blocks_per_sm,
            self.memory_bound if other.memory_bound is None else other.memory_bound,
        )


class LaunchInterval(Value, frozen=True):
    """The host's time from a launch to the next one, after these last launches (the latest last)."""

    after: tuple[KernelIdentity, ...]
    host: Histogram

    def merged(self, other: LaunchInterval) -> LaunchInterval:
        """Return both recordings as one."""
        return LaunchInterval(self.after, self.host.merged(other.host))


class Profile(Value, frozen=True):
    """All timings of one task on one device model, in the order in which the kernels first ran."""

    task: str
    device: str = ""
    """The name of the device model, since a kernel's time holds for one model only; empty: unknown."""
    runs: int = 0
    """The number of recordings in it."""
    timings: tuple[KernelTiming, ...] = ()
    intervals: tuple[LaunchInterval, ...] = ()
    span_ns: int = 0
    """The time from the first to the last recorded work, summed over all runs."""
    busy_ns: int = 0
    """The time within the span in which the device ran work of this task."""

    @property
    def device_ns(self) -> float:
        """Return the device time of all launches."""
        return sum(timing.expected_ns for timing in self.timings)

    @property
    def idle_ns(self) -> int:
        """Return the time within the span in which the device was idle."""
        return max(self.span_ns - self.busy_ns, 0)

    def merged(self, other: Profile) -> Profile:
        """Return both profiles as one; kernels keep the order in which they first ran."""
        timings = {timing.kernel: timing for timing in self.timings}
        for timing in other.timings:
            earlier = timings.get(timing.kernel)
            timings[timing.kernel] = timing if earlier is None else earlier.merged(timing)
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
    """Return all profiles as one, with this task and device."""
    merged = Profile(task, device)
    for profile in profiles:
        merged = merged.merged(profile)
    return merged
