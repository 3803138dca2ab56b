"""Lay out a recording as groups of tracks; the slices of a track never overlap."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from cotenant.trace.recording import (
    GATE_REASONS,
    PASS_REASONS,
    ContextSwitch,
    Device,
    DeviceOp,
    DeviceOpKind,
    Program,
    ProgramEvent,
    ProgramEventKind,
    Recording,
)
from cotenant.units.value import Value
from cotenant.workload.kernel import WorkKind

IDLE_NS: Final = 5000
"""Shorter idle times of a device are not shown."""
LAUNCH_NS: Final = 1000
"""The drawn length of a launch, which is an instant; shorter if the next launch follows sooner."""
JITTER_NS: Final = 200
"""The maximum difference of the hook's clock, a converted counter, and the device server's, a system call."""
_COUNTER_POINTS: Final = 2000
_FINEST_POINT_NS: Final = 1_000_000
_OP_NAMES: Final = ("kernel", "copy HtoD", "copy DtoH", "copy DtoD", "memset", "host function")

Span: TypeAlias = tuple[int, int]
Facts: TypeAlias = tuple[tuple[str, int | str], ...]


class Slice(Value, frozen=True):
    """A named time span on a track."""

    name: str
    start_ns: int
    end_ns: int
    category: str
    facts: Facts = ()
    flow: int = 0
    """The id of the arrow from a launch to its device operation; 0: none."""


class Track(Value, frozen=True):
    """Consecutive slices."""

    name: str
    slices: list[Slice]
    flows_end: bool = False
    """Whether arrows end on this track rather than start."""


class CounterTrack(Value, frozen=True):
    """A number that changes over time."""

    name: str
    points: list[tuple[int, int]]


class TrackGroup(Value, frozen=True):
    """The tracks of one device or one program."""

    name: str
    tracks: list[Track]
    counters: list[CounterTrack]
    pid: int = 0
    """The process number of a program; 0 for a device."""


def build_tracks(recording: Recording) -> list[TrackGroup]:
    """Return the tracks of devices, then of programs."""
    window = recording.start_ns, recording.end_ns
    flows = itertools.count(1)
    starts: dict[tuple[int, int], int] = {}
    groups = []
    programs = {program.pid: program for program in recording.programs}
    recorded = {op.pid for device in recording.devices for op in device.ops}
    for device in recording.devices:
        groups.append(_device_group(device, programs, window, flows, starts))
    unrecorded = [program for program in recording.programs if program.pid not in recorded]
    expected = [track for program in unrecorded for track in _expected_tracks(program, window, flows, starts)]
    if expected:
        busy = merge_spans((slice_.start_ns, slice_.end_ns) for track in expected for slice_ in track.slices)
        idle = Track("idle (expected)", _idle(busy))
        groups.append(TrackGroup("device (expected)", [idle, *expected], [_busy_counter(busy, window)]))
    waits = _waiting_counter(recording.programs, window)
    if waits.points and groups:
        groups[0].counters.append(waits)
    groups += [_program_group(program, window, starts) for program in recording.programs]
    return [group for group in groups if group.tracks]


# -- devices ------------------------------------------------------------------------------------------------------


def running_spans(op: DeviceOp, offs: list[Span]) -> list[Span]:
    """Return when an operation ran: from its start to its end, without the times it was switched out."""
    if not op.kind.on_sms:
        return [(op.start_ns, op.end_ns)]
    spans = []
    at_ns = op.start_ns
    for off_ns, on_ns in offs[max(bisect.bisect_right(offs, (op.start_ns, 0)) - 1, 0) :]:
        if off_ns >= op.end_ns:
            break
        if off_ns > at_ns:
            spans.append((at_ns, off_ns))
        at_ns = max(at_ns, on_ns)
    if at_ns < op.end_ns or not spans:
        spans.append((min(at_ns, op.end_ns), op.end_ns))
    return spans


def switched_out(switches: Iterable[ContextSwitch]) -> dict[int, list[Span]]:
    """Return when each client was switched out; without a switch back, until the end."""
    spans: dict[int, list[Span]] = {}
    since: dict[int, int] = {}
    for switch in switches:
        if not switch.is_on:
            since[switch.client] = switch.at_ns
        elif switch.client in since:
            spans.setdefault(switch.client, []).append((since.pop(switch.client), switch.at_ns))
    for client, off_ns in since.items():
        spans.setdefault(client, []).append((off_ns, 1 << 62))
    return spans


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the union of the spans."""
    merged: list[Span] = []
    for start_ns, end_ns in sorted(spans):
        if merged and start_ns <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end_ns)
        else:
            merged.append((start_ns, end_ns))
    return merged


def busy_spans(device: Device) -> list[Span]:
    """Return when any operation occupied SMs."""
    offs = switched_out(device.switches)
    return merge_spans(
        span for op in device.ops if op.kind.on_sms for span in running_spans(op, offs.get(op.client, []))
    )


def _device_group(
    device: Device,
    programs: Mapping[int, Program],
    window: Span,
    flows: Iterator[int],
    starts: dict[tuple[int, int], int],
) -> TrackGroup:
    offs = switched_out(device.switches)
    launches = {pid: launches_of(program) for pid, program in programs.items()}
    by_pid: dict[int, list[DeviceOp]] = {}
    for op in device.ops:
        by_pid.setdefault(op.pid, []).append(op)
    launch_of_op = {
        pid: match_launches(program_launches, by_pid.get(pid, [])) for pid, program_launches in launches.items()
    }
    rows: dict[tuple[int, int, int], list[Slice]] = {}
    streams: dict[tuple[int, int, int], int] = {}  # the program's stream numbers
    op_counts: dict[int, int] = {}
    for op in device.ops:
        index = op_counts[op.pid] = op_counts.get(op.pid, -1) + 1
        row = rows.setdefault((op.pid, op.client, op.stream), [])
        launch = launch_of_op.get(op.pid, {}).get(index)
        name, flow = _OP_NAMES[op.kind], 0
        if launch is not None:
            streams.setdefault((op.pid, op.client, op.stream), launches[op.pid][launch].stream)
            name = name_of(programs[op.pid], launches[op.pid][launch], op)
            is_visible = window[0] <= op.start_ns < window[1] and _is_within(launches[op.pid][launch], window)
            if is_visible and (op.pid, launch) not in starts:
                flow = starts[op.pid, launch] = next(flows)
        slices = list(_clipped(_op_slices(op, name, flow, offs.get(op.client, [])), window))
        if flow and launch is not None and not any(slice_.flow for slice_ in slices):
            del starts[op.pid, launch]  # switched out for the whole window: there is no slice to point to
        row += slices
    tracks = []
    for key, slices in sorted(rows.items()):
        owner = f"{programs[key[0]].name} ({key[0]})" if key[0] in programs else f"pid {key[0]}"
        stream = f"stream {streams[key]}" if key in streams else f"queue {key[2]}"
        if slices:
            tracks.append(Track(f"{owner}, {stream}", sorted(slices, key=_by_start), flows_end=True))
    busy = [(start, end) for start, end in busy_spans(device) if end >= window[0] and start <= window[1]]
    idle = Track("idle", list(_clipped(_idle(busy), window)))
    return TrackGroup(f"device {device.number}: {device.name} (exact)", [idle, *tracks], [_busy_counter(busy, window)])


def _op_slices(op: DeviceOp, name: str, flow: int, offs: list[Span]) -> Iterator[Slice]:
    facts: Facts = (("queued_ns", op.ready_ns - op.submit_ns), ("delayed_ns", op.delayed_ns))
    for number, (start_ns, end_ns) in enumerate(running_spans(op, offs)):
        shown = name if number == 0 else f"{name} (continued)"
        yield Slice(shown, start_ns, end_ns, "device", facts, 0 if number else flow)


def launches_of(program: Program) -> list[ProgramEvent]:
    """Return the launches of a program, in order of time."""
    return [event for event in program.events if event.kind is ProgramEventKind.LAUNCH]


def name_of(program: Program, launch: ProgramEvent, op: DeviceOp | None = None) -> str:
    """Return the name of the kernel of a launch; with `op`, of one operation of a graph."""
    if launch.kernel >= len(program.kernels):
        return "kernel"
    kernel = program.kernels[launch.kernel]
    if op is not None and kernel.work is WorkKind.GRAPH:
        return f"{kernel.name}: {_OP_NAMES[op.kind]}"
    return kernel.name


def match_launches(launches: list[ProgramEvent], ops: list[DeviceOp]) -> dict[int, int]:
    """Return the launch of each operation by index: the last one before its submission, in the order of both."""
    launch_by_op: dict[int, int] = {}
    launch, used = -1, -1
    for index in sorted(range(len(ops)), key=lambda index: ops[index].submit_ns):
        if ops[index].kind is DeviceOpKind.HOST:
            continue
        submit_ns = ops[index].submit_ns
        while launch + 1 < len(launches) and launches[launch + 1].at_ns <= submit_ns:
            launch += 1
        # A clock that is slightly behind must not assign two operations to one launch.
        if launch == used and launch + 1 < len(launches) and launches[launch + 1].at_ns <= submit_ns + JITTER_NS:
            launch += 1
        if launch >= 0:
            launch_by_op[index] = used = launch
    return launch_by_op


# -- expected device work ----------------------------------------------------------------------------------------


def _expected_tracks(
    program: Program, window: Span, flows: Iterator[int], starts: dict[tuple[int, int], int]
) -> Iterator[Track]:
    """Yield tracks for a device without records: each launch follows the previous one, for its expected duration."""
    rows: dict[int, list[Slice]] = {}
    ends: dict[int, int] = {}
    for number, launch in enumerate(launches_of(program)):
        mean_ns = program.kernels[launch.kernel].mean_ns if launch.kernel < len(program.kernels) else 0
        length_ns = launch.length_ns or mean_ns
        if not length_ns:
            continue
        start_ns = max(launch.at_ns, ends.get(launch.stream, 0))
        ends[launch.stream] = start_ns + length_ns
        flow = 0
        if start_ns < window[1] and _is_within(launch, window):
            flow = starts[program.pid, number] = next(flows)
        slice_ = Slice(name_of(program, launch), start_ns, start_ns + length_ns, "expected", (), flow)
        rows.setdefault(launch.stream, []).extend(_clipped([slice_], window))
    for stream, slices in sorted(rows.items()):
        yield Track(f"{program.name} ({program.pid}), stream {stream} (expected)", slices, flows_end=True)


# -- programs -----------------------------------------------------------------------------------------------------


def _program_group(program: Program, window: Span, starts: Mapping[tuple[int, int], int]) -> TrackGroup:
    rows: dict[int, list[Slice]] = {}
    launches = launches_of(program)
    following: dict[int, int] = {}
    for number in reversed(range(len(launches))):
        launch = launches[number]
        end_ns = min(launch.at_ns + LAUNCH_NS, following.get(launch.stream, window[1]), window[1])
        following[launch.stream] = launch.at_ns
        flow = starts.get((program.pid, number), 0)
        passed = PASS_REASONS.get(launch.reason, "unknown")
        facts: Facts = (("expected_ns", launch.length_ns), ("passed", passed))
        slice_ = Slice(name_of(program, launch), launch.at_ns, max(end_ns, launch.at_ns), "launch", facts, flow)
        if _is_within(launch, window):
            rows.setdefault(launch.stream, []).append(slice_)
    tracks = [Track(f"launches, stream {stream}", slices[::-1]) for stream, slices in sorted(rows.items())]
    for kind, name in ((ProgramEventKind.WAIT, "gate waits"), (ProgramEventKind.SYNC, "device waits")):
        waits = [_wait_slice(program, event) for event in program.events if event.kind is kind]
        for number, slices in enumerate(stacked(sorted(_clipped(waits, window), key=_by_start))):
            tracks.append(Track(name if number == 0 else f"{name}, {number + 1}", slices))
    return TrackGroup(f"{program.name} ({program.pid})", tracks, [], program.pid)


def _wait_slice(program: Program, event: ProgramEvent) -> Slice:
    if event.kind is ProgramEventKind.SYNC:
        return Slice("synchronize", event.at_ns, event.end_ns, "sync")
    reason = GATE_REASONS.get(event.reason, "unknown")
    return Slice(f"gate: {reason}", event.at_ns, event.end_ns, "gate", (("kernel", name_of(program, event)),))


def stacked(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Distribute overlapping slices over as many rows as needed."""
    rows: list[list[Slice]] = []
    for slice_ in slices:
        row = next((row for row in rows if row[-1].end_ns <= slice_.start_ns), None)
        if row is None:
            rows.append([slice_])
        else:
            row.append(slice_)
    return rows


# -- numbers over time --------------------------------------------------------------------------------------------


def _idle(busy: list[Span]) -> list[Slice]:
    return [
        Slice("idle", end_ns, start_ns, "idle")
        for (_, end_ns), (start_ns, _) in itertools.pairwise(busy)
        if start_ns - end_ns >= IDLE_NS
    ]


def _busy_counter(busy: list[Span], window: Span) -> CounterTrack:
    """Return the busy percentage of each interval."""
    step_ns = max(_FINEST_POINT_NS, -(-(window[1] - window[0]) // _COUNTER_POINTS))
    totals: dict[int, int] = {}
    for start_ns, end_ns in busy:
        at_ns, last_ns = max(start_ns, window[0]), min(end_ns, window[1])
        while at_ns < last_ns:
            number = (at_ns - window[0]) // step_ns
            until_ns = min(last_ns, window[0] + (number + 1) * step_ns)
            totals[number] = totals.get(number, 0) + until_ns - at_ns
            at_ns = until_ns
    points: list[tuple[int, int]] = []
    for number in sorted({*totals, *(number + 1 for number in totals)}):
        if window[0] + number * step_ns <= window[1]:
            points.append((window[0] + number * step_ns, 100 * totals.get(number, 0) // step_ns))
    return CounterTrack("device busy %", points)


def _waiting_counter(programs: Iterable[Program], window: Span) -> CounterTrack:
    """Return the number of programs that wait at the gate."""
    changes: dict[int, int] = {}
    for program in programs:
        waits = [(event.at_ns, event.end_ns) for event in program.events if event.kind is ProgramEventKind.WAIT]
        for start_ns, end_ns in merge_spans(waits):
            start_ns, end_ns = max(start_ns, window[0]), min(end_ns, window[1])  # noqa: PLW2901  clipped
            if start_ns < end_ns:
                changes[start_ns] = changes.get(start_ns, 0) + 1
                changes[end_ns] = changes.get(end_ns, 0) - 1
    points, waiting = [], 0
    for at_ns, change in sorted(changes.items()):
        waiting += change
        points.append((at_ns, waiting))
    return CounterTrack("programs waiting at the gate", points)


def _by_start(slice_: Slice) -> Span:
    return slice_.start_ns, slice_.end_ns


def _is_within(launch: ProgramEvent, window: Span) -> bool:
    return window[0] <= launch.at_ns <= window[1]


def _clipped(slices: Iterable[Slice], window: Span) -> Iterator[Slice]:
    for slice_ in slices:
        start_ns, end_ns = max(slice_.start_ns, window[0]), min(slice_.end_ns, window[1])
        if start_ns == slice_.start_ns and end_ns == slice_.end_ns:
            yield slice_
        elif start_ns < end_ns:
            yield Slice(slice_.name, start_ns, end_ns, slice_.category, slice_.facts, slice_.flow)
