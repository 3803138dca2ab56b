"""The timeline of real programs on a software GPU: what is in it, and that it agrees with the device's books."""

import gzip
import sys
from io import StringIO
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from rich.console import Console

from cotenant.apps.show_trace import show_picture
from cotenant.domain.kernel import Work
from cotenant.domain.trace import Ask, Asked, Program, Recording, TracedKernel
from tests.e2e.stage import Stage, until
from tests.live.softgpus import PROGRAMS
from tests.traceevents import Event, Trace, busy_ns, check, lanes_of

STEPS = ("--", sys.executable, str(PROGRAMS / "steps.py"))


def at_work(stage: Stage, name: str, *words: str) -> Popen[str]:
    return stage.start("run", "--gpu", "soft:0", "--name", name, *words, stdin=PIPE)


def done(program: Popen[str]) -> None:
    """It has done its work, and still lives."""
    assert program.stdout is not None
    assert program.stdout.readline() == "done\n", program.stderr.read() if program.stderr else ""


def last(stage: Stage, name: str, *words: str) -> tuple[Any, Trace]:
    told = stage.json("trace", "--last", "-o", name, *words)
    data = Path(stage.home, name).read_bytes()
    return told, check(gzip.decompress(data) if name.endswith(".gz") else data)


def lane(trace: Trace, *words: str) -> list[Event]:
    [found] = [slices for name, slices in lanes_of(trace).items() if all(word in name for word in words)]
    return found


def test_one_program_alone(stage: Stage) -> None:
    stage.json("softgpu", "create", "--gpu", "v100")
    program = at_work(stage, "alone", *STEPS, "30", "200000")
    done(program)
    told, trace = last(stage, "t.json")
    assert (told["programs"], told["devices"], told["ran"], told["lost"]) == (1, 1, 120, 0)
    names = [one.name for one in lane(trace, "(exact)", "alone", "stream 1")]
    assert names == ["copy HtoD", "spin"] * 30
    assert [one.name for one in lane(trace, "(exact)", "stream 2")] == ["memset", "spin"] * 30
    assert [one.name for one in lane(trace, "launches, stream 2")] == ["memset", "spin"] * 30
    assert {one.name for one in lane(trace, "waits for the device")} == {"synchronize"}
    flows = [event.ph for event in trace.traceEvents if event.cat == "flow"]
    assert (flows.count("s"), flows.count("f")) == (120, 120)
    books = stage.json("softgpu", "inspect")["counters"]
    exact = [name for name in lanes_of(trace) if "(exact)" in name and "stream" in name]
    assert busy_ns(trace, exact) == books["busy_ns"]
    shown = stage.run("trace", "--last", "--show")
    assert "device 0: Tesla V100" in shown.stdout
    assert "█" in shown.stdout
    program.communicate(timeout=60)
    stage.run("softgpu", "destroy")


def test_programs_that_share_and_one_that_is_paused(stage: Stage) -> None:
    """Sliced between processes, every lane holds what its program really had; a wait at the gate says why."""
    stage.json("softgpu", "create", "--gpu", "v100", "--slice", "100us")
    stage.node("--gpu", "soft=16GiB", "--gate", "open")
    programs = [at_work(stage, name, *STEPS, "20", "300000") for name in ("a", "b")]
    for program in programs:
        done(program)
    _, trace = last(stage, "t.json.gz")
    books = stage.json("softgpu", "inspect")
    by_pid = {client["pid"]: client["counters"]["busy_ns"] for client in books["clients"]}
    assert len(by_pid) == 2
    exact = [name for name in lanes_of(trace) if "(exact)" in name and "stream" in name]
    assert busy_ns(trace, exact) == books["counters"]["busy_ns"]
    for pid, expected_ns in by_pid.items():
        assert busy_ns(trace, [name for name in exact if f"({pid})" in name]) == expected_ns
    for program in programs:
        program.communicate(timeout=60)
    held = at_work(stage, "held", *STEPS, "1000000", "2000000")
    until(lambda: "held" in stage.names() and last(stage, "t.json")[0]["programs"] == 1)
    assert stage.run("pause", "held").returncode == 0
    until(lambda: any("held" in name and "gate waits" in name for name in lanes_of(last(stage, "t.json")[1])))
    assert {one.name for one in lane(last(stage, "t.json")[1], "held", "gate waits")} == {"gate: paused"}
    held.kill()
    stage.run("softgpu", "destroy")


def test_a_picture_ends_with_what_was_done_by_its_end() -> None:
    """What begins while it is looked at lies after the end, and must not empty the picture."""
    ms = 1_000_000
    launches = [Asked(Ask.LAUNCH, at_ns, 0, 0, 1) for at_ns in (5 * ms, 101 * ms)]
    program = Program(1, "web", (TracedKernel("k", Work.KERNEL, 0),), launches)
    console = Console(width=120, record=True, file=StringIO())
    show_picture(console, Recording(0, 100 * ms, 10**18, (program,)))
    assert "launches, stream 1" in console.export_text()
