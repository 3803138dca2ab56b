"""Does what the hook measures of a replayed timeline agree with the timeline?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.domain.histogram import Histogram, Recorder
from cotenant.domain.kernel import KernelIdentity, Work
from cotenant.domain.profile import Profile
from cotenant.domain.timeline import Timeline, profile_of, timeline_of
from cotenant.format.launches import image_name

LAUNCHES: Final = 3000
"""Of each timeline, from its start: the longest ones repeat themselves."""

PAUSE_NS: Final = 50_000_000
"""Longer intervals between launches are cut to this: start-up and autotuning of seconds, which no kernel fills."""

TARGET: Final = 0.02


class Agreement(msgspec.Struct, frozen=True):
    """One timeline, and what was measured of its replay. Gaps are told as p50, p90 and sum, in nanoseconds."""

    name: str
    launches: int
    kernels: int
    """Identities compared: one function, number of blocks and threads each."""
    missing: int
    """Identities of the timeline that were not measured."""
    median_error: float
    p90_error: float
    worst_error: float
    worst: str
    source_busy: float
    measured_busy: float
    source_gaps_ns: tuple[int, int, int]
    measured_gaps_ns: tuple[int, int, int]


class Report(msgspec.Struct, frozen=True):
    """All timelines."""

    timelines: list[Agreement]
    median_error: float
    """Of the median errors of the timelines."""
    worst: str
    target: float = TARGET

    @property
    def met(self) -> bool:
        """Whether the median is within the target."""
        return bool(self.timelines) and self.median_error <= self.target


def beginning_of(timeline: Timeline) -> Timeline:
    """Its first launches, without long pauses of the host."""
    kept = timeline.activities[:LAUNCHES]
    shift_ns, before_ns = 0, kept[0].launch_ns
    cut: dict[int, int] = {}
    for launch_ns in sorted({one.launch_ns for one in kept if one.launch_ns is not None}):
        if before_ns is not None and launch_ns - before_ns > PAUSE_NS:
            shift_ns += launch_ns - before_ns - PAUSE_NS
        before_ns = launch_ns
        cut[launch_ns] = launch_ns - shift_ns
    moved = (
        one if one.launch_ns is None else msgspec.structs.replace(one, launch_ns=cut[one.launch_ns]) for one in kept
    )
    return timeline_of(timeline.task, timeline.device, timeline.sms, moved)


_Key = tuple[str, int, int]


def _by_shape(profile: Profile, *, is_source: bool) -> dict[_Key, Histogram]:
    """Device times of kernels; a replay knows the number of blocks and threads, not their arrangement."""
    found: dict[_Key, Recorder] = {}
    for timing in profile.timings:
        kernel = timing.kernel
        if kernel.work is Work.KERNEL and timing.device.count:
            name = image_name(kernel) if is_source else kernel.function
            found.setdefault(_key(name, kernel), Recorder()).add(timing.device)
    return {key: recorder.histogram() for key, recorder in found.items()}


def _key(name: str, kernel: KernelIdentity) -> _Key:
    return name[:200], kernel.blocks, min(kernel.threads_per_block, 1024)


def agreement(timeline: Timeline, measured: Profile) -> Agreement:
    """How far the measured mean device times are from those of the timeline that was replayed."""
    source = profile_of(timeline)
    wanted, got = _by_shape(source, is_source=True), _by_shape(measured, is_source=False)
    errors = sorted(
        (abs(got[key].mean / times.mean - 1), key) for key, times in wanted.items() if key in got and times.mean
    )
    numbers = [error for error, _ in errors] or [1.0]
    return Agreement(
        timeline.task,
        sum(timing.launches for timing in measured.timings),
        len(errors),
        sum(1 for key in wanted if key not in got),
        statistics.median(numbers),
        numbers[min(int(0.9 * len(numbers)), len(numbers) - 1)],
        numbers[-1],
        errors[-1][1][0] if errors else "",
        source.busy_ns / source.span_ns if source.span_ns else 0.0,
        measured.busy_ns / measured.span_ns if measured.span_ns else 0.0,
        _gaps(source),
        _gaps(measured),
    )


def _gaps(profile: Profile) -> tuple[int, int, int]:
    recorder = Recorder()
    for timing in profile.timings:
        recorder.add(timing.gap)
    gaps = recorder.histogram()
    return gaps.quantile(0.5), gaps.quantile(0.9), gaps.total


def report_of(found: Sequence[Agreement]) -> Report:
    """The whole, and the worst."""
    ordered = sorted(found, key=lambda one: one.median_error)
    median = statistics.median(one.median_error for one in ordered) if ordered else 1.0
    return Report(list(found), median, ordered[-1].name if ordered else "")
