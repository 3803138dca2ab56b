"""Is `cotenant run` a good parent: exit codes, signals and deaths go where they belong?"""

import contextlib
import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest

from cotenant.domain.tenant import Kind, Terms
from cotenant.format import wire
from cotenant.live.directory import listen
from cotenant.live.page import LivePages
from tests.e2e.stage import BOUND_S, COTENANT, Stage, alive, until

# Counts every signal it gets, and says so; ends at a line on its standard input, or at SIGTERM when asked.
COUNTS = """
import os, signal, sys, time
from pathlib import Path
said = Path(sys.argv[1])
numbers = []
def count(number, frame):
    numbers.append(signal.Signals(number).name)
    said.with_suffix(".new").write_text(" ".join(numbers))
    said.with_suffix(".new").rename(said)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, count)
said.write_text("")
while not Path(sys.argv[1] + ".end").exists():
    time.sleep(0.02)
sys.exit(9)
"""
PATIENT = ("--grace", "1h")  # one that survives a request to end is not killed, however slow the machine


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def only_child(pid: int) -> int:
    found: list[int] = until(lambda: children(pid))
    assert len(found) == 1
    return found[0]


def program(pid: int) -> int:
    """Below `cotenant run` is the guard, and below that the program."""
    guard = only_child(pid)
    return only_child(guard)


def test_a_node_is_started_when_none_runs_and_that_is_said(stage: Stage) -> None:
    first = stage.run("run", "--", "echo", "hello")
    assert (first.returncode, first.stdout) == (0, "hello\n")
    pid = stage.node_pid()
    said = f"cotenant: no node was running: started one (pid {pid}, log {stage.places.log};"
    assert first.stderr.count(said) == 1  # on a busy machine it may say that it waits, too
    second = stage.run("run", "--", "true")
    assert (second.returncode, "started one" in second.stderr) == (0, False)
    assert stage.node_pid() == pid


def test_a_node_that_cannot_start_is_explained(stage: Stage) -> None:
    (stage.home / "config.toml").write_text("[node]\ngroup = 'no-such-group'\n")
    done = stage.run("run", "--", "true")
    assert done.returncode == 75
    *_, line = done.stderr.splitlines()  # before it, on a slow machine, that it waits
    assert "a node could not be started" in line
    assert "no-such-group" in line


@pytest.mark.parametrize(
    "command, code",
    [
        (["true"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "exit 255"], 255),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
        (["/"], 126),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["sh", "-c", "kill -USR1 $$"], 138),
    ],
)
def test_the_exit_code_is_the_program_s_own(stage: Stage, command: list[str], code: int) -> None:
    stage.node()
    done = stage.run("run", "--name", "a", "--", *command)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == (1 if code in {126, 127} else 0)
    assert stage.names() == []
    assert "a" in stage.endings()


def test_input_output_arguments_and_environment_pass_through(stage: Stage) -> None:
    stage.node()
    tenant = stage.start("run", "--name", "a", "--", "sh", "-c", 'cat; echo "$@ $MARK" >&2', "x", "--slo", "a b", "--",
        stdin=subprocess.PIPE, env={**stage.environ, "MARK": "kept"})  # fmt: skip
    out, err = tenant.communicate("typed\n", timeout=BOUND_S)
    assert (out, err) == ("typed\n", "--slo a b -- kept\n")


def test_a_program_that_is_not_text_runs_too(stage: Stage) -> None:
    stage.node()
    done = subprocess.run(
        [*COTENANT, "run", "--name", "a", "--", "printf", b"%s", b"\xff\xfe"],
        env=stage.environ, capture_output=True, check=False, timeout=BOUND_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\xff\xfe", b"")
    [gone] = stage.json("ps", "--all")["departed"]
    assert gone["command"].startswith("printf %s ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_the_parent_reaches_the_program_exactly_once(stage: Stage, number: signal.Signals) -> None:
    stage.node()
    said = stage.home / "said"
    tenant = stage.start("run", "--name", "a", *PATIENT, "--", sys.executable, "-c", COUNTS, str(said))
    until(said.exists)
    tenant.send_signal(number)
    until(lambda: said.read_text() != "")
    tenant.send_signal(signal.SIGUSR2)  # whatever comes twice has come before this one
    until(lambda: "SIGUSR2" in said.read_text())
    assert said.read_text().split() == [number.name, "SIGUSR2"]
    assert tenant.poll() is None, "what the program survives the parent survives"
    Path(f"{said}.end").touch()
    assert tenant.wait(BOUND_S) == 9


def test_ctrl_c_in_a_terminal_reaches_the_program_exactly_once(stage: Stage) -> None:
    stage.node()
    said = stage.home / "said"
    master, slave = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    tenant = stage.start(
        "run", "--name", "a", *PATIENT, "--", sys.executable, "-c", COUNTS, str(said),
        stdin=slave, stdout=slave, stderr=slave, preexec_fn=take_terminal,
    )  # fmt: skip
    os.close(slave)
    until(said.exists)
    os.write(master, b"\x03")
    until(lambda: said.read_text() != "")
    tenant.send_signal(signal.SIGUSR2)
    until(lambda: "SIGUSR2" in said.read_text())
    os.write(master, b"\x1c")
    until(lambda: "SIGQUIT" in said.read_text())
    tenant.send_signal(signal.SIGUSR1)
    until(lambda: "SIGUSR1" in said.read_text())
    assert said.read_text().split() == ["SIGINT", "SIGUSR2", "SIGQUIT", "SIGUSR1"]
    Path(f"{said}.end").touch()
    assert tenant.wait(BOUND_S) == 9
    os.close(master)


def test_the_death_of_the_parent_frees_the_slot_and_takes_the_program_along(stage: Stage) -> None:
    stage.node()
    tenant = stage.tenant("a")
    child = program(tenant.pid)
    tenant.kill()
    until(lambda: not stage.names())
    until(lambda: not alive(child))
    assert stage.endings() == {"a": "lost: its connection closed"}


def test_the_death_of_the_program_is_forwarded_and_frees_the_slot(stage: Stage) -> None:
    stage.node()
    tenant = stage.tenant("a")
    os.kill(program(tenant.pid), signal.SIGKILL)
    assert tenant.wait(BOUND_S) == 137
    until(lambda: not stage.names())
    assert stage.endings() == {"a": "killed by SIGKILL"}


REFUSALS: dict[str, tuple[list[str], str]] = {
    "a name that is taken": (["--name", "a"], "the name 'a' is taken by the tenant in slot 0"),
    "more memory than is left": (["--memory", "13GiB"], "12GiB"),
    "more share than is left": (["--share", "60%"], "50%"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_says_why(stage: Stage, what: str) -> None:
    options, reason = REFUSALS[what]
    stage.node("--gpu", "v100=16GiB")
    stage.tenant("a", "--memory", "4GiB", "--share", "50%", "--", "sleep", "600")
    done = stage.run("run", *options, "--", "true")
    assert done.returncode == 75
    [line] = done.stderr.splitlines()
    assert line.startswith("cotenant: the node refused")
    assert reason in line


def test_inside_a_tenant_the_terms_can_be_asked(stage: Stage) -> None:
    stage.node("--gpu", "v100=16GiB")
    options = ["--online", "--slo", "50ms", "--memory", "4GiB", "--share", "30%", "--name", "web"]
    asked = stage.json("run", *options, "--", *COTENANT, "terms")
    assert asked == {
        "slot": 0, "generation": 1, "kind": "online", "priority": 2, "share_ppm": 300_000,
        "memory_bytes": 4 << 30, "slo_ns": 50_000_000, "gpu": 0,
    }  # fmt: skip
    table = stage.run("run", *options, "--", *COTENANT, "terms")
    assert "0/2" in table.stdout
    assert "50ms" in table.stdout


def test_a_node_that_talks_nonsense_at_the_end_does_not_cost_the_exit_code(stage: Stage) -> None:
    stage.places.runtime.mkdir()
    terms = Terms(0, 1, Kind.OFFLINE, 7, 0, 0, 0, -1)
    pages = LivePages(stage.places.pages)
    page = pages.publish(terms, 0)
    listener = listen(stage.places.socket, -1)

    def serve() -> None:
        with listener.accept()[0]:  # ensure_node looks whether somebody is there
            pass
        with listener.accept()[0] as peer:
            peer.recv(1 << 16)
            socket.send_fds(peer, [wire.encode(wire.Welcome(wire.VERSION, "a", terms, {}))], [page])
            peer.recv(1 << 16)
            with contextlib.suppress(OSError):  # it waits no longer than a second for this
                peer.sendall(wire.encode(wire.Wrong("goodbye to you too")))
        listener.close()

    thread = threading.Thread(target=serve)
    thread.start()
    done: Any = stage.run("run", "--", "sh", "-c", "exit 5")
    thread.join(BOUND_S)
    pages.close()
    assert done.returncode == 5, done.stderr
