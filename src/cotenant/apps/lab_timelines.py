"""Wires the lab of timelines: real ones, replayed on a software GPU under the hook, and what it measured."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import track

from cotenant.apps.advise import observe
from cotenant.apps.show import table
from cotenant.apps.show_profile import duration
from cotenant.domain.profile import Profile
from cotenant.domain.timeline import Timeline
from cotenant.errors import ConfigError, WorldError
from cotenant.experiment.lab.timelines import Agreement, Report, agreement, beginning_of, report_of
from cotenant.format.config import RunConfig
from cotenant.format.launches import image_of, script_of
from cotenant.live.directory import Places
from cotenant.live.profile.files import read_recordings
from cotenant.live.softgpu import manage

PRESET: Final = "v100"
_SAID_MOST: Final = 36


def timelines_of(directory: Path, flag: str) -> list[Timeline]:
    """Every timeline of a directory; of files with several the first. `flag` is what named it, if anything did."""
    files = sorted(directory.glob("*.csv.gz"))
    if not files and flag:
        raise ConfigError("--data", flag, f"there are no timelines in {directory}; name a directory that has some")
    if not files:
        raise WorldError(f"there are no timelines in {directory}; set COTENANT_DATA or --data to where they are")
    found = []
    for file in files:
        recording = next(iter(read_recordings(file)))
        if isinstance(recording, Timeline):
            found.append(recording)
    return found


def run_timelines(timelines: Sequence[Timeline], replay: Path, console: Console, say: Callable[[str], None]) -> Report:
    """Replay each on one software GPU, with every kernel timed by the hook."""
    if not replay.is_file():
        raise ConfigError("--replay", str(replay), "there is no such program, name examples/replay.py of the source")
    found: list[Agreement] = []
    with tempfile.TemporaryDirectory(prefix="cotenant-lab-") as name:
        home = Path(name)
        gpus = home / "softgpu"
        manage.create(gpus, PRESET, 1)
        try:
            for timeline in track(timelines, "replaying", console=console, transient=True):
                part = beginning_of(timeline)
                found.append(agreement(part, _replayed(part, replay, home, gpus, say)))
        finally:
            manage.destroy(gpus)
    return report_of(found)


def _replayed(timeline: Timeline, replay: Path, home: Path, gpus: Path, say: Callable[[str], None]) -> Profile:
    image, script = home / "image", home / "script"
    image.write_text(image_of(timeline), encoding="utf-8")
    script.write_text(script_of(timeline), encoding="utf-8")
    command = [sys.executable, str(replay), "--mode", "once", "--json", "--image", str(image), "--script", str(script)]
    environ = {**os.environ, **manage.env(gpus)}
    config = RunConfig(measure="always", task=timeline.task)
    places = Places(home, home)
    quiet = ["sh", "-c", 'exec "$@" >/dev/null', "sh", *command]  # its figures are not what is asked for here
    code, profiles, _ = observe(config, quiet, environ, places, gpus, say)
    if code or len(profiles) != 1:
        raise WorldError(f"the replay of {timeline.task} ended with {code} and left {len(profiles)} recordings")
    return profiles[0]


def show_timelines(console: Console, report: Report) -> None:
    """`cotenant lab timelines`."""
    rows = [
        [
            one.name[:_SAID_MOST],
            f"{one.median_error:.2%}",
            f"{one.p90_error:.1%}",
            f"{one.source_busy:.0%} / {one.measured_busy:.0%}",
            f"{duration(one.source_gaps_ns[0])} / {duration(one.measured_gaps_ns[0])}",
        ]
        for one in report.timelines
    ]
    console.print("Device times measured by the hook, against the timeline that was replayed:")
    console.print(table("source / measured", ["TIMELINE", "SK OFF", "P90", "BUSY", "GAP P50"], rows))
    for one in report.timelines:
        if one.missing:
            console.print(f"{one.name}: {one.missing} of its {one.kernels + one.missing} kernels were never timed")
    verdict = "met" if report.met else "missed"
    console.print(
        f"median of the medians {report.median_error:.2%}, target {report.target:.0%}: {verdict}; worst: {report.worst}"
    )
