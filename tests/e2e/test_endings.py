"""How does a program end: step by step, all of it, and once more where that was asked for?"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.domain.plan import Reason, Reject
from cotenant.format import wire
from tests.e2e.puppets import PuppetNode
from tests.e2e.stage import BOUND_S, Stage, alive, until

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


class Played:
    """A program under `cotenant run`, and what it says of itself."""

    def __init__(self, stage: Stage, *options: str, stubborn: bool = False) -> None:
        self.said = stage.home / "said"
        self.said.unlink(missing_ok=True)
        words = [sys.executable, "-c", PROGRAM, str(self.said), *(["stubborn"] if stubborn else [])]
        self.run = stage.start("run", "--name", "a", *options, "--", *words)
        until(lambda: self.said.exists() or self.run.poll() is not None)
        assert self.run.poll() is None, self.run.communicate()
        self.pids = [int(word) for word in self.said.read_text().split()[:2]]

    def signals(self) -> list[str]:
        return self.said.read_text().split()[2:]

    def end(self) -> tuple[int, str]:
        """Its code and what was said of it, once nothing of it is left."""
        err = self.run.communicate(timeout=BOUND_S)[1]
        assert not any(alive(pid) for pid in self.pids), "the program and all it started are gone before we are"
        return self.run.returncode, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_goes_to_the_node_first_and_then_to_the_program(stage: Stage, number: signal.Signals) -> None:
    with PuppetNode(stage.places) as node:
        played = Played(stage, "--grace", "7s")
        node.hear(wire.Join)
        played.run.send_signal(number)
        assert node.hear(wire.Quit).grace_ns == 7 * 10**9
        played.run.send_signal(signal.SIGUSR1)  # other signals go straight through
        until(lambda: played.signals() == ["SIGUSR1"])
        node.push(wire.Signal("term", "told to end", again=False))
        code, said = played.end()
        assert (code, played.signals()) == (4, ["SIGUSR1", number.name])
        assert node.hear(wire.Leave).ending == "exit 4"
    assert f"{number.name}: the program has 7s to end" in said


def test_a_program_that_does_not_end_is_killed_with_all_it_started(stage: Stage) -> None:
    with PuppetNode(stage.places) as node:
        played = Played(stage, stubborn=True)
        node.hear(wire.Join)
        node.push(wire.Signal("term", "an online tenant needs its memory", again=False))
        until(lambda: played.signals() == ["SIGTERM"])
        node.push(wire.Signal("kill", "it did not end in time", again=False))
        code, said = played.end()
        assert code == 137
        assert node.hear(wire.Leave).ending == "killed by SIGKILL"
    assert "the node asks the program to end: an online tenant needs its memory" in said
    assert "the node ends the program: it did not end in time" in said


def test_a_second_signal_means_a_hurry(stage: Stage) -> None:
    with PuppetNode(stage.places) as node:
        played = Played(stage, "--grace", "1h", stubborn=True)
        node.hear(wire.Join)
        played.run.send_signal(signal.SIGINT)
        assert node.hear(wire.Quit).grace_ns == 3600 * 10**9
        played.run.send_signal(signal.SIGTERM)
        assert node.hear(wire.Quit).grace_ns == 1
        until(lambda: played.signals() == ["SIGINT"])
        node.push(wire.Signal("kill", "told to end", again=False))
        assert played.end()[0] == 137


def test_without_a_node_the_parent_takes_the_same_steps(stage: Stage) -> None:
    said: list[str] = []
    for grace in ("100ms", "3s", "30s"):  # longer where the program got no processor before it was killed
        with PuppetNode(stage.places) as node:
            played = Played(stage, "--grace", grace, stubborn=True)
            node.hear(wire.Join)
            node.die()
            played.run.send_signal(signal.SIGTERM)
            assert played.end()[0] == 137
        if said := played.signals():
            break
    assert said == ["SIGTERM"]


def test_a_node_that_dies_between_two_steps_does_not_stop_them(stage: Stage) -> None:
    with PuppetNode(stage.places) as node:
        played = Played(stage, "--grace", "100ms", stubborn=True)
        node.hear(wire.Join)
        node.push(wire.Signal("term", "enough", again=True))
        until(lambda: played.signals() == ["SIGTERM"])
        node.die()
        assert played.end()[0] == 137


def test_a_program_that_ends_at_the_signal_leaves_nothing_behind(stage: Stage) -> None:
    """The shell ends at once, what it started does not: it gets its own signal, and the time to obey it."""
    said = stage.home / "said"
    script = f"{sys.executable} -c '{PROGRAM}' {said} & wait"
    with PuppetNode(stage.places) as node:
        run = stage.start("run", "--name", "a", "--", "sh", "-c", script)
        until(said.exists)
        node.hear(wire.Join)
        node.push(wire.Signal("term", "enough", again=False))
        assert run.wait(BOUND_S) == 143
        pids = [int(word) for word in said.read_text().split()[:2]]
        assert said.read_text().split()[2:] == ["SIGTERM"]
        assert not any(alive(pid) for pid in pids)


def test_a_killed_parent_takes_everything_along(stage: Stage) -> None:
    stage.node()
    played = Played(stage)
    played.run.kill()
    until(lambda: not any(alive(pid) for pid in played.pids))
    until(lambda: not stage.names())


def test_what_a_program_leaves_behind_on_purpose_lives_on(stage: Stage) -> None:
    stage.node()
    done = stage.run("run", "--name", "a", "--", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!")
    left = int(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert alive(left), "it has nothing to do with the GPU"
    os.kill(left, signal.SIGKILL)


def test_the_node_s_variables_reach_the_program(stage: Stage) -> None:
    with PuppetNode(stage.places) as node:
        node.environment = {"CUDA_MPS_PIPE_DIRECTORY": "/pipes"}
        done = stage.run("run", "--", "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY +${COTENANT_LEDGER_FD-unset}")
        assert done.stdout == "/pipes +\n"


# -- started again ---------------------------------------------------------------------------------------------------


def fails(stage: Stage, rule: str, code: int, times: int, **given: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", FAILS, str(stage.home / "runs"), str(code), str(times)]
    return stage.start("run", "--name", "a", "--restart", rule, "--restart-delay", "1ms", "--", *words, **given)


def runs(stage: Stage) -> int:
    with contextlib.suppress(FileNotFoundError):
        return len((stage.home / "runs").read_text())
    return 0


@pytest.mark.parametrize(
    "rule, code, times, expected, last",
    [("no", 3, 9, 1, 3), ("on-failure", 3, 2, 3, 0), ("on-failure:2", 3, 9, 3, 3), ("always:2", 0, 9, 3, 0)],
)
def test_a_program_is_started_again_in_its_slot(
    stage: Stage, rule: str, code: int, times: int, expected: int, last: int
) -> None:
    with PuppetNode(stage.places) as node:
        run = fails(stage, rule, code, times)
        err = run.communicate(timeout=BOUND_S)[1]
        assert run.returncode == last
        assert runs(stage) == expected
        node.hear(wire.Join)
        told = [node.hear(wire.Restarted) for _ in range(expected - 1)]
        assert [(one.ending, one.restarts) for one in told] == [(f"exit {code}", n + 1) for n in range(expected - 1)]
        assert node.hear(wire.Leave).ending == f"exit {last}"
    waits = [line.rpartition(" ")[2] for line in err.splitlines() if "starting it again in" in line]
    assert waits == ["1ms", "2ms", "4ms"][: expected - 1], "each wait is longer than the one before"


def test_a_program_that_was_made_to_go_joins_again_when_the_node_lets_it(stage: Stage) -> None:
    with PuppetNode(stage.places) as node:
        played = Played(stage, "--restart", "on-failure", "--restart-delay", "1ms")
        node.hear(wire.Join)
        node.refusals = [
            Reject(Reason.UNHEALTHY, "the device is busy", 1),
            Reject(Reason.NO_MEMORY, "nothing is left"),
        ]
        node.push(wire.Signal("term", "an online tenant needs its memory", again=True))
        assert node.hear(wire.Leave).ending == "exit 4"
        for _ in range(3):
            node.hear(wire.Join)
        until(lambda: int(played.said.read_text().split()[0]) not in played.pids)
        played.pids += [int(word) for word in played.said.read_text().split()[:2]]
        played.run.send_signal(signal.SIGTERM)
        node.hear(wire.Quit)
        node.push(wire.Signal("term", "told to end", again=False))
        code, err = played.end()
        assert code == 4, "who is told to end is not started again"
        assert node.hear(wire.Leave).ending == "exit 4"
    assert "the device is busy; waiting for it" in err
    assert "nothing is left; waiting for it" in err


def test_who_waits_for_a_place_can_be_told_to_end(stage: Stage) -> None:
    with PuppetNode(stage.places) as node:
        played = Played(stage, "--restart", "always")
        node.hear(wire.Join)
        node.refusals = [Reject(Reason.UNHEALTHY, "the device is busy", 3600 * 10**9)]
        node.push(wire.Signal("term", "enough", again=True))
        node.hear(wire.Leave)
        node.hear(wire.Join)
        played.run.send_signal(signal.SIGWINCH)  # a window that changes its size is not meant
        played.run.send_signal(signal.SIGTERM)
        code, err = played.end()
        assert code == 4
    assert "told to end before there was a place" in err


def test_a_person_s_eviction_is_final(stage: Stage) -> None:
    with PuppetNode(stage.places) as node:
        played = Played(stage, "--restart", "always")
        node.hear(wire.Join)
        node.push(wire.Signal("term", "evicted by a person", again=False))
        assert played.end()[0] == 4
        node.hear(wire.Leave)
        assert node.heard.empty()


def test_a_refusal_is_waited_for_only_when_asked(stage: Stage) -> None:
    busy = Reject(Reason.UNHEALTHY, "the device is busy", 1)
    with PuppetNode(stage.places, [busy]):
        assert stage.run("run", "--", "true").returncode == 75
    with PuppetNode(stage.places, [busy, Reject(Reason.NO_MEMORY, "too large")]):
        done = stage.run("run", "--restart", "on-failure", "--restart-delay", "1ms", "--", "true")
        assert done.returncode == 75, "what waiting does not help is final"
        assert "too large" in done.stderr
    with PuppetNode(stage.places, [busy, busy]):
        assert stage.run("run", "--restart", "on-failure", "--restart-delay", "1ms", "--", "true").returncode == 0


# -- moved to the host -----------------------------------------------------------------------------------------------


def test_a_program_without_a_driver_has_nothing_to_move(stage: Stage) -> None:
    with PuppetNode(stage.places) as node:
        played = Played(stage)
        node.hear(wire.Join)
        node.push(wire.Suspend("room is needed"))
        assert node.hear(wire.Suspended).ok
        node.push(wire.Restore())
        assert node.hear(wire.Restored).ok
        node.push(wire.Signal("kill", "enough", again=False))
        assert played.end()[0] == 137


def test_stdin_and_output_end_with_the_program(stage: Stage, tmp_path: Path) -> None:
    """Whoever reads the program's output sees its end, also while the parent still says goodbye."""
    stage.node()
    done = subprocess.run(
        [sys.executable, "-m", "cotenant", "run", "--", "cat"],
        input="typed\n", capture_output=True, text=True, env=stage.environ, cwd=tmp_path, check=False, timeout=BOUND_S,
    )  # fmt: skip
    assert done.stdout == "typed\n"
