"""Every recording of any programs and devices becomes a valid trace."""

from __future__ import annotations

import itertools
from decimal import Decimal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.trace.recording import (
    ContextSwitch,
    Device,
    DeviceOp,
    DeviceOpKind,
    Program,
    ProgramEvent,
    ProgramEventKind,
    Recording,
    TracedKernel,
)
from cotenant.trace.trace_events import trace_events
from cotenant.trace.tracks import IDLE_NS, build_tracks, merge_spans, running_spans, switched_out
from cotenant.workload.kernel import WorkKind
from tests.support.trace_event_rules import Trace, check, tracks_of

NAMES = st.text(max_size=8) | st.sampled_from(['quote " and \\', "</script>", "\ud800", "λ kernel"])
TIMES = st.integers(0, 200_000)


@st.composite
def event(draw: st.DrawFn) -> ProgramEvent:
    kind = draw(st.sampled_from(ProgramEventKind))
    return ProgramEvent(
        kind,
        draw(TIMES),
        draw(st.integers(0, 50_000)),
        draw(st.sampled_from([0, 1, 7, 2**32 - 1])),
        draw(st.integers(0, 2)),
        draw(st.integers(0, 255)),
    )


@st.composite
def programs(draw: st.DrawFn, pid: int) -> Program:
    kernels = tuple(
        TracedKernel(draw(NAMES), draw(st.sampled_from(WorkKind)), draw(st.integers(0, 9000)))
        for _ in range(draw(st.integers(0, 2)))
    )
    events = sorted(draw(st.lists(event(), max_size=12)), key=lambda entry: entry.at_ns)
    return Program(pid, draw(NAMES), kernels, events)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """Draw a device: the ops of a stream in sequence, and a client's switches alternately off and on."""
    ops: list[DeviceOp] = []
    for pid in (1, 2, 9):
        for stream in (1, 2):
            at_ns = 0
            for kind, wait_ns, length_ns in draw(
                st.lists(st.tuples(st.sampled_from(DeviceOpKind), TIMES, st.integers(0, 9000)), max_size=6)
            ):
                start_ns = at_ns + wait_ns
                at_ns = start_ns + length_ns
                ops.append(DeviceOp(kind, pid, pid, stream, start_ns, start_ns, start_ns, at_ns, 0))
    switches = []
    for client in (1, 2):
        for number, at_ns in enumerate(sorted(draw(st.sets(TIMES, max_size=7)))):
            switches.append(ContextSwitch(client, at_ns, number % 2 == 1))
    return Device(
        0, draw(NAMES), sorted(ops, key=lambda entry: entry.end_ns), sorted(switches, key=lambda entry: entry.at_ns)
    )


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    start_ns = draw(TIMES)
    drawn_programs = tuple(draw(programs(pid)) for pid in (1, 2, 3)[: draw(st.integers(0, 3))])
    return Recording(
        start_ns, start_ns + draw(TIMES), 10**18, drawn_programs, draw(st.sampled_from([(), (draw(devices()),)]))
    )


def trace_of(recording: Recording) -> Trace:
    return check(b"".join(trace_events(build_tracks(recording), recording.start_ns, {"lost": 0})))


@settings(max_examples=60, deadline=None)
@given(recordings())
def test_any_recording_becomes_a_valid_trace(recording: Recording) -> None:
    trace = trace_of(recording)
    last_us = Decimal(recording.end_ns - recording.start_ns) / 1000
    assert all(event.ts + max(event.dur, Decimal(0)) <= last_us for event in trace.traceEvents if event.ph != "M")


@settings(max_examples=50, deadline=None)
@given(devices())
def test_device_tracks_contain_all_busy_and_idle_time(device: Device) -> None:
    """Every nanosecond of every op is in its track, except while its client was switched out."""
    end_ns = max([0, *(op.end_ns for op in device.ops)])
    tracks = tracks_of(trace_of(Recording(0, end_ns, 10**18, (), (device,))))
    offs = switched_out(device.switches)
    expected = sum(end - start for op in device.ops for start, end in running_spans(op, offs.get(op.client, [])))
    shown = {name: sum(int(slice_.dur * 1000) for slice_ in slices) for name, slices in tracks.items()}
    assert sum(length for name, length in shown.items() if not name.endswith("| idle")) == expected
    on_sms = [op for op in device.ops if op.kind.on_sms]
    busy = merge_spans(span for op in on_sms for span in running_spans(op, offs.get(op.client, [])))
    gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(busy)]
    idle = [length for name, length in shown.items() if name.endswith("| idle")]
    assert sum(idle) == sum(gap for gap in gaps if gap >= IDLE_NS)


@given(st.integers(0, 100), st.integers(0, 100), st.lists(st.integers(0, 120), unique=True, max_size=8))
def test_running_spans_exclude_the_time_switched_out(start_ns: int, length_ns: int, changes: list[int]) -> None:
    changes = sorted(changes)[: len(changes) // 2 * 2]
    offs = list(zip(changes[::2], changes[1::2], strict=True))
    op = DeviceOp(DeviceOpKind.KERNEL, 1, 1, 1, 0, 0, start_ns, start_ns + length_ns, 0)
    switched_out_ns = {at for off, on in offs for at in range(off, on)}
    spans = running_spans(op, offs)
    covered = [at for start, end in spans for at in range(start, end)]
    assert covered == [at for at in range(start_ns, start_ns + length_ns) if at not in switched_out_ns]
    assert spans


def test_launch_is_linked_to_its_op() -> None:
    kernels = (TracedKernel("gemm", WorkKind.KERNEL, 0), TracedKernel("step", WorkKind.GRAPH, 0))
    launches = [
        ProgramEvent(ProgramEventKind.LAUNCH, at, 0, kernel, 3) for at, kernel in ((100, 0), (200, 0), (5000, 1))
    ]
    # The second op's launch seems to come a little after it: two clocks.
    submits = (150, 195, 5100, 5200)
    ops = [
        DeviceOp(DeviceOpKind.KERNEL, 1, 1, 8, at, at, 1000 * n, 1000 * n + 900, 0) for n, at in enumerate(submits, 1)
    ]
    recording = Recording(0, 9000, 10**18, (Program(1, "a", kernels, launches),), (Device(0, "gpu", ops, []),))
    trace = trace_of(recording)
    [track] = [slices for name, slices in tracks_of(trace).items() if "(exact)" in name and "stream 3" in name]
    assert [slice_.name for slice_ in track] == ["gemm", "gemm", "step: kernel", "step: kernel"]
    flows = {event.id: event.ts for event in trace.traceEvents if event.ph == "s"}
    assert [flows[event.id] * 1000 for event in trace.traceEvents if event.ph == "f"] == [100, 200, 5000]


def test_without_device_records_the_track_is_an_estimate() -> None:
    launches = [
        ProgramEvent(ProgramEventKind.LAUNCH, 100, 700, 0, 0),
        ProgramEvent(ProgramEventKind.LAUNCH, 200, 0, 0, 0),
        ProgramEvent(ProgramEventKind.LAUNCH, 300, 0, 1, 0),
    ]
    kernels = (TracedKernel("k", WorkKind.KERNEL, 500), TracedKernel("unknown", WorkKind.KERNEL, 0))
    trace = trace_of(Recording(0, 9000, 10**18, (Program(1, "a", kernels, launches),)))
    track = tracks_of(trace)["device (expected) | a (1), stream 0 (expected)"]
    assert [(int(slice_.ts * 1000), int(slice_.dur * 1000)) for slice_ in track] == [(100, 700), (800, 500)]


def test_many_events_are_written_in_chunks() -> None:
    launches = [ProgramEvent(ProgramEventKind.LAUNCH, 10 * number, 5, 0, 0) for number in range(20_000)]
    program = Program(1, "a", (TracedKernel("k", WorkKind.KERNEL, 0),), launches)
    chunks = list(trace_events(build_tracks(Recording(0, 10**6, 10**18, (program,))), 0, {}))
    assert max(map(len, chunks)) < 1 << 17
    trace = msgspec.json.decode(b"".join(chunks))
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 40_000
