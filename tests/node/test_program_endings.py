"""A program ends in steps, together with all its processes, and restarts where that was requested."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.node import wire
from cotenant.node.model.admission import Reason, Reject
from tests.support.node_processes import BOUND_S, NodeHarness, alive, until
from tests.support.tenant_programs import ScriptedTenants

pytestmark = pytest.mark.live

# Says which signals it got, in order; SIGTERM and SIGINT end it unless it is stubborn. Starts a child of its own.
PROGRAM = """
import os, signal, subprocess, sys, time
from pathlib import Path
said = Path(sys.argv[1])
stubborn = len(sys.argv) > 2
child = subprocess.Popen(["sleep", "600"])
numbers = []
def note(number, frame):
    numbers.append(signal.Signals(number).name)
    said.with_suffix(".new").write_text(" ".join([str(os.getpid()), str(child.pid), *numbers]))
    said.with_suffix(".new").rename(said)
    if number != signal.SIGUSR1 and not stubborn:
        sys.exit(4)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, note)
said.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
said.with_suffix(".new").rename(said)
while True:
    time.sleep(0.05)
"""
# Adds a line to a file and ends with a code; so often, then with 0.
FAILS = """
import sys
from pathlib import Path
runs = Path(sys.argv[1])
count = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (count + 1))
sys.exit(int(sys.argv[2]) if count < int(sys.argv[3]) else 0)
"""


class RunningProgram:
    """A program under `cotenant run`, and the file to which it writes its process and signal numbers."""

    def __init__(self, node_harness: NodeHarness, *options: str, stubborn: bool = False) -> None:
        self.output_file = node_harness.home / "said"
        self.output_file.unlink(missing_ok=True)
        words = [sys.executable, "-c", PROGRAM, str(self.output_file), *(["stubborn"] if stubborn else [])]
        self.run = node_harness.start("run", "--name", "a", *options, "--", *words)
        until(lambda: self.output_file.exists() or self.run.poll() is not None)
        assert self.run.poll() is None, self.run.communicate()
        self.pids = [int(word) for word in self.output_file.read_text().split()[:2]]

    def signals(self) -> list[str]:
        return self.output_file.read_text().split()[2:]

    def end(self) -> tuple[int, str]:
        """Return its exit code and the messages, once all its processes have ended."""
        err = self.run.communicate(timeout=BOUND_S)[1]
        assert not any(alive(pid) for pid in self.pids), "the program and all it started are gone before we are"
        return self.run.returncode, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_goes_to_the_node_then_to_the_program(node_harness: NodeHarness, number: signal.Signals) -> None:
    with ScriptedTenants(node_harness.directories) as node:
        program = RunningProgram(node_harness, "--grace", "7s")
        node.receive(wire.Join)
        program.run.send_signal(number)
        assert node.receive(wire.Quit).grace_ns == 7 * 10**9
        program.run.send_signal(signal.SIGUSR1)  # other signals go straight through
        until(lambda: program.signals() == ["SIGUSR1"])
        node.push(wire.Signal("term", "told to end", may_restart=False))
        code, output_file = program.end()
        assert (code, program.signals()) == (4, ["SIGUSR1", number.name])
        assert node.receive(wire.Leave).ending == "exit 4"
    assert f"{number.name}: the program has 7s to end" in output_file


def test_program_that_does_not_end_is_killed_with_its_descendants(node_harness: NodeHarness) -> None:
    with ScriptedTenants(node_harness.directories) as node:
        program = RunningProgram(node_harness, stubborn=True)
        node.receive(wire.Join)
        node.push(wire.Signal("term", "an online tenant needs its memory", may_restart=False))
        until(lambda: program.signals() == ["SIGTERM"])
        node.push(wire.Signal("kill", "it did not end in time", may_restart=False))
        code, output_file = program.end()
        assert code == 137
        assert node.receive(wire.Leave).ending == "killed by SIGKILL"
    assert "the node asks the program to end: an online tenant needs its memory" in output_file
    assert "the node ends the program: it did not end in time" in output_file


def test_second_signal_shortens_the_grace(node_harness: NodeHarness) -> None:
    with ScriptedTenants(node_harness.directories) as node:
        program = RunningProgram(node_harness, "--grace", "1h", stubborn=True)
        node.receive(wire.Join)
        program.run.send_signal(signal.SIGINT)
        assert node.receive(wire.Quit).grace_ns == 3600 * 10**9
        program.run.send_signal(signal.SIGTERM)
        assert node.receive(wire.Quit).grace_ns == 1
        until(lambda: program.signals() == ["SIGINT"])
        node.push(wire.Signal("kill", "told to end", may_restart=False))
        assert program.end()[0] == 137


def test_without_a_node_the_parent_takes_the_same_steps(node_harness: NodeHarness) -> None:
    output_file: list[str] = []
    for grace in ("100ms", "3s", "30s"):  # longer where the program got no processor before it was killed
        with ScriptedTenants(node_harness.directories) as node:
            program = RunningProgram(node_harness, "--grace", grace, stubborn=True)
            node.receive(wire.Join)
            node.die()
            program.run.send_signal(signal.SIGTERM)
            assert program.end()[0] == 137
        if output_file := program.signals():
            break
    assert output_file == ["SIGTERM"]


def test_node_that_dies_between_two_steps_does_not_stop_them(node_harness: NodeHarness) -> None:
    with ScriptedTenants(node_harness.directories) as node:
        program = RunningProgram(node_harness, "--grace", "100ms", stubborn=True)
        node.receive(wire.Join)
        node.push(wire.Signal("term", "enough", may_restart=True))
        until(lambda: program.signals() == ["SIGTERM"])
        node.die()
        assert program.end()[0] == 137


def test_node_slow_to_resume_a_tenant_is_asked_once(node_harness: NodeHarness) -> None:
    """A tenant that disconnects counts as gone, so the slot of a running program would be granted to another."""
    with ScriptedTenants(node_harness.directories) as node:
        program = RunningProgram(node_harness)
        node.receive(wire.Join)
    with ScriptedTenants(node_harness.directories) as node:
        node.receive(wire.Resume)
        assert program.run.stderr is not None
        next(line for line in program.run.stderr if "continuing without a slot" in line)
        node.welcome()
        node.push(wire.Signal("kill", "enough", may_restart=False))
        assert program.end()[0] == 137
        assert node.receive(wire.Leave).ending == "killed by SIGKILL"


def test_program_that_ends_on_the_signal_leaves_nothing(node_harness: NodeHarness) -> None:
    """The shell ends at once; the process that it started gets its own signal and its grace."""
    output_file = node_harness.home / "said"
    script = f"{sys.executable} -c '{PROGRAM}' {output_file} & wait"
    with ScriptedTenants(node_harness.directories) as node:
        run = node_harness.start("run", "--name", "a", "--", "sh", "-c", script)
        until(output_file.exists)
        node.receive(wire.Join)
        node.push(wire.Signal("term", "enough", may_restart=False))
        assert run.wait(BOUND_S) == 143
        pids = [int(word) for word in output_file.read_text().split()[:2]]
        assert output_file.read_text().split()[2:] == ["SIGTERM"]
        assert not any(alive(pid) for pid in pids)


def test_killed_parent_takes_all_processes_along(node_harness: NodeHarness) -> None:
    node_harness.node()
    program = RunningProgram(node_harness)
    program.run.kill()
    until(lambda: not any(alive(pid) for pid in program.pids))
    until(lambda: not node_harness.names())


def test_detached_process_lives_on(node_harness: NodeHarness) -> None:
    node_harness.node()
    done = node_harness.run("run", "--name", "a", "--", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!")
    detached = int(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert alive(detached), "it has nothing to do with the GPU"
    os.kill(detached, signal.SIGKILL)


def test_variables_of_the_node_reach_the_program(node_harness: NodeHarness) -> None:
    with ScriptedTenants(node_harness.directories) as node:
        node.environment = {"CUDA_MPS_PIPE_DIRECTORY": "/pipes"}
        done = node_harness.run("run", "--", "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY $COTENANT_SOCKET")
        assert done.stdout == f"/pipes {node_harness.directories.tenant_socket}\n"


# -- started again ---------------------------------------------------------------------------------------------------


def fails(node_harness: NodeHarness, rule: str, code: int, times: int, **given: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", FAILS, str(node_harness.home / "runs"), str(code), str(times)]
    return node_harness.start("run", "--name", "a", "--restart", rule, "--restart-delay", "1ms", "--", *words, **given)


def runs(node_harness: NodeHarness) -> int:
    with contextlib.suppress(FileNotFoundError):
        return len((node_harness.home / "runs").read_text())
    return 0


@pytest.mark.parametrize(
    "rule, code, times, expected, last",
    [("no", 3, 9, 1, 3), ("on-failure", 3, 2, 3, 0), ("on-failure:2", 3, 9, 3, 3), ("always:2", 0, 9, 3, 0)],
)
def test_program_restarts_in_its_slot(
    node_harness: NodeHarness, rule: str, code: int, times: int, expected: int, last: int
) -> None:
    with ScriptedTenants(node_harness.directories) as node:
        run = fails(node_harness, rule, code, times)
        err = run.communicate(timeout=BOUND_S)[1]
        assert run.returncode == last
        assert runs(node_harness) == expected
        node.receive(wire.Join)
        reports = [node.receive(wire.RestartReport) for _ in range(expected - 1)]
        assert [(report.ending, report.restarts) for report in reports] == [
            (f"exit {code}", n + 1) for n in range(expected - 1)
        ]
        assert node.receive(wire.Leave).ending == f"exit {last}"
    waits = [line.rpartition(" ")[2] for line in err.splitlines() if "starting it again in" in line]
    assert waits == ["1ms", "2ms", "4ms"][: expected - 1], "each wait is longer than the one before"


def test_evicted_program_joins_again_when_permitted(node_harness: NodeHarness) -> None:
    with ScriptedTenants(node_harness.directories) as node:
        program = RunningProgram(node_harness, "--restart", "on-failure", "--restart-delay", "1ms")
        node.receive(wire.Join)
        node.refusals = [
            Reject(Reason.UNHEALTHY, "the device is busy", 1),
            Reject(Reason.NO_MEMORY, "nothing is left"),
        ]
        node.push(wire.Signal("term", "an online tenant needs its memory", may_restart=True))
        assert node.receive(wire.Leave).ending == "exit 4"
        for _ in range(3):
            node.receive(wire.Join)
        until(lambda: int(program.output_file.read_text().split()[0]) not in program.pids)
        program.pids += [int(word) for word in program.output_file.read_text().split()[:2]]
        program.run.send_signal(signal.SIGTERM)
        node.receive(wire.Quit)
        node.push(wire.Signal("term", "told to end", may_restart=False))
        code, err = program.end()
        assert code == 4, "a program that was asked to end is not restarted"
        assert node.receive(wire.Leave).ending == "exit 4"
    assert "the device is busy; retrying" in err
    assert "nothing is left; retrying" in err


def test_tenant_waiting_to_join_can_be_stopped(node_harness: NodeHarness) -> None:
    with ScriptedTenants(node_harness.directories) as node:
        program = RunningProgram(node_harness, "--restart", "always")
        node.receive(wire.Join)
        node.refusals = [Reject(Reason.UNHEALTHY, "the device is busy", 3600 * 10**9)]
        node.push(wire.Signal("term", "enough", may_restart=True))
        node.receive(wire.Leave)
        node.receive(wire.Join)
        program.run.send_signal(signal.SIGWINCH)  # a window that changes its size is not meant
        program.run.send_signal(signal.SIGTERM)
        code, err = program.end()
        assert code == 4
    assert "asked to end before the program got a slot" in err


def test_eviction_by_an_operator_is_final(node_harness: NodeHarness) -> None:
    with ScriptedTenants(node_harness.directories) as node:
        program = RunningProgram(node_harness, "--restart", "always")
        node.receive(wire.Join)
        node.push(wire.Signal("term", "evicted by a person", may_restart=False))
        assert program.end()[0] == 4
        node.receive(wire.Leave)
        assert node.received.empty()


def test_refused_join_is_retried_only_on_request(node_harness: NodeHarness) -> None:
    busy = Reject(Reason.UNHEALTHY, "the device is busy", 1)
    with ScriptedTenants(node_harness.directories, [busy]):
        assert node_harness.run("run", "--", "true").returncode == 75
    with ScriptedTenants(node_harness.directories, [busy, Reject(Reason.NO_MEMORY, "too large")]):
        done = node_harness.run("run", "--restart", "on-failure", "--restart-delay", "1ms", "--", "true")
        assert done.returncode == 75, "what waiting does not help is final"
        assert "too large" in done.stderr
    with ScriptedTenants(node_harness.directories, [busy, busy]):
        assert (
            node_harness.run("run", "--restart", "on-failure", "--restart-delay", "1ms", "--", "true").returncode == 0
        )


# -- moved to the host -----------------------------------------------------------------------------------------------


def test_program_without_a_driver_has_no_memory_to_move(node_harness: NodeHarness) -> None:
    with ScriptedTenants(node_harness.directories) as node:
        program = RunningProgram(node_harness)
        node.receive(wire.Join)
        node.push(wire.Suspend("room is needed"))
        assert node.receive(wire.SuspendResult).ok
        node.push(wire.Restore())
        assert node.receive(wire.RestoreResult).ok
        node.push(wire.Signal("kill", "enough", may_restart=False))
        assert program.end()[0] == 137


def test_stdin_and_output_end_with_the_program(node_harness: NodeHarness, tmp_path: Path) -> None:
    """A reader of the program's output sees its end even while the parent still takes leave of the node."""
    node_harness.node()
    done = subprocess.run(
        [sys.executable, "-m", "cotenant", "run", "--", "cat"],
        input="typed\n",
        capture_output=True,
        text=True,
        env=node_harness.environ,
        cwd=tmp_path,
        check=False,
        timeout=BOUND_S,
    )
    assert done.stdout == "typed\n"
