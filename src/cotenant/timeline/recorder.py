"""Record launches of programs and work of software GPUs, and write a timeline for Perfetto."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from cotenant import __version__
from cotenant.errors import ConfigError, CotenantError, WorldError
from cotenant.hook.launch_ring import LaunchRings
from cotenant.node.directories import Directories
from cotenant.runner.clock import monotonic_ns, pause, unix_ns
from cotenant.serve.frontend.spans import HOME, SpanReader
from cotenant.softgpu import commands as softgpu
from cotenant.softgpu import manage, wire
from cotenant.trace.device_records import RECORD, decode_device_records
from cotenant.trace.recording import Device, Recording
from cotenant.trace.server_tracks import build_all_tracks
from cotenant.trace.trace_events import trace_events
from cotenant.trace.tracks import TrackGroup

_KEPT_BEFORE_START_NS: Final = 100_000_000
_READ_PERIOD_S: Final = 0.04
"""A ring holds 65,536 entries: read this often, it loses entries only above 1.6 million launches per second."""


class TraceSummary(msgspec.Struct, frozen=True):
    """The contents of a written timeline."""

    file: str
    bytes: int
    events: int
    milliseconds: int
    programs: int
    devices: int
    launches: int
    ops: int
    lost: int
    """Ring entries and device records that were overwritten before they were read."""
    servers: int
    requests: int


class _DeviceReader:
    """Reads the records of one software GPU repeatedly."""

    def __init__(self, gpu: manage.SoftwareGpu, report: Callable[[str], None]) -> None:
        self._gpu = gpu
        self._report = report
        self._after = 0
        self._lost = 0
        self._records: list[bytes] = []

    def read(self) -> None:
        try:
            records, first, following = wire.trace(self._gpu.path, self._after)
        except CotenantError as error:
            if self._after >= 0:
                self._report(f"the records of software GPU {self._gpu.ordinal} can no longer be read: {error}")
            self._after = -1
            return
        if self._after >= 0:
            self._lost += (
                max(first - self._after, 0) if self._after else 0
            )  # records overwritten before the first read do not count as lost
            self._records.append(records)
            self._after = first + len(records) // RECORD.size if records else following

    def device(self) -> Device:
        ops, switches = decode_device_records(b"".join(self._records))
        return Device(self._gpu.ordinal, self._gpu.name, ops, switches, self._lost)


def reads_for(seconds: float, progress: Callable[[float], None] = lambda _: None) -> Iterator[None]:
    """Yield at each instant at which buffers must be read, for some seconds; `progress` gets the time that passed."""
    yield
    until_ns = monotonic_ns() + int(seconds * 1e9)
    while seconds and (remaining_s := (until_ns - monotonic_ns()) / 1e9) > 0:
        pause(min(remaining_s, _READ_PERIOD_S))
        progress(seconds - remaining_s)
        yield


def record(
    directories: Directories, seconds: float, report: Callable[[str], None], reads: Iterable[None] | None = None
) -> Recording:
    """Record for some seconds; for 0 seconds, return the buffered records of the time before."""
    rings = LaunchRings(directories.runtime / "hook")
    spans = SpanReader(directories.runtime / HOME)
    readers = [_DeviceReader(gpu, report) for gpu in softgpu.find(directories) if gpu.alive]
    began_ns = ended_ns = monotonic_ns()
    try:
        for _ in reads_for(seconds) if reads is None else reads:
            ended_ns = monotonic_ns()  # reading takes a while, and some readers also return records from meanwhile
            rings.poll()
            spans.read_new(follow=seconds > 0)
            for reader in readers:
                reader.read()
        programs = tuple(rings.programs())
        inference_servers = tuple(spans.servers())
    finally:
        rings.close()
        spans.close()
    devices = tuple(reader.device() for reader in readers)
    recording = Recording(began_ns, ended_ns, unix_ns(), programs, devices, inference_servers)
    return _without_old(recording) if seconds else msgspec.structs.replace(recording, start_ns=_earliest(recording))


def _without_old(recording: Recording) -> Recording:
    """Return the recording without records that ended more than 100 ms before its start."""
    old_ns = recording.start_ns - _KEPT_BEFORE_START_NS
    programs = [
        msgspec.structs.replace(program, events=[call for call in program.events if call.end_ns >= old_ns])
        for program in recording.programs
    ]
    devices = [
        msgspec.structs.replace(device, ops=[op for op in device.ops if op.end_ns >= old_ns])
        for device in recording.devices
    ]
    servers = [
        msgspec.structs.replace(
            server, requests=[request for request in server.requests if request.answered_ns >= old_ns]
        )
        for server in recording.servers
    ]
    return msgspec.structs.replace(recording, programs=tuple(programs), devices=tuple(devices), servers=tuple(servers))


def _earliest(recording: Recording) -> int:
    """Return the instant of the oldest buffered record; records with instants in the future are ignored."""
    starts = [op.submit_ns for device in recording.devices for op in device.ops]
    starts += [event.at_ns for program in recording.programs for event in program.events]
    starts += [request.arrived_ns for server in recording.servers for request in server.requests]
    return min([start for start in starts if start < recording.end_ns], default=recording.end_ns)


def encode_trace(recording: Recording) -> bytes:
    """Return the timeline as a file for Perfetto."""
    return b"".join(trace_events(build_all_tracks(recording), recording.start_ns, _about(recording)))


def _about(recording: Recording) -> dict[str, int | str]:
    return {
        "cotenant": __version__,
        "start_monotonic_ns": recording.start_ns,
        "start_unix_ns": recording.unix_ns - (recording.end_ns - recording.start_ns),
        "lost": _lost(recording),
    }


def write(recording: Recording, output: str) -> TraceSummary:
    """Write the timeline to a file; on an error no partial file remains."""
    if not recording.programs and not recording.devices and not recording.servers:
        raise WorldError("nothing to write: no program under `cotenant run`, no inference server, no software GPU")
    groups = build_all_tracks(recording)
    path = Path(output)
    try:
        with _in_place_of(path) as file:
            for chunk in trace_events(groups, recording.start_ns, _about(recording)):
                file.write(chunk)
        size_bytes = path.stat().st_size
    except OSError as error:
        raise ConfigError("--output", output, f"cannot be written: {error.strerror}; choose another path") from None
    return TraceSummary(
        output,
        size_bytes,
        _count(groups),
        (recording.end_ns - recording.start_ns) // 1_000_000,
        len(recording.programs),
        len(recording.devices),
        sum(len(program.events) for program in recording.programs),
        sum(len(device.ops) for device in recording.devices),
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
                    yield packed  # type: ignore[misc]  # it has every method that is used here
            else:
                yield file
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _lost(recording: Recording) -> int:
    programs = sum(one.lost for one in recording.programs)
    return programs + sum(one.lost for one in recording.devices) + sum(one.lost for one in recording.servers)


def _count(groups: list[TrackGroup]) -> int:
    slices = sum(len(track.slices) for group in groups for track in group.tracks)
    return slices + sum(len(counter.points) for group in groups for counter in group.counters)
