"""The last few hundred milliseconds of one GPU: what ran, which launches waited at the gate, and when it was idle."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cotenant.errors import CotenantError
from cotenant.hook.launch_ring import recent_programs
from cotenant.node.directories import Directories
from cotenant.runner.clock import monotonic_ns, unix_ns
from cotenant.softgpu import commands as softgpu
from cotenant.softgpu import wire
from cotenant.trace.device_records import RECORD, decode_device_records
from cotenant.trace.recording import GATE_REASONS, Device, DeviceOp, Program, ProgramEventKind
from cotenant.trace.tracks import (
    Span,
    busy_spans,
    launches_of,
    match_launches,
    merge_spans,
    name_of,
    running_spans,
    switched_out,
)

MAX_WINDOW_NS: Final = 1_000_000_000
SLICES_LIMIT: Final = 4000
"""Slices of one track; further ones are joined with their neighbours."""
_RECORDS_LIMIT: Final = 40_000
_LAG_NS: Final = 30_000_000
"""The window ends this long before now, so that operations that still run have mostly ended."""


class TimelineView:
    """Reads the buffers of programs and of a software GPU; nothing is recorded while nobody looks."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories

    def read(self, view: Mapping[str, Any], gpu: int, window_ns: int) -> dict[str, Any]:
        """Return the timeline of one GPU of this view of the node."""
        window_ns = max(1_000_000, min(window_ns, MAX_WINDOW_NS))
        end_ns = monotonic_ns() - _LAG_NS
        window = end_ns - window_ns, end_ns
        tenants = [tenant for tenant in view["tenants"] if tenant["gpu"] == gpu]
        by_pid = {pid: tenant for tenant in tenants for pid in tenant["pids"]}
        programs = {program.pid: program for program in self._programs(by_pid, window)}
        record = next((one for one in view["gpus"] if one["index"] == gpu), None)
        device = None if record is None else self._device(record, window)
        tracks = []
        for tenant in tenants:
            own = [programs[pid] for pid in tenant["pids"] if pid in programs]
            running = _expected(own, window) if device is None else _exact(device, tenant["pids"], programs, window)
            names, slices = _limited(running, window)
            tracks.append(
                {
                    "tenant": tenant["name"],
                    "kind": tenant["kind"],
                    "names": names,
                    "running": slices,
                    "waits": _waits(own, window),
                }
            )
        busy = [] if device is None else _cut(busy_spans(device), window)
        return {
            "gpu": gpu,
            "exact": device is not None,
            "start_ns": window[0],
            "end_ns": window[1],
            "end_ms": (unix_ns() - _LAG_NS) // 1_000_000,
            "tracks": tracks,
            "busy_ppm": sum(end - start for start, end in busy) * 1_000_000 // window_ns,
            "idle": _relative(_gaps(busy, window), window)[-SLICES_LIMIT:] if device is not None else [],
        }

    def _programs(self, by_pid: Mapping[int, Any], window: Span) -> Sequence[Program]:
        with contextlib.suppress(OSError):
            return recent_programs(self._hook_home(), tuple(by_pid), window[0])
        return ()

    def _hook_home(self) -> Path:
        return self._directories.runtime / "hook"

    def _device(self, record: Mapping[str, Any], window: Span) -> Device | None:
        """Return the operations of a software GPU within the window; None for another device."""
        numbers = [name[5:] for name in record["called"] if name.startswith("soft:")]
        for gpu in softgpu.find(self._directories):
            if gpu.alive and str(gpu.ordinal) in numbers:
                try:
                    data = _latest_records(gpu.path)
                except CotenantError:
                    return None
                ops, switches = decode_device_records(data)
                kept = [op for op in ops if op.end_ns > window[0] and op.start_ns < window[1]]
                return Device(gpu.ordinal, gpu.name, kept, switches)
        return None


def _latest_records(path: os.PathLike[str]) -> bytes:
    """Return the latest records of a software GPU; the first answer says how many there are."""
    records, _, following = wire.trace(Path(path), (1 << 62))
    if records:
        return records[-_RECORDS_LIMIT * RECORD.size :]
    records, _, _ = wire.trace(Path(path), max(0, following - _RECORDS_LIMIT))
    return records


def _exact(
    device: Device, pids: Sequence[int], programs: Mapping[int, Program], window: Span
) -> list[tuple[int, int, str]]:
    """Return when operations of these processes ran, with the names of their kernels."""
    offs = switched_out(device.switches)
    slices = []
    for pid in pids:
        ops: list[DeviceOp] = [op for op in device.ops if op.pid == pid]
        program = programs.get(pid)
        launches = [] if program is None else launches_of(program)
        launch_by_op = match_launches(launches, ops) if launches else {}
        for index, op in enumerate(ops):
            name = op.kind.name.lower().replace("_", " ")
            if program is not None and index in launch_by_op:
                name = name_of(program, launches[launch_by_op[index]], op)
            slices += [(start, end, name) for start, end in running_spans(op, offs.get(op.client, []))]
    return sorted((start, end, name) for start, end, name in slices if end > window[0] and start < window[1])


def _expected(programs: Sequence[Program], window: Span) -> list[tuple[int, int, str]]:
    """Return expected operations: each launch follows the one before in its stream, for its expected duration."""
    slices = []
    for program in programs:
        ends: dict[int, int] = {}
        for launch in launches_of(program):
            known = launch.kernel < len(program.kernels)
            length_ns = launch.length_ns or (program.kernels[launch.kernel].mean_ns if known else 0)
            start_ns = max(launch.at_ns, ends.get(launch.stream, 0))
            ends[launch.stream] = start_ns + length_ns
            if length_ns and start_ns + length_ns > window[0] and start_ns < window[1]:
                slices.append((start_ns, start_ns + length_ns, name_of(program, launch)))
    return sorted(slices)


def _waits(programs: Sequence[Program], window: Span) -> list[tuple[int, int, str]]:
    """Return the waits at the gate: start and length relative to the window, and the reason."""
    waits = []
    for program in programs:
        for event in program.events:
            if event.kind is ProgramEventKind.WAIT and event.end_ns > window[0] and event.at_ns < window[1]:
                start_ns, end_ns = max(event.at_ns, window[0]), min(event.end_ns, window[1])
                waits.append((start_ns - window[0], end_ns - start_ns, GATE_REASONS.get(event.reason, "unknown")))
    return sorted(waits)[-SLICES_LIMIT:]


def _limited(slices: Sequence[tuple[int, int, str]], window: Span) -> tuple[list[str], list[tuple[int, int, int]]]:
    """Return names, and start, length and name of each slice; slices closer than a pixel are joined if too many."""
    names: dict[str, int] = {}
    joined: list[tuple[int, int, str]] = []
    gap_ns = (window[1] - window[0]) // SLICES_LIMIT if len(slices) > SLICES_LIMIT else -1
    for start_ns, end_ns, name in slices:
        if joined and start_ns - joined[-1][1] <= gap_ns:
            joined[-1] = joined[-1][0], max(end_ns, joined[-1][1]), "several kernels"
        else:
            joined.append((start_ns, end_ns, name))
    rows = []
    for start_ns, end_ns, name in joined[-SLICES_LIMIT:]:
        start, end = max(start_ns, window[0]), min(end_ns, window[1])
        rows.append((start - window[0], end - start, names.setdefault(name, len(names))))
    return list(names), rows


def _cut(spans: Sequence[Span], window: Span) -> list[Span]:
    inside = [(max(start, window[0]), min(end, window[1])) for start, end in spans]
    return merge_spans(span for span in inside if span[0] < span[1])


def _gaps(busy: Sequence[Span], window: Span) -> list[Span]:
    edges = [window[0], *(edge for span in busy for edge in span), window[1]]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def _relative(spans: Sequence[Span], window: Span) -> list[Span]:
    return [(start - window[0], end - start) for start, end in spans]
