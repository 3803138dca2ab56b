"""Timeline of device activity with launch times."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from cotenant.profile.profile import HISTORY, KernelTiming, LaunchInterval, Profile
from cotenant.units.histogram import Histogram, Recorder
from cotenant.units.value import Value
from cotenant.workload.kernel import KernelIdentity


class Activity(Value, frozen=True):
    """One activity on the device: a kernel, a graph, a copy or a memset."""

    kernel: KernelIdentity
    stream: int
    start_ns: int
    device_ns: int
    launch_ns: int | None = None
    """Start of the launch on the host, by the same clock; None: unknown."""
    registers: int = 0
    moved_bytes: int = 0
    memory_bound: bool | None = None
    has_ptx: bool | None = None
    """Whether its program contains PTX of it; None: unknown."""

    @property
    def end_ns(self) -> int:
        """Return the end."""
        return self.start_ns + self.device_ns


class Timeline(Value, frozen=True):
    """All activities of one device for one task, by start."""

    task: str
    device: str
    sms: int
    activities: tuple[Activity, ...]

    @property
    def span_ns(self) -> int:
        """Return the time from the first start to the last end."""
        if not self.activities:
            return 0
        return max(activity.end_ns for activity in self.activities) - self.activities[0].start_ns

    @property
    def busy_ns(self) -> int:
        """Return the time in which at least one activity ran."""
        return self.span_ns - sum(gap_ns for _, gap_ns in self.gaps())

    def gaps(self) -> Iterator[tuple[Activity, int]]:
        """Yield for each activity but the first the one that ended last before it, and the device's idle time between.

        The idle time is over all streams, and 0 if the two overlap.
        """
        latest: Activity | None = None
        for activity in self.activities:
            if latest is not None:
                yield latest, max(activity.start_ns - latest.end_ns, 0)
            if latest is None or activity.end_ns >= latest.end_ns:
                latest = activity

    def launches(self) -> list[Activity]:
        """Return the activities with a known launch time, in launch order."""
        launched = [activity for activity in self.activities if activity.launch_ns is not None]
        return sorted(launched, key=lambda activity: (activity.launch_ns, activity.start_ns))


def timeline_of(task: str, device: str, sms: int, activities: Iterable[Activity]) -> Timeline:
    """Return a sorted timeline."""
    return Timeline(
        task, device, sms, tuple(sorted(activities, key=lambda activity: (activity.start_ns, activity.end_ns)))
    )


def profile_of(timeline: Timeline) -> Profile:
    """Compute the profile of a timeline."""
    gaps: dict[KernelIdentity, Recorder] = {}
    for after, gap_ns in timeline.gaps():
        gaps.setdefault(after.kernel, Recorder()).record(gap_ns)
    durations: dict[KernelIdentity, Recorder] = {}
    first: dict[KernelIdentity, Activity] = {}
    for activity in timeline.activities:
        durations.setdefault(activity.kernel, Recorder()).record(activity.device_ns)
        first.setdefault(activity.kernel, activity)
    timings = []
    for kernel, recorder in durations.items():
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
    recorders: dict[tuple[KernelIdentity, ...], Recorder] = {}
    history: tuple[KernelIdentity, ...] = ()
    for launch, following in itertools.pairwise(launches):
        history = (*history, launch.kernel)[-HISTORY:]
        assert launch.launch_ns is not None
        assert following.launch_ns is not None
        recorders.setdefault(history, Recorder()).record(following.launch_ns - launch.launch_ns)
    for after, recorder in recorders.items():
        yield LaunchInterval(after, recorder.histogram())
