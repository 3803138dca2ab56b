"""What ran on a device, when, and when its host asked for it?"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from cotenant.domain.histogram import Histogram, Recorder
from cotenant.domain.kernel import KernelIdentity
from cotenant.domain.profile import HISTORY, KernelTiming, LaunchInterval, Profile
from cotenant.domain.value import Value


class Activity(Value, frozen=True):
    """One piece of work on the device."""

    kernel: KernelIdentity
    stream: int
    start_ns: int
    device_ns: int
    launch_ns: int | None = None
    """When the host began to ask for it, on the same clock; None: unknown."""
    registers: int = 0
    moved_bytes: int = 0
    memory_bound: bool | None = None

    @property
    def end_ns(self) -> int:
        """When it was over."""
        return self.start_ns + self.device_ns


class Timeline(Value, frozen=True):
    """Everything one device did for one task, by start."""

    task: str
    device: str
    sms: int
    activities: tuple[Activity, ...]

    @property
    def span_ns(self) -> int:
        """From the first start to the last end."""
        if not self.activities:
            return 0
        return max(activity.end_ns for activity in self.activities) - self.activities[0].start_ns

    @property
    def busy_ns(self) -> int:
        """Time in which anything ran."""
        return self.span_ns - sum(gap_ns for _, gap_ns in self.gaps())

    def gaps(self) -> Iterator[tuple[Activity, int]]:
        """Who ended last before the device idled over all streams, and for how long; 0 where it did not."""
        latest: Activity | None = None
        for activity in self.activities:
            if latest is not None:
                yield latest, max(activity.start_ns - latest.end_ns, 0)
            if latest is None or activity.end_ns >= latest.end_ns:
                latest = activity

    def launches(self) -> list[Activity]:
        """Those whose launch is known, in the order of their launches."""
        known = [activity for activity in self.activities if activity.launch_ns is not None]
        return sorted(known, key=lambda activity: (activity.launch_ns, activity.start_ns))


def timeline_of(task: str, device: str, sms: int, activities: Iterable[Activity]) -> Timeline:
    """A timeline in order, from activities in any."""
    return Timeline(task, device, sms, tuple(sorted(activities, key=lambda one: (one.start_ns, one.end_ns))))


def profile_of(timeline: Timeline) -> Profile:
    """What a profile of this timeline's run would hold."""
    gaps: dict[KernelIdentity, Recorder] = {}
    for after, gap_ns in timeline.gaps():
        gaps.setdefault(after.kernel, Recorder()).record(gap_ns)
    seen: dict[KernelIdentity, Recorder] = {}
    first: dict[KernelIdentity, Activity] = {}
    for activity in timeline.activities:
        seen.setdefault(activity.kernel, Recorder()).record(activity.device_ns)
        first.setdefault(activity.kernel, activity)
    timings = []
    for kernel, recorder in seen.items():
        device = recorder.histogram()
        gap = gaps[kernel].histogram() if kernel in gaps else Histogram()
        fits = kernel.resident_blocks(first[kernel].registers)
        timings.append(KernelTiming(kernel, device.count, device, gap, fits, first[kernel].memory_bound))
    return Profile(
        timeline.task,
        timeline.device,
        1,
        tuple(timings),
        tuple(_intervals(timeline.launches())),
        timeline.span_ns,
        timeline.busy_ns,
    )


def _intervals(launches: list[Activity]) -> Iterator[LaunchInterval]:
    found: dict[tuple[KernelIdentity, ...], Recorder] = {}
    history: tuple[KernelIdentity, ...] = ()
    for launch, following in itertools.pairwise(launches):
        history = (*history, launch.kernel)[-HISTORY:]
        assert launch.launch_ns is not None
        assert following.launch_ns is not None
        found.setdefault(history, Recorder()).record(following.launch_ns - launch.launch_ns)
    for after, recorder in found.items():
        yield LaunchInterval(after, recorder.histogram())
