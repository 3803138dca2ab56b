"""An MPS control daemon with misbehaving peers: ones that do not read, do not answer, are dead, or use its files."""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.softgpu.mps import commands, control, server
from cotenant.softgpu.mps.daemon import Daemon, ServerProcess
from cotenant.softgpu.mps.directories import Log
from tests.support.mps_daemons import MpsHarness

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]
PID_FILE = "nvidia-cuda-mps-control.pid"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MpsHarness]:
    harness = MpsHarness(tmp_path)
    yield harness
    harness.close()


def send_until_error(line: socket.socket) -> None:
    while True:
        line.send(b"ui\nhelp")


def test_peer_that_does_not_read_answers_is_disconnected(harness: MpsHarness) -> None:
    assert harness.control("-d").returncode == 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(60)
        line.connect(str(harness.pipe / "control"))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_until_error(line)
    assert harness.command("get_default_client_priority") == "0"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "control"))
        log = Log(tmp_path / "control.log", "Control")
        yield Daemon(listener, Path("/bin/false"), log)
        log._file.close()


@pytest.mark.parametrize("question", ["members", "admit 1 0"])
def test_server_that_does_not_answer_is_killed(daemon: Daemon, question: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(["sleep", "1000"])
    process.send_signal(signal.SIGSTOP)
    stopped = ServerProcess(process, ours, os.getuid(), [], 100.0, {})
    ours.settimeout(0.01)
    daemon.servers[stopped.pid] = stopped
    daemon._selector.register(ours, selectors.EVENT_READ)  # as start_server() does
    with theirs:
        assert daemon.ask(stopped, question) is None
    assert daemon.servers == {}
    assert process.returncode == -signal.SIGKILL
    assert "no MPS server has it" in (commands.execute_command(daemon, f"get_server_status {stopped.pid}", None) or "")  # type: ignore[arg-type]


def test_server_survives_a_daemon_that_died_with_an_unread_answer() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(b"an answer")
        theirs.close()
        assert server.next_message(ours) == ""


@pytest.mark.parametrize("name", [PID_FILE, "control"])
def test_unusable_pipe_directory_is_reported_in_one_line(harness: MpsHarness, name: str) -> None:
    (harness.pipe / name).mkdir(parents=True)
    done = harness.control("-d")
    assert done.returncode == 1
    assert done.stdout.count("\n") == 1
    assert name in done.stdout
    assert "CUDA_MPS_PIPE_DIRECTORY" in done.stdout


def test_lock_on_a_removed_pid_file_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    lock, path, attempts = fcntl.flock, tmp_path / PID_FILE, []

    def unlink_before_lock(file: int, operation: int) -> None:
        attempts.append(file)
        if len(attempts) == 1:
            path.unlink()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", unlink_before_lock)
    file = control.locked_pid_file()
    assert file is not None
    assert os.path.samestat(os.fstat(file), path.stat())
    assert control.locked_pid_file() is None
    os.close(file)
