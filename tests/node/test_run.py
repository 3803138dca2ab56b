"""`cotenant run` forwards exit codes, signals and deaths between the program and its own parent."""

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest

from cotenant.gate.grant import Grant, Kind
from cotenant.node import wire
from cotenant.node.directories import listen
from tests.support.node_processes import BOUND_S, COTENANT, NodeHarness, alive, until

pytestmark = pytest.mark.live

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


def test_node_is_started_when_none_runs_and_reported(node_harness: NodeHarness) -> None:
    first = node_harness.run("run", "--", "echo", "hello")
    assert (first.returncode, first.stdout) == (0, "hello\n")
    pid = node_harness.node_pid()
    started = f"cotenant: no node was running: started one (pid {pid}, log {node_harness.directories.log};"
    assert first.stderr.count(started) == 1  # on a busy machine it may say that it waits, too
    second = node_harness.run("run", "--", "true")
    assert (second.returncode, "started one" in second.stderr) == (0, False)
    assert node_harness.node_pid() == pid


def test_failed_start_of_a_node_is_explained(node_harness: NodeHarness) -> None:
    (node_harness.home / "config.toml").write_text("[operators]\ngroups = ['no-such-group']\n")
    done = node_harness.run("run", "--", "true")
    assert done.returncode == 2, "another try cannot succeed"
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
def test_exit_code_is_that_of_the_program(node_harness: NodeHarness, command: list[str], code: int) -> None:
    node_harness.node()
    done = node_harness.run("run", "--name", "a", "--", *command)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == (1 if code in {126, 127} else 0)
    assert node_harness.names() == []
    assert "a" in node_harness.endings()


def test_input_output_arguments_and_environment_pass_through(node_harness: NodeHarness) -> None:
    node_harness.node()
    tenant = node_harness.start(
        "run",
        "--name",
        "a",
        "--",
        "sh",
        "-c",
        'cat; echo "$@ $MARK" >&2',
        "x",
        "--slo",
        "a b",
        "--",
        stdin=subprocess.PIPE,
        env={**node_harness.environ, "MARK": "kept"},
    )
    out, err = tenant.communicate("typed\n", timeout=BOUND_S)
    assert (out, err) == ("typed\n", "--slo a b -- kept\n")


def test_program_arguments_that_are_not_text_work(node_harness: NodeHarness) -> None:
    node_harness.node()
    done = subprocess.run(
        [*COTENANT, "run", "--name", "a", "--", "printf", b"%s", b"\xff\xfe"],
        env=node_harness.environ,
        capture_output=True,
        check=False,
        timeout=BOUND_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\xff\xfe", b"")
    [gone] = node_harness.json("ps", "--all")["departed"]
    assert gone["command"].startswith("printf %s ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signal_to_the_parent_reaches_the_program_once(node_harness: NodeHarness, number: signal.Signals) -> None:
    node_harness.node()
    signal_file = node_harness.home / "said"
    tenant = node_harness.start("run", "--name", "a", *PATIENT, "--", sys.executable, "-c", COUNTS, str(signal_file))
    until(signal_file.exists)
    tenant.send_signal(number)
    until(lambda: signal_file.read_text() != "")
    tenant.send_signal(signal.SIGUSR2)  # whatever comes twice has come before this one
    until(lambda: "SIGUSR2" in signal_file.read_text())
    assert signal_file.read_text().split() == [number.name, "SIGUSR2"]
    assert tenant.poll() is None, "what the program survives the parent survives"
    Path(f"{signal_file}.end").touch()
    assert tenant.wait(BOUND_S) == 9


def test_ctrl_c_in_a_terminal_reaches_the_program_once(node_harness: NodeHarness) -> None:
    node_harness.node()
    signal_file = node_harness.home / "said"
    master, slave = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    tenant = node_harness.start(
        "run",
        "--name",
        "a",
        *PATIENT,
        "--",
        sys.executable,
        "-c",
        COUNTS,
        str(signal_file),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=take_terminal,
    )
    os.close(slave)
    until(signal_file.exists)
    os.write(master, b"\x03")
    until(lambda: signal_file.read_text() != "")
    tenant.send_signal(signal.SIGUSR2)
    until(lambda: "SIGUSR2" in signal_file.read_text())
    os.write(master, b"\x1c")
    until(lambda: "SIGQUIT" in signal_file.read_text())
    tenant.send_signal(signal.SIGUSR1)
    until(lambda: "SIGUSR1" in signal_file.read_text())
    assert signal_file.read_text().split() == ["SIGINT", "SIGUSR2", "SIGQUIT", "SIGUSR1"]
    Path(f"{signal_file}.end").touch()
    assert tenant.wait(BOUND_S) == 9
    os.close(master)


def test_death_of_the_parent_frees_the_slot_and_ends_the_program(node_harness: NodeHarness) -> None:
    node_harness.node()
    tenant = node_harness.tenant("a")
    child = program(tenant.pid)
    tenant.kill()
    until(lambda: not node_harness.names())
    until(lambda: not alive(child))
    assert node_harness.endings() == {"a": "lost: its connection closed"}


def test_death_of_the_program_is_forwarded_and_frees_the_slot(node_harness: NodeHarness) -> None:
    node_harness.node()
    tenant = node_harness.tenant("a")
    os.kill(program(tenant.pid), signal.SIGKILL)
    assert tenant.wait(BOUND_S) == 137
    until(lambda: not node_harness.names())
    assert node_harness.endings() == {"a": "killed by SIGKILL"}


REFUSALS: dict[str, tuple[list[str], str, int]] = {
    "a name that is taken": (["--name", "a"], "the name 'a' is taken by the tenant in slot 0", 75),
    "more memory than is left": (["--memory", "13GiB"], "12GiB", 75),
    "more memory than any GPU has": (["--memory", "17GiB"], "12GiB", 2),
    "a GPU that is not there": (["--gpu", "7"], "the node has no GPU '7'", 2),
    "more share than is left": (["--share", "60%"], "50%", 75),
}
"""Options, a part of the reason, and the exit code: 75 only if another try may succeed."""


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_has_a_reason(node_harness: NodeHarness, name: str) -> None:
    options, reason, code = REFUSALS[name]
    node_harness.node("--gpu", "v100=16GiB")
    node_harness.tenant("a", "--memory", "4GiB", "--share", "50%", "--", "sleep", "600")
    done = node_harness.run("run", *options, "--", "true")
    assert done.returncode == code
    [line] = done.stderr.splitlines()
    assert line.startswith("cotenant: the node refused")
    assert reason in line


def test_grant_is_readable_inside_a_tenant(node_harness: NodeHarness) -> None:
    node_harness.node("--gpu", "v100=16GiB")
    options = ["--online", "--slo", "50ms", "--memory", "4GiB", "--share", "30%", "--name", "web"]
    asked = node_harness.json("run", *options, "--", *COTENANT, "self")
    assert asked == {
        "slot": 0, "generation": 1, "kind": "online", "priority": 2, "share_ppm": 300_000,
        "memory_bytes": 4 << 30, "slo_ns": 50_000_000, "gpu": 0, "more_gpus": [],
    }  # fmt: skip
    table = node_harness.run("run", *options, "--", *COTENANT, "self")
    assert "0/2" in table.stdout
    assert "50ms" in table.stdout


def test_invalid_last_message_of_a_node_keeps_the_exit_code(node_harness: NodeHarness) -> None:
    node_harness.directories.runtime.mkdir()
    grant = Grant(0, 1, Kind.OFFLINE, 7, 0, 0, 0, -1)
    listener = listen(node_harness.directories.tenant_socket, 0o600)

    def serve() -> None:
        with listener.accept()[0]:  # ensure_node checks whether a node answers
            pass
        with listener.accept()[0] as peer:
            peer.recv(1 << 16)
            peer.sendall(wire.encode(wire.Welcome(wire.VERSION, "a", grant, {})))
            peer.recv(1 << 16)
            with contextlib.suppress(OSError):  # it waits no longer than a second for this
                peer.sendall(wire.encode(wire.ProtocolViolation("goodbye to you too")))
        listener.close()

    thread = threading.Thread(target=serve)
    thread.start()
    done: Any = node_harness.run("run", "--", "sh", "-c", "exit 5")
    thread.join(BOUND_S)
    assert done.returncode == 5, done.stderr
