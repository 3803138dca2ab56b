"""The guard: a process between `cotenant run` and its program that keeps all descendants together.

All descendants of the program, also detached ones, remain descendants of the guard (a child subreaper, prctl(2)). If
the parent dies, the guard kills them all: a tenant whose slot is freed must not continue unobserved.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from cotenant.hook.records import process_tree
from cotenant.runner.clock import pause
from cotenant.runner.process import NOT_FOUND, name_process, signal_descriptor

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_MESSAGE: Final = struct.Struct("=ii")
_ERRNO: Final = struct.Struct("=i")
_STARTED, _FAILED, _ENDED = range(3)
_END_ALL: Final = b"end"
_KEEP_RUNNING: Final = b"let go"
_ROUNDS: Final = 2000
_ROUND_S: Final = 0.002


class Child:
    """A running program with its guard."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        mask: Iterable[int] = (),
    ) -> None:
        """Start the program with these signals blocked; raises `OSError` as `exec` would."""
        self.code: int | None = None
        """The exit code as a shell reports it: 128 + n for signal n; None while the program runs."""
        self._link, guard_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        self.guard = os.fork()  # safe because this process has one thread
        if not self.guard:
            _run_guard(guard_end, command, environ, set(mask))
        guard_end.close()
        kind, number = self._receive()
        if kind != _STARTED:
            self.release()
            raise OSError(number, os.strerror(number))
        self.pid = number

    def fileno(self) -> int:
        """Return a descriptor that is readable once the program has ended."""
        return self._link.fileno()

    def receive(self) -> None:
        """Read the exit code."""
        kind, number = self._receive()
        if kind == _ENDED:
            self.code = number if number >= 0 else 128 - number
        else:
            self.code = 128 + signal.SIGKILL  # the guard died, and the program with it

    def send_signal(self, number: int) -> None:
        """Send a signal to the program itself while it runs."""
        if self.code is None:
            _send(self.pid, number)

    def others(self) -> list[int]:
        """Return the running descendants of the program."""
        return [pid for pid in process_tree(self.guard)[1:] if pid != self.pid and _runs(pid)]

    def end_all(self) -> None:
        """Kill the program and its descendants."""
        with contextlib.suppress(OSError):
            self._link.send(_END_ALL)

    def release(self, *, keep_running: bool = False) -> None:
        """End the guard; the remaining descendants are killed or keep running."""
        if keep_running:
            with contextlib.suppress(OSError):
                self._link.send(_KEEP_RUNNING)
        self._link.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.guard, 0)

    def _receive(self) -> tuple[int, int]:
        try:
            message = self._link.recv(_MESSAGE.size)
        except ConnectionResetError:
            message = b""
        return _MESSAGE.unpack(message) if message else (_FAILED, errno.ECHILD)


def _run_guard(
    link: socket.socket,
    command: Sequence[str],
    environ: Mapping[str, str],
    mask: set[int],
) -> NoReturn:
    """Run in the forked process: start the program and guard it until released."""
    try:
        signal.pthread_sigmask(
            signal.SIG_SETMASK, signal.valid_signals()
        )  # a terminal's signals must not end the guard
        _close_all_but(
            {0, 1, 2, link.fileno()}
        )  # especially the connection to the node, which takes its closing for the tenant's death
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with contextlib.suppress(OSError):  # the parent may have died already
            link.send(_MESSAGE.pack(*_start(command, environ, mask)))
            _close_program_descriptors()
            name_process("cotenant-guard")
            _watch_program(link)
    finally:
        kill_descendants(os.getpid())
        os._exit(0)


def _start(command: Sequence[str], environ: Mapping[str, str], mask: set[int]) -> tuple[int, int]:
    """Start the program as `subprocess` would, which takes longer to import than a program to start."""
    guard = os.getpid()
    reader, writer = os.pipe()  # closed by a successful exec
    try:
        pid = os.fork()
    except OSError as error:
        return _FAILED, error.errno or errno.EINVAL
    if not pid:
        _execute(command, environ, mask, guard, writer)
    os.close(writer)
    failure = os.read(reader, _ERRNO.size)
    os.close(reader)
    if failure:
        os.waitpid(pid, 0)
        return _FAILED, _ERRNO.unpack(failure)[0]
    _program[:] = [pid]
    return _STARTED, pid


def _execute(command: Sequence[str], environ: Mapping[str, str], mask: set[int], guard: int, writer: int) -> NoReturn:
    """Run in the forked process: become the program, or report why it cannot be executed."""
    number = errno.EINVAL
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died between fork and prctl
            os._exit(NOT_FOUND)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, but not by the program
            signal.signal(ignored, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(command[0], list(command), dict(environ))  # noqa: S606  arguments are a list
    except OSError as error:
        number = error.errno or errno.EINVAL
    except ValueError:  # an argument contains a zero byte
        pass
    finally:
        os.write(writer, _ERRNO.pack(number))
        os._exit(NOT_FOUND)


_program: list[int] = []
"""The process number of the program."""


def _watch_program(link: socket.socket) -> None:
    """Report the exit code and reap descendants until the parent dies or releases the guard."""
    child_signals = signal_descriptor([signal.SIGCHLD])
    poller = select.poll()
    poller.register(child_signals, select.POLLIN)
    poller.register(link.fileno(), select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == link.fileno():
                message = link.recv(16)
                if message == _KEEP_RUNNING:
                    os._exit(0)
                if message != _END_ALL:
                    return
                kill_descendants(os.getpid(), link)
            else:
                os.read(child_signals, 4096)
                _reap(link)


def _reap(link: socket.socket | None) -> None:
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = child
            if link is not None and _program and pid == _program[0]:
                with contextlib.suppress(OSError):
                    link.send(_MESSAGE.pack(_ENDED, os.waitstatus_to_exitcode(status)))


def kill_descendants(guard: int, link: socket.socket | None = None) -> None:
    """Kill all descendants of a guard, also new ones; only processes that may not be killed remain."""
    for _ in range(_ROUNDS):
        descendants = [pid for pid in process_tree(guard)[1:] if _runs(pid)]
        killed = [pid for pid in descendants if _send(pid, signal.SIGKILL)]
        _reap(link)
        if not killed:
            return
        pause(_ROUND_S)


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _runs(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return bool(words) and words[0] not in {"Z", "X"}


def _close_all_but(kept: set[int]) -> None:
    first = 0
    for descriptor in sorted(kept):
        if first < descriptor:  # some versions of Python close all descriptors for an empty range from 0
            os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _close_program_descriptors() -> None:
    """Close the program's descriptors, so that a reader of its output waits for its end, not for the guard's."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
