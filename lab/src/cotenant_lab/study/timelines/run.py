"""Compare the kernel times that the hook measures of a replayed timeline with the timeline."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import track

from cotenant.errors import ConfigError
from cotenant.node.client.advise import observe
from cotenant.node.config.file import RunConfig
from cotenant.node.directories import Directories
from cotenant.profile.import_files import read_recordings
from cotenant.profile.profile import Profile
from cotenant.softgpu import manage
from cotenant.softgpu.costs import HARDWARE
from cotenant.units.histogram import Histogram, Recorder
from cotenant.workload.kernel import KernelIdentity, WorkKind
from cotenant.workload.launch_files import image_name, image_of, script_of
from cotenant.workload.timeline import Timeline, profile_of, timeline_of
from cotenant_lab.errors import RunFailedError
from cotenant_lab.study.data_files import DATA_PAGE

LAUNCHES: Final = 3000
"""Launches from the start of each timeline; the longest ones repeat themselves."""
PAUSE_NS: Final = 50_000_000
"""Longer intervals between launches are cut to this: start-up and autotuning take seconds without kernels."""
TARGET: Final = 0.02
PRESET: Final = "v100"


class TimelineAgreement(msgspec.Struct, frozen=True):
    """One timeline and the measurements of its replay. Gaps are p50, p90 and sum, in nanoseconds."""

    name: str
    launches: int
    kernels: int
    """Compared identities: function, number of blocks and of threads."""
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


class TimelinesReport(msgspec.Struct, frozen=True):
    """The results of study `timelines`."""

    timelines: list[TimelineAgreement]
    median_error: float
    """Median of the median errors of the timelines."""
    worst: str
    met: dict[str, bool]
    """Whether the median is within the target."""
    target: float = TARGET


def beginning_of(timeline: Timeline) -> Timeline:
    """Return its first launches, without long pauses of the host."""
    activities = timeline.activities[:LAUNCHES]
    shift_ns, previous_ns = 0, activities[0].launch_ns
    shifted_ns: dict[int, int] = {}
    for launch_ns in sorted({activity.launch_ns for activity in activities if activity.launch_ns is not None}):
        if previous_ns is not None and launch_ns - previous_ns > PAUSE_NS:
            shift_ns += launch_ns - previous_ns - PAUSE_NS
        previous_ns = launch_ns
        shifted_ns[launch_ns] = launch_ns - shift_ns
    shifted = (
        activity
        if activity.launch_ns is None
        else msgspec.structs.replace(activity, launch_ns=shifted_ns[activity.launch_ns])
        for activity in activities
    )
    return timeline_of(timeline.task, timeline.device, timeline.sms, shifted)


_Key = tuple[str, int, int]


def _by_shape(profile: Profile, *, is_source: bool) -> dict[_Key, Histogram]:
    """Return device times of kernels; a replay has the number of blocks and threads, not their arrangement."""
    recorders: dict[_Key, Recorder] = {}
    for timing in profile.timings:
        kernel = timing.kernel
        if kernel.work is WorkKind.KERNEL and timing.device.count:
            name = image_name(kernel) if is_source else kernel.function
            recorders.setdefault(_key(name, kernel), Recorder()).add(timing.device)
    return {key: recorder.histogram() for key, recorder in recorders.items()}


def _key(name: str, kernel: KernelIdentity) -> _Key:
    return name[:200], kernel.blocks, min(kernel.threads_per_block, 1024)


def agreement(timeline: Timeline, measured: Profile) -> TimelineAgreement:
    """Compare measured mean device times with those of the replayed timeline."""
    source = profile_of(timeline)
    expected, actual = _by_shape(source, is_source=True), _by_shape(measured, is_source=False)
    errors = sorted(
        (abs(actual[key].mean / times.mean - 1), key) for key, times in expected.items() if key in actual and times.mean
    )
    numbers = [error for error, _ in errors] or [1.0]
    return TimelineAgreement(
        timeline.task,
        sum(timing.launches for timing in measured.timings),
        len(errors),
        sum(1 for key in expected if key not in actual),
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


def report_of(agreements: Sequence[TimelineAgreement]) -> TimelinesReport:
    """Build the report."""
    ordered = sorted(agreements, key=lambda timeline: timeline.median_error)
    median = statistics.median(timeline.median_error for timeline in ordered) if ordered else 1.0
    met = {"median_error": bool(ordered) and median <= TARGET}
    return TimelinesReport(list(agreements), median, ordered[-1].name if ordered else "", met)


def timelines_of(directory: Path) -> list[Timeline]:
    """Read every timeline of a directory; of files with several, the first."""
    files = sorted(directory.glob("*.csv.gz"))
    if not files:
        raise ConfigError("data", str(directory), f"contains no timelines (*.csv.gz); {DATA_PAGE}")
    timelines = []
    for file in files:
        recording = next(iter(read_recordings(file)))
        if isinstance(recording, Timeline):
            timelines.append(recording)
    return timelines


def run_timelines(
    timelines: Sequence[Timeline], replay: Path, console: Console, report: Callable[[str], None]
) -> TimelinesReport:
    """Replay each timeline on one software GPU, with every kernel timed by the hook."""
    if not replay.is_file():
        raise ConfigError("--replay", str(replay), "does not exist; name examples/replay.py of the source tree")
    agreements: list[TimelineAgreement] = []
    with tempfile.TemporaryDirectory(prefix="cotenant-lab-") as name:
        home = Path(name)
        gpus = home / "softgpu"
        manage.create(gpus, PRESET, 1, costs=HARDWARE)
        try:
            for timeline in track(timelines, "replaying", console=console, transient=True):
                part = beginning_of(timeline)
                agreements.append(agreement(part, _replayed(part, replay, home, gpus, report)))
        finally:
            manage.destroy(gpus)
    return report_of(agreements)


def _replayed(timeline: Timeline, replay: Path, home: Path, gpus: Path, report: Callable[[str], None]) -> Profile:
    image, script = home / "image", home / "script"
    image.write_text(image_of(timeline), encoding="utf-8")
    script.write_text(script_of(timeline), encoding="utf-8")
    command = [sys.executable, str(replay), "--mode", "once", "--json", "--image", str(image), "--script", str(script)]
    environ = {**os.environ, **manage.env(gpus)}
    config = RunConfig(measure="always", task=timeline.task)
    directories = Directories(home, home)
    quiet = ["sh", "-c", 'exec "$@" >/dev/null', "sh", *command]  # its output is not used here
    code, profiles, _ = observe(config, quiet, environ, directories, gpus, report)
    if code or len(profiles) != 1:
        raise RunFailedError(f"the replay of {timeline.task} ended with {code} and wrote {len(profiles)} recordings")
    return profiles[0]
