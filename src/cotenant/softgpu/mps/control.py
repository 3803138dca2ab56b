"""The program nvidia-cuda-mps-control: the control daemon with -d or -f, and its front end otherwise."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cotenant.softgpu.mps.directories import (
    LOG_VARIABLE,
    PIPE_VARIABLE,
    WORDS_BYTES,
    Log,
    connect_to_daemon,
    control_socket,
    log_directory,
    pipe_directory,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_DAEMON = "Cannot find MPS control daemon process"
ALREADY = "An instance of this daemon is already running"
VERSION = 13000
_USAGE = """usage: nvidia-cuda-mps-control [-d | -f | -h | -v | COMMAND]

  -d       start the control daemon in the background
  -f       start the control daemon in the foreground
  -h       print this
  -v       print the version
  COMMAND  send one command to the daemon; without one, commands are read from standard input, one a line

This is the control daemon of cotenant's software GPUs.
"""
_BACKLOG = 128
_PATH_BYTES = 107


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def locked_pid_file() -> int | None:
    """Return the daemon's pid file, locked for the daemon's lifetime; None if another daemon holds it."""
    path = pipe_directory() / "nvidia-cuda-mps-control.pid"
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        os.close(file)  # an ending daemon has just removed the file, so its lock excludes no one


def _prepare(echo: TextIO | None) -> tuple[socket.socket, int, Log] | str:
    """Return the listener, pid file and log of a daemon, or why they cannot be created."""
    try:
        for directory in (pipe_directory(), log_directory()):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(os.fsencode(control_socket())) > _PATH_BYTES:
            return f"{control_socket()} is too long for a socket: set {PIPE_VARIABLE} to a shorter path"
        log = Log(log_directory() / "control.log", "Control", echo)
        file = locked_pid_file()
        return ALREADY if file is None else (_listener(), file, log)
    except OSError as error:
        return f"The daemon cannot keep its files: {error}; set {PIPE_VARIABLE} and {LOG_VARIABLE}"


def _listener() -> socket.socket:
    """Return the listening socket, replacing that of an ended daemon, whose lock this process holds."""
    control_socket().unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o077)
    try:
        listener.bind(str(control_socket()))
    finally:
        os.umask(mask)
    listener.listen(_BACKLOG)
    return listener


def _serve(listener: socket.socket, file: int, log: Log) -> int:
    from cotenant.softgpu.mps import commands  # noqa: PLC0415
    from cotenant.softgpu.mps.daemon import Daemon  # noqa: PLC0415

    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    log.write(f"Starting control daemon using socket {control_socket()}")
    log.write(f"To connect CUDA applications to this daemon, set env {PIPE_VARIABLE}={pipe_directory()}")
    log.write(f"CUDA MPS Control binary version: {VERSION}")
    daemon = Daemon(listener, Path(sys.argv[0]).absolute().parent / "nvidia-cuda-mps-server", log)
    daemon.execute_command = commands.execute_command
    try:
        daemon.run()
    finally:
        control_socket().unlink(missing_ok=True)
        (pipe_directory() / "nvidia-cuda-mps-control.pid").unlink(missing_ok=True)
    return 0


def _daemon(*, background: bool) -> int:
    prepared = _prepare(None if background else sys.stdout)
    if isinstance(prepared, str):
        _write(f"{prepared}\n")
        return 1
    # The socket listens already, so clients that connect after this process has ended reach the daemon.
    if background and os.fork():
        os._exit(0)
    if background:
        os.setsid()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
    return _serve(*prepared)


def _front_end(commands: Iterable[bytes], *, prompt: str) -> int:
    line = connect_to_daemon()
    if line is None:
        _write(f"{NO_DAEMON}\n")
        return 1
    with line:
        _write(prompt)
        for command in commands:
            try:
                line.send(b"ui\n" + command.strip()[: WORDS_BYTES - 3])
                answer = line.recv(WORDS_BYTES)
            except OSError:
                return 1
            if not answer:  # the daemon has ended, as requested or not
                return 0 if command.split()[:1] == [b"quit"] else 1
            _write(answer[1:].decode("utf-8", "replace") + prompt)
    return 0


def main(arguments: list[str]) -> int:
    with open("/proc/self/comm", "w") as comm:  # noqa: PTH123  what ps and top show
        comm.write("nvidia-cuda-mps-control"[:15])
    match arguments:
        case ["-d" | "-f" as how]:
            return _daemon(background=how == "-d")
        case ["-h" | "--help"]:
            _write(_USAGE)
            return 0
        case ["-v"]:
            _write(f"CUDA MPS Control binary version: {VERSION}\n")
            return 0
        case []:
            return _front_end(sys.stdin.buffer, prompt="> " if sys.stdin.isatty() else "")
        case [first, *_] if not first.startswith("-"):
            return _front_end([os.fsencode(" ".join(arguments))], prompt="")
    _write(_USAGE)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
