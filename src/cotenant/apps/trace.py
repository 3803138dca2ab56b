"""Wires `cotenant trace`: what programs ask and what software GPUs did, followed for a while, laid out, written."""

from __future__ import annotations

import contextlib
import gzip
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from cotenant import __version__
from cotenant.apps import softgpu
from cotenant.domain.lanes import Group
from cotenant.domain.serve_lanes import lay_out_all
from cotenant.domain.trace import Device, Recording
from cotenant.errors import ConfigError, CotenantError, WorldError
from cotenant.format.ran import RECORD, read_ran
from cotenant.format.traceevents import trace_events
from cotenant.live.clock import monotonic_ns, pause, unix_ns
from cotenant.live.directory import Places
from cotenant.live.hook.ring import Rings
from cotenant.live.serve.spans import HOME, SpanFiles
from cotenant.live.softgpu import manage, wire

DEFAULT_SECONDS: Final = 5.0
_MOST_SECONDS: Final = 600.0
_BEFORE_NS: Final = 100_000_000
_LOOK_S: Final = 0.04
"""A ring holds 65,536 entries: looked at this often, a program must launch 1.6 million times a second to escape."""


class Written(msgspec.Struct, frozen=True):
    """What came of it."""

    file: str
    bytes: int
    events: int
    milliseconds: int
    programs: int
    devices: int
    launches: int
    ran: int
    lost: int
    """Entries and records that were overwritten before they were read."""
    servers: int
    requests: int


def seconds_of(text: str | None) -> float:
    """How long to look."""
    if text is None:
        return DEFAULT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _MOST_SECONDS:
        raise ConfigError("--seconds", text, f"say a number above 0 and up to {_MOST_SECONDS:.0f}")
    return seconds


class _Server:
    """One software GPU, followed from look to look."""

    def __init__(self, gpu: manage.SoftGpu, say: Callable[[str], None]) -> None:
        self._gpu = gpu
        self._say = say
        self._after = 0
        self._lost = 0
        self._records: list[bytes] = []

    def look(self) -> None:
        try:
            records, first, following = wire.trace(self._gpu.path, self._after)
        except CotenantError as error:
            if self._after >= 0:
                self._say(f"what software GPU {self._gpu.ordinal} did is not known from here on: {error}")
            self._after = -1
            return
        if self._after >= 0:
            self._lost += max(first - self._after, 0) if self._after else 0  # what was gone before the first look
            self._records.append(records)
            self._after = first + len(records) // RECORD.size if records else following

    def device(self) -> Device:
        ran, turns = read_ran(b"".join(self._records))
        return Device(self._gpu.ordinal, self._gpu.name, ran, turns, self._lost)


def check_place(output: str) -> None:
    """Whether a file can be written there, as far as that can be known before."""
    parent = Path(output).absolute().parent
    if not parent.is_dir():
        raise ConfigError("--output", output, "its directory does not exist; choose another place")
    if Path(output).is_dir():
        raise ConfigError("--output", output, "is a directory; name a file in it")
    if not os.access(parent, os.W_OK):
        raise ConfigError("--output", output, "you may not write there; choose another place")


def record(places: Places, seconds: float, console: Console, say: Callable[[str], None]) -> Recording:
    """Follow everything for so many seconds; for 0, what is remembered of the time before."""
    rings = Rings(places.runtime / "hook")
    spans = SpanFiles(places.runtime / HOME)
    servers = [_Server(gpu, say) for gpu in softgpu.find(places) if gpu.alive]
    began_ns = ended_ns = monotonic_ns()
    try:
        for _ in _looks(seconds, console):
            ended_ns = monotonic_ns()  # looking takes a while: what comes in between is seen by some and not by others
            rings.look()
            spans.look(follow=seconds > 0)
            for server in servers:
                server.look()
        programs = tuple(rings.programs())
        served = tuple(spans.servers())
    finally:
        rings.close()
        spans.close()
    devices = tuple(server.device() for server in servers)
    recording = Recording(began_ns, ended_ns, unix_ns(), programs, devices, served)
    return _since(recording) if seconds else msgspec.structs.replace(recording, start_ns=_earliest(recording))


def _looks(seconds: float, console: Console) -> Iterator[None]:
    yield
    if not seconds:
        return
    columns = (TextColumn("recording"), BarColumn(), TimeRemainingColumn())
    until_ns = monotonic_ns() + int(seconds * 1e9)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("", total=seconds)
        while (left_s := (until_ns - monotonic_ns()) / 1e9) > 0:
            pause(min(left_s, _LOOK_S))
            bars.update(task, completed=seconds - left_s)
            yield


def _since(recording: Recording) -> Recording:
    """Without what was over long before; a little is kept, for what it led to."""
    old_ns = recording.start_ns - _BEFORE_NS
    programs = [
        msgspec.structs.replace(one, asked=[asked for asked in one.asked if asked.end_ns >= old_ns])
        for one in recording.programs
    ]
    devices = [
        msgspec.structs.replace(one, ran=[ran for ran in one.ran if ran.end_ns >= old_ns]) for one in recording.devices
    ]
    servers = [
        msgspec.structs.replace(one, requests=[asked for asked in one.requests if asked.answered_ns >= old_ns])
        for one in recording.servers
    ]
    return msgspec.structs.replace(recording, programs=tuple(programs), devices=tuple(devices), servers=tuple(servers))


def _earliest(recording: Recording) -> int:
    """Where what is remembered begins; a program that tells of instants to come tells nothing."""
    starts = [ran.submit_ns for device in recording.devices for ran in device.ran]
    starts += [one.at_ns for program in recording.programs for one in program.asked]
    starts += [one.arrived_ns for server in recording.servers for one in server.requests]
    return min([start for start in starts if start < recording.end_ns], default=recording.end_ns)


def write(recording: Recording, output: str) -> Written:
    """The timeline as a file; none is left half written."""
    if not recording.programs and not recording.devices and not recording.servers:
        raise WorldError("nothing to write: no program under `cotenant run`, no server and no software GPU is here")
    groups = lay_out_all(recording)
    about: dict[str, int | str] = {
        "cotenant": __version__,
        "start_monotonic_ns": recording.start_ns,
        "start_unix_ns": recording.unix_ns - (recording.end_ns - recording.start_ns),
        "lost": _lost(recording),
    }
    path = Path(output)
    try:
        with _in_place_of(path) as file:
            for piece in trace_events(groups, recording.start_ns, about):
                file.write(piece)
        size_bytes = path.stat().st_size
    except OSError as error:
        raise ConfigError("--output", output, f"cannot be written: {error.strerror}; choose another place") from None
    return Written(
        output,
        size_bytes,
        _count(groups),
        (recording.end_ns - recording.start_ns) // 1_000_000,
        len(recording.programs),
        len(recording.devices),
        sum(len(program.asked) for program in recording.programs),
        sum(len(device.ran) for device in recording.devices),
        _lost(recording),
        len(recording.servers),
        sum(len(server.requests) for server in recording.servers),
    )


@contextlib.contextmanager
def _in_place_of(path: Path) -> Iterator[BinaryIO]:
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with half.open("xb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(path.stem, "wb", fileobj=file) as packed:
                    yield packed  # type: ignore[misc]  # it has all that is used of a file
            else:
                yield file
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _lost(recording: Recording) -> int:
    programs = sum(one.lost for one in recording.programs)
    return programs + sum(one.lost for one in recording.devices) + sum(one.lost for one in recording.servers)


def _count(groups: list[Group]) -> int:
    slices = sum(len(lane.slices) for group in groups for lane in group.lanes)
    return slices + sum(len(track.points) for group in groups for track in group.tracks)
