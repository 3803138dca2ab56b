"""How is a program kept together with all that it starts? By a guard, a process between us and it.

Whatever the program starts, also what detaches itself, stays below the guard (a child subreaper, prctl(2)). When we die
the guard ends all of it: a tenant whose slot is freed must not go on unseen.
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
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from cotenant.live.clock import pause
from cotenant.live.hook.trace import family
from cotenant.live.process import NOT_FOUND, name_process, signal_descriptor

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_WORD: Final = struct.Struct("=ii")
_STARTED, _FAILED, _ENDED = range(3)
_END_ALL: Final = b"end"
_LET_GO: Final = b"let go"
_ROUNDS: Final = 2000
_ROUND_S: Final = 0.002


class Child:
    """A running program, with its guard."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        descriptors: Sequence[int],
        mask: Iterable[int] = (),
    ) -> None:
        """Start it with these signals blocked; raises `OSError` as `exec` would."""
        self.code: int | None = None
        """How it ended, as a shell would report it: 128 + n for signal n; None while it runs."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        self.guard = os.fork()  # this process has one thread, which is what makes that safe
        if not self.guard:
            _be_guard(theirs, command, environ, descriptors, set(mask))
        theirs.close()
        kind, number = self._hear()
        if kind != _STARTED:
            self.release()
            raise OSError(number, os.strerror(number))
        self.pid = number

    def fileno(self) -> int:
        """Readable once the program has ended."""
        return self._link.fileno()

    def hear(self) -> None:
        """Take the news of its end."""
        kind, number = self._hear()
        if kind == _ENDED:
            self.code = number if number >= 0 else 128 - number
        else:
            self.code = 128 + signal.SIGKILL  # the guard is gone, and took the program along

    def send_signal(self, number: int) -> None:
        """To the program itself, while it runs."""
        if self.code is None:
            _send(self.pid, number)

    def others(self) -> list[int]:
        """Everything that it started, at first or second hand, and that runs now."""
        return [pid for pid in family(self.guard)[1:] if pid != self.pid and _runs(pid)]

    def end_all(self) -> None:
        """Have the program and everything below it killed."""
        with contextlib.suppress(OSError):
            self._link.send(_END_ALL)

    def release(self, *, let_go: bool = False) -> None:
        """Have all that is left of it killed, or let it go on by itself; the guard is done either way."""
        if let_go:
            with contextlib.suppress(OSError):
                self._link.send(_LET_GO)
        self._link.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.guard, 0)

    def _hear(self) -> tuple[int, int]:
        try:
            word = self._link.recv(_WORD.size)
        except ConnectionResetError:
            word = b""
        return _WORD.unpack(word) if word else (_FAILED, errno.ECHILD)


def _be_guard(
    link: socket.socket,
    command: Sequence[str],
    environ: Mapping[str, str],
    descriptors: Sequence[int],
    mask: set[int],
) -> NoReturn:
    """In the forked process: start the program and keep watch until we are let go."""
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # what a terminal sends is not for the guard
        _close_all_but({0, 1, 2, link.fileno(), *descriptors})  # above all the way to the node: its end is our death
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with contextlib.suppress(OSError):  # we may be gone already
            link.send(_WORD.pack(*_start(command, environ, descriptors, mask)))
            _turn_away(descriptors)
            name_process("cotenant-guard")
            _keep_watch(link)
    finally:
        end_family(os.getpid())
        os._exit(0)


def _start(
    command: Sequence[str], environ: Mapping[str, str], descriptors: Sequence[int], mask: set[int]
) -> tuple[int, int]:
    libc = ctypes.CDLL(None)
    guard = os.getpid()

    def in_program() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died between fork and prctl
            os._exit(NOT_FOUND)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        process = subprocess.Popen(
            list(command),
            env=dict(environ),
            pass_fds=list(descriptors),
            preexec_fn=in_program,  # noqa: PLW1509  one thread, as above
        )
    except OSError as error:
        return _FAILED, error.errno or errno.EINVAL
    except ValueError:  # an argument that holds a zero byte
        return _FAILED, errno.EINVAL
    _program[:] = [process]
    return _STARTED, process.pid


_program: list[subprocess.Popen[bytes]] = []
"""In the guard alone: kept, or Python would wait for it by itself."""


def _keep_watch(link: socket.socket) -> None:
    """Tell how the program ended, and reap all that ends below us, until the other end is gone or lets us go."""
    ended = signal_descriptor([signal.SIGCHLD])
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.register(link.fileno(), select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == link.fileno():
                word = link.recv(16)
                if word == _LET_GO:
                    os._exit(0)
                if word != _END_ALL:
                    return
                end_family(os.getpid(), link)
            else:
                os.read(ended, 4096)
                _reap(link)


def _reap(link: socket.socket | None) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            if link is not None and _program and pid == _program[0].pid:
                with contextlib.suppress(OSError):
                    link.send(_WORD.pack(_ENDED, os.waitstatus_to_exitcode(status)))


def end_family(guard: int, link: socket.socket | None = None) -> None:
    """Kill everything below a guard, whatever it starts meanwhile; only what may not be killed is left."""
    for _ in range(_ROUNDS):
        below = [pid for pid in family(guard)[1:] if _runs(pid)]
        killed = [pid for pid in below if _send(pid, signal.SIGKILL)]
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
    """Whether a process is there and not only waiting to be reaped."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return bool(words) and words[0] not in {"Z", "X"}


def _close_all_but(kept: set[int]) -> None:
    below = 0
    for descriptor in sorted(kept):
        if below < descriptor:  # an empty range from 0 on is all of them to some versions of Python
            os.closerange(below, descriptor)
        below = descriptor + 1
    os.closerange(below, os.sysconf("SC_OPEN_MAX"))


def _turn_away(descriptors: Sequence[int]) -> None:
    """Hold nothing of the program's open: whoever reads its output waits for its end, not for the guard's."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    for descriptor in {nowhere, *descriptors}:
        os.close(descriptor)
