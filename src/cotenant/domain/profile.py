"""What is known of a task's kernels: how long each runs, and how long the device idles after it."""

from __future__ import annotations

from cotenant.domain.kernel import KernelIdentity
from cotenant.domain.value import Value


class KernelTiming(Value, frozen=True):
    """Sums rather than means, so that merging two runs loses nothing."""

    kernel: KernelIdentity
    runs: int
    device_ns: int
    gaps: int = 0
    gap_ns: int = 0

    @property
    def mean_device_ns(self) -> float:
        """SK: the mean device time of this kernel."""
        return self.device_ns / self.runs if self.runs else 0.0

    @property
    def mean_gap_ns(self) -> float:
        """SG: the mean idle gap that follows this kernel."""
        return self.gap_ns / self.gaps if self.gaps else 0.0


class Profile(Value, frozen=True):
    """All timings of one task key, by kernel identity, in the order the kernels were first seen."""

    task: str
    timings: tuple[KernelTiming, ...] = ()

    @property
    def device_ns(self) -> int:
        """Device time of everything recorded."""
        return sum(timing.device_ns for timing in self.timings)

    def merged(self, other: Profile) -> Profile:
        """Both recordings as if they were one; kernels keep the order in which they were first seen."""
        merged = {timing.kernel: timing for timing in self.timings}
        for timing in other.timings:
            known = merged.get(timing.kernel)
            merged[timing.kernel] = timing if known is None else _sum_of(known, timing)
        return Profile(self.task, tuple(merged.values()))


def _sum_of(one: KernelTiming, other: KernelTiming) -> KernelTiming:
    return KernelTiming(
        one.kernel,
        one.runs + other.runs,
        one.device_ns + other.device_ns,
        one.gaps + other.gaps,
        one.gap_ns + other.gap_ns,
    )
