"""How is a recording laid out to be looked at? Groups of lanes; the slices of a lane never overlap."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from cotenant.domain.kernel import Work
from cotenant.domain.trace import GATE_REASONS, PASS_REASONS, Ask, Asked, Device, Op, Program, Ran, Recording, Turn
from cotenant.domain.value import Value

IDLE_NS: Final = 5000
"""A device that did nothing for less than this is not shown as idle."""
LAUNCH_NS: Final = 1000
"""A launch is an instant; to be seen it is drawn this long, or until the next one."""
JITTER_NS: Final = 200
"""How far the hook's clock and the device server's may differ: one converts a counter, the other asks the system."""
_TRACK_POINTS: Final = 2000
_FINEST_POINT_NS: Final = 1_000_000
_OP_NAMES: Final = ("kernel", "copy HtoD", "copy DtoH", "copy DtoD", "memset", "host function")

Span: TypeAlias = tuple[int, int]
Facts: TypeAlias = tuple[tuple[str, int | str], ...]


class Slice(Value, frozen=True):
    """Something that took its time."""

    name: str
    start_ns: int
    end_ns: int
    category: str
    facts: Facts = ()
    flow: int = 0
    """The arrow that starts in a launch, or ends in what the launch became; 0: none."""


class Lane(Value, frozen=True):
    """What happened one after the other."""

    name: str
    slices: list[Slice]
    flows_end: bool = False
    """Whether arrows end here rather than start."""


class Track(Value, frozen=True):
    """A number that changes."""

    name: str
    points: list[tuple[int, int]]


class Group(Value, frozen=True):
    """The lanes of one device or one program."""

    name: str
    lanes: list[Lane]
    tracks: list[Track]
    pid: int = 0
    """Of a program; 0: this is a device."""


def lay_out(recording: Recording) -> list[Group]:
    """Devices first, then programs."""
    window = recording.start_ns, recording.end_ns
    flows = itertools.count(1)
    starts: dict[tuple[int, int], int] = {}
    groups = []
    programs = {program.pid: program for program in recording.programs}
    told = {ran.pid for device in recording.devices for ran in device.ran}
    for device in recording.devices:
        groups.append(_device_group(device, programs, window, flows, starts))
    untold = [program for program in recording.programs if program.pid not in told]
    expected = [lane for program in untold for lane in _expected_lanes(program, window, flows, starts)]
    if expected:
        busy = merge_spans((one.start_ns, one.end_ns) for lane in expected for one in lane.slices)
        idle = Lane("idle (expected)", _idle(busy))
        groups.append(Group("device (expected)", [idle, *expected], [_busy_track(busy, window)]))
    waits = _waiting_track(recording.programs, window)
    if waits.points and groups:
        groups[0].tracks.append(waits)
    groups += [_program_group(program, window, starts) for program in recording.programs]
    return [group for group in groups if group.lanes]


# -- devices ------------------------------------------------------------------------------------------------------


def pieces_of(ran: Ran, offs: list[Span]) -> list[Span]:
    """When an op was really on the device: from its start to its end, but for the times it was switched out."""
    if not ran.kind.on_sms:
        return [(ran.start_ns, ran.end_ns)]
    pieces = []
    at_ns = ran.start_ns
    for off_ns, on_ns in offs[max(bisect.bisect_right(offs, (ran.start_ns, 0)) - 1, 0) :]:
        if off_ns >= ran.end_ns:
            break
        if off_ns > at_ns:
            pieces.append((at_ns, off_ns))
        at_ns = max(at_ns, on_ns)
    if at_ns < ran.end_ns or not pieces:
        pieces.append((min(at_ns, ran.end_ns), ran.end_ns))
    return pieces


def switched_out(turns: Iterable[Turn]) -> dict[int, list[Span]]:
    """When each client's blocks were frozen; one that never came back was frozen to its end."""
    found: dict[int, list[Span]] = {}
    since: dict[int, int] = {}
    for turn in turns:
        if not turn.is_on:
            since[turn.client] = turn.at_ns
        elif turn.client in since:
            found.setdefault(turn.client, []).append((since.pop(turn.client), turn.at_ns))
    for client, off_ns in since.items():
        found.setdefault(client, []).append((off_ns, 1 << 62))
    return found


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """The time covered by any of them."""
    merged: list[Span] = []
    for start_ns, end_ns in sorted(spans):
        if merged and start_ns <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end_ns)
        else:
            merged.append((start_ns, end_ns))
    return merged


def busy_spans(device: Device) -> list[Span]:
    """When anything was on the SMs."""
    offs = switched_out(device.turns)
    return merge_spans(
        span for ran in device.ran if ran.kind.on_sms for span in pieces_of(ran, offs.get(ran.client, []))
    )


def _device_group(
    device: Device,
    programs: Mapping[int, Program],
    window: Span,
    flows: Iterator[int],
    starts: dict[tuple[int, int], int],
) -> Group:
    offs = switched_out(device.turns)
    launches = {pid: _launches_of(program) for pid, program in programs.items()}
    by_pid: dict[int, list[Ran]] = {}
    for ran in device.ran:
        by_pid.setdefault(ran.pid, []).append(ran)
    became = {pid: _match(found, by_pid.get(pid, [])) for pid, found in launches.items()}
    rows: dict[tuple[int, int, int], list[Slice]] = {}
    streams: dict[tuple[int, int, int], int] = {}  # as the program counts them
    seen: dict[int, int] = {}
    for ran in device.ran:
        place = seen[ran.pid] = seen.get(ran.pid, -1) + 1
        row = rows.setdefault((ran.pid, ran.client, ran.stream), [])
        launch = became.get(ran.pid, {}).get(place)
        name, flow = _OP_NAMES[ran.kind], 0
        if launch is not None:
            streams.setdefault((ran.pid, ran.client, ran.stream), launches[ran.pid][launch].stream)
            name = _name_of(programs[ran.pid], launches[ran.pid][launch], ran)
            is_seen = window[0] <= ran.start_ns < window[1] and _is_within(launches[ran.pid][launch], window)
            if is_seen and (ran.pid, launch) not in starts:
                flow = starts[ran.pid, launch] = next(flows)
        slices = list(_clipped(_ran_slices(ran, name, flow, offs.get(ran.client, [])), window))
        if flow and launch is not None and not any(one.flow for one in slices):
            del starts[ran.pid, launch]  # switched out for as long as was looked: there is no slice to point to
        row += slices
    lanes = []
    for key, slices in sorted(rows.items()):
        owner = f"{programs[key[0]].name} ({key[0]})" if key[0] in programs else f"pid {key[0]}"
        stream = f"stream {streams[key]}" if key in streams else f"queue {key[2]}"
        if slices:
            lanes.append(Lane(f"{owner}, {stream}", sorted(slices, key=_by_start), flows_end=True))
    busy = [(start, end) for start, end in busy_spans(device) if end >= window[0] and start <= window[1]]
    idle = Lane("idle", list(_clipped(_idle(busy), window)))
    return Group(f"device {device.number}: {device.name} (exact)", [idle, *lanes], [_busy_track(busy, window)])


def _ran_slices(ran: Ran, name: str, flow: int, offs: list[Span]) -> Iterator[Slice]:
    facts: Facts = (("queued_ns", ran.ready_ns - ran.submit_ns), ("delayed_ns", ran.delayed_ns))
    for number, (start_ns, end_ns) in enumerate(pieces_of(ran, offs)):
        shown = name if number == 0 else f"{name} (goes on)"
        yield Slice(shown, start_ns, end_ns, "device", facts, 0 if number else flow)


def _launches_of(program: Program) -> list[Asked]:
    return [one for one in program.asked if one.kind is Ask.LAUNCH]


def _name_of(program: Program, launch: Asked, ran: Ran | None = None) -> str:
    if launch.kernel >= len(program.kernels):
        return "kernel"
    kernel = program.kernels[launch.kernel]
    if ran is not None and kernel.work is Work.GRAPH:
        return f"{kernel.name}: {_OP_NAMES[ran.kind]}"
    return kernel.name


def _match(launches: list[Asked], ran: list[Ran]) -> dict[int, int]:
    """Which launch each op came from, by place: the last one before it was submitted, in the order of both."""
    found: dict[int, int] = {}
    at, used = -1, -1
    for place in sorted(range(len(ran)), key=lambda place: ran[place].submit_ns):
        if ran[place].kind is Op.HOST:
            continue
        submit_ns = ran[place].submit_ns
        while at + 1 < len(launches) and launches[at + 1].at_ns <= submit_ns:
            at += 1
        # A clock a little behind must not give two ops to one launch.
        if at == used and at + 1 < len(launches) and launches[at + 1].at_ns <= submit_ns + JITTER_NS:
            at += 1
        if at >= 0:
            found[place] = used = at
    return found


# -- what is only expected ----------------------------------------------------------------------------------------


def _expected_lanes(
    program: Program, window: Span, flows: Iterator[int], starts: dict[tuple[int, int], int]
) -> Iterator[Lane]:
    """Where nobody tells what ran: each launch after the one before it, for as long as its kind usually takes."""
    rows: dict[int, list[Slice]] = {}
    ends: dict[int, int] = {}
    for number, launch in enumerate(_launches_of(program)):
        known = program.kernels[launch.kernel].mean_ns if launch.kernel < len(program.kernels) else 0
        length_ns = launch.length_ns or known
        if not length_ns:
            continue
        start_ns = max(launch.at_ns, ends.get(launch.stream, 0))
        ends[launch.stream] = start_ns + length_ns
        flow = 0
        if start_ns < window[1] and _is_within(launch, window):
            flow = starts[program.pid, number] = next(flows)
        one = Slice(_name_of(program, launch), start_ns, start_ns + length_ns, "expected", (), flow)
        rows.setdefault(launch.stream, []).extend(_clipped([one], window))
    for stream, slices in sorted(rows.items()):
        yield Lane(f"{program.name} ({program.pid}), stream {stream} (expected)", slices, flows_end=True)


# -- programs -----------------------------------------------------------------------------------------------------


def _program_group(program: Program, window: Span, starts: Mapping[tuple[int, int], int]) -> Group:
    rows: dict[int, list[Slice]] = {}
    launches = _launches_of(program)
    following: dict[int, int] = {}
    for number in reversed(range(len(launches))):
        launch = launches[number]
        end_ns = min(launch.at_ns + LAUNCH_NS, following.get(launch.stream, window[1]), window[1])
        following[launch.stream] = launch.at_ns
        flow = starts.get((program.pid, number), 0)
        passed = PASS_REASONS.get(launch.reason, "unknown")
        facts: Facts = (("expected_ns", launch.length_ns), ("passed", passed))
        one = Slice(_name_of(program, launch), launch.at_ns, max(end_ns, launch.at_ns), "launch", facts, flow)
        if _is_within(launch, window):
            rows.setdefault(launch.stream, []).append(one)
    lanes = [Lane(f"launches, stream {stream}", slices[::-1]) for stream, slices in sorted(rows.items())]
    for kind, name in ((Ask.WAIT, "gate waits"), (Ask.SYNC, "waits for the device")):
        found = [_wait_slice(program, one) for one in program.asked if one.kind is kind]
        for number, slices in enumerate(stacked(sorted(_clipped(found, window), key=_by_start))):
            lanes.append(Lane(name if number == 0 else f"{name}, {number + 1}", slices))
    return Group(f"{program.name} ({program.pid})", lanes, [], program.pid)


def _wait_slice(program: Program, one: Asked) -> Slice:
    if one.kind is Ask.SYNC:
        return Slice("synchronize", one.at_ns, one.end_ns, "sync")
    reason = GATE_REASONS.get(one.reason, "unknown")
    return Slice(f"gate: {reason}", one.at_ns, one.end_ns, "gate", (("kernel", _name_of(program, one)),))


def stacked(slices: Iterable[Slice]) -> list[list[Slice]]:
    """What happens at the same time is side by side: as many lanes as it takes."""
    rows: list[list[Slice]] = []
    for one in slices:
        row = next((row for row in rows if row[-1].end_ns <= one.start_ns), None)
        if row is None:
            rows.append([one])
        else:
            row.append(one)
    return rows


# -- numbers over time --------------------------------------------------------------------------------------------


def _idle(busy: list[Span]) -> list[Slice]:
    return [
        Slice("idle", end_ns, start_ns, "idle")
        for (_, end_ns), (start_ns, _) in itertools.pairwise(busy)
        if start_ns - end_ns >= IDLE_NS
    ]


def _busy_track(busy: list[Span], window: Span) -> Track:
    """Percent of each stretch of time."""
    step_ns = max(_FINEST_POINT_NS, -(-(window[1] - window[0]) // _TRACK_POINTS))
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
    return Track("device busy %", points)


def _waiting_track(programs: Iterable[Program], window: Span) -> Track:
    """How many programs wait at the gate."""
    changes: dict[int, int] = {}
    for program in programs:
        waits = [(one.at_ns, one.end_ns) for one in program.asked if one.kind is Ask.WAIT]
        for start_ns, end_ns in merge_spans(waits):
            start_ns, end_ns = max(start_ns, window[0]), min(end_ns, window[1])  # noqa: PLW2901  clipped
            if start_ns < end_ns:
                changes[start_ns] = changes.get(start_ns, 0) + 1
                changes[end_ns] = changes.get(end_ns, 0) - 1
    points, waiting = [], 0
    for at_ns, change in sorted(changes.items()):
        waiting += change
        points.append((at_ns, waiting))
    return Track("programs that wait at the gate", points)


def _by_start(one: Slice) -> Span:
    return one.start_ns, one.end_ns


def _is_within(launch: Asked, window: Span) -> bool:
    return window[0] <= launch.at_ns <= window[1]


def _clipped(slices: Iterable[Slice], window: Span) -> Iterator[Slice]:
    for one in slices:
        start_ns, end_ns = max(one.start_ns, window[0]), min(one.end_ns, window[1])
        if start_ns == one.start_ns and end_ns == one.end_ns:
            yield one
        elif start_ns < end_ns:
            yield Slice(one.name, start_ns, end_ns, one.category, one.facts, one.flow)
