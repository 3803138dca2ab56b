"""Tests of `cotenant trace` with programs on a software GPU."""

import gzip
import sys
from io import StringIO
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from rich.console import Console

from cotenant.cli.render.trace import show_tracks
from cotenant.trace.recording import Program, ProgramEvent, ProgramEventKind, Recording, TracedKernel
from cotenant.workload.kernel import WorkKind
from tests.support.node_processes import NodeHarness, until
from tests.support.software_gpus import PROGRAMS
from tests.support.trace_event_rules import Event, Trace, busy_ns, check, tracks_of

pytestmark = pytest.mark.live

STEPS = ("--", sys.executable, str(PROGRAMS / "steps.py"))


def start_program(node_harness: NodeHarness, name: str, *words: str) -> Popen[str]:
    return node_harness.start("run", "--gpu", "soft:0", "--name", name, *words, stdin=PIPE)


def wait_until_done(program: Popen[str]) -> None:
    """Wait until the program has done its work; it keeps running."""
    assert program.stdout is not None
    assert program.stdout.readline() == "done\n", program.stderr.read() if program.stderr else ""


def trace_last(node_harness: NodeHarness, name: str, *words: str) -> tuple[Any, Trace]:
    result = node_harness.json("trace", "--last", "-o", name, *words)
    data = Path(node_harness.home, name).read_bytes()
    return result, check(gzip.decompress(data) if name.endswith(".gz") else data)


def track(trace: Trace, *words: str) -> list[Event]:
    [matching] = [slices for name, slices in tracks_of(trace).items() if all(word in name for word in words)]
    return matching


def test_trace_of_one_program_matches_its_launches_and_device_time(node_harness: NodeHarness) -> None:
    node_harness.json("softgpu", "create", "--gpu", "v100")
    program = start_program(node_harness, "alone", *STEPS, "30", "200000")
    wait_until_done(program)
    result, trace = trace_last(node_harness, "t.json")
    assert (result["programs"], result["devices"], result["ops"], result["lost"]) == (1, 1, 120, 0)
    names = [event.name for event in track(trace, "(exact)", "alone", "stream 1")]
    assert names == ["copy HtoD", "spin"] * 30
    assert [event.name for event in track(trace, "(exact)", "stream 2")] == ["memset", "spin"] * 30
    assert [event.name for event in track(trace, "launches, stream 2")] == ["memset", "spin"] * 30
    assert {event.name for event in track(trace, "device waits")} == {"synchronize"}
    flows = [event.ph for event in trace.traceEvents if event.cat == "flow"]
    assert (flows.count("s"), flows.count("f")) == (120, 120)
    counters = node_harness.json("softgpu", "inspect")["counters"]
    exact = [name for name in tracks_of(trace) if "(exact)" in name and "stream" in name]
    assert busy_ns(trace, exact) == counters["busy_ns"]
    shown = node_harness.run("trace", "--last", "--show")
    assert "device 0: Tesla V100" in shown.stdout
    assert "█" in shown.stdout
    program.communicate(timeout=60)
    node_harness.run("softgpu", "destroy")


def test_trace_shows_time_slices_and_the_reason_of_gate_waits(node_harness: NodeHarness) -> None:
    """With time slices, each track has its program's device time; a wait at the gate names the reason."""
    node_harness.json("softgpu", "create", "--gpu", "v100", "--slice", "100us")
    node_harness.node("--gpu", "soft=16GiB", "--gate", "open")
    programs = [start_program(node_harness, name, *STEPS, "20", "300000") for name in ("a", "b")]
    for program in programs:
        wait_until_done(program)
    _, trace = trace_last(node_harness, "t.json.gz")
    counters = node_harness.json("softgpu", "inspect")
    by_pid = {client["pid"]: client["counters"]["busy_ns"] for client in counters["clients"]}
    assert len(by_pid) == 2
    exact = [name for name in tracks_of(trace) if "(exact)" in name and "stream" in name]
    assert busy_ns(trace, exact) == counters["counters"]["busy_ns"]
    for pid, expected_ns in by_pid.items():
        assert busy_ns(trace, [name for name in exact if f"({pid})" in name]) == expected_ns
    for program in programs:
        program.communicate(timeout=60)
    paused = start_program(node_harness, "held", *STEPS, "1000000", "2000000")
    until(lambda: "held" in node_harness.names() and trace_last(node_harness, "t.json")[0]["programs"] == 1)
    assert node_harness.run("pause", "held").returncode == 0
    until(
        lambda: any(
            "held" in name and "gate waits" in name for name in tracks_of(trace_last(node_harness, "t.json")[1])
        )
    )
    assert {event.name for event in track(trace_last(node_harness, "t.json")[1], "held", "gate waits")} == {
        "gate: paused"
    }
    paused.kill()
    node_harness.run("softgpu", "destroy")


def test_timeline_ends_with_the_last_activity_before_the_end_of_the_recording() -> None:
    """Activity that begins while the recording is read lies after its end, and must not empty the timeline."""
    ms = 1_000_000
    launches = [ProgramEvent(ProgramEventKind.LAUNCH, at_ns, 0, 0, 1) for at_ns in (5 * ms, 101 * ms)]
    program = Program(1, "web", (TracedKernel("k", WorkKind.KERNEL, 0),), launches)
    console = Console(width=120, record=True, file=StringIO())
    show_tracks(console, Recording(0, 100 * ms, 10**18, (program,)))
    assert "launches, stream 1" in console.export_text()
