"""An MPS control daemon among those who do not keep to the rules: deaf, silent, dead, or in its place."""

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
def stage(tmp_path: Path) -> Iterator[MpsHarness]:
    stage = MpsHarness(tmp_path)
    yield stage
    stage.close()


def talk_for_ever(line: socket.socket) -> None:
    while True:
        line.send(b"ui\nhelp")


def test_one_who_does_not_read_its_answers_is_hung_up_on(stage: MpsHarness) -> None:
    assert stage.control("-d").returncode == 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf:
        deaf.settimeout(60)
        deaf.connect(str(stage.pipe / "control"))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            talk_for_ever(deaf)
    assert stage.command("get_default_client_priority") == "0"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "control"))
        log = Log(tmp_path / "control.log", "Control")
        yield Daemon(listener, Path("/bin/false"), log)
        log._file.close()


@pytest.mark.parametrize("question", ["members", "admit 1 0"])
def test_a_server_that_stopped_answering_is_ended(daemon: Daemon, question: str) -> None:
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
    assert "no MPS server has it" in (commands.obey(daemon, f"get_server_status {stopped.pid}", None) or "")  # type: ignore[arg-type]


def test_a_server_outlives_a_daemon_that_died_with_an_answer_unread() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(b"an answer")
        theirs.close()
        assert server.next_message(ours) == ""


@pytest.mark.parametrize("name", [PID_FILE, "control"])
def test_a_place_that_is_taken_is_named_in_one_sentence(stage: MpsHarness, name: str) -> None:
    (stage.pipe / name).mkdir(parents=True)
    done = stage.control("-d")
    assert done.returncode == 1
    assert done.stdout.count("\n") == 1
    assert name in done.stdout
    assert "CUDA_MPS_PIPE_DIRECTORY" in done.stdout


def test_the_lock_on_a_pid_file_that_was_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    lock, path, tries = fcntl.flock, tmp_path / PID_FILE, []

    def while_another_ends(file: int, how: int) -> None:
        tries.append(file)
        if len(tries) == 1:
            path.unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", while_another_ends)
    file = control.locked_pid_file()
    assert file is not None
    assert os.path.samestat(os.fstat(file), path.stat())
    assert control.locked_pid_file() is None
    os.close(file)
