"""Signals of this process, exit codes, and starting other processes."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cotenant.errors import WorldError

if TYPE_CHECKING:
    import subprocess

_FORWARDED: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
)
_ENDING: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_SENT_BY_KERNEL: Final = 0x80  # si_code SI_KERNEL: the terminal sent it, to the whole foreground group
_SIGSET_BYTES: Final = 128
_SIGINFO_BYTES: Final = 128
_SIGINFO: Final = struct.Struct("=Iii")  # of struct signalfd_siginfo: the number, an error, and the code
_PR_SET_NAME: Final = 15
_PR_SET_DUMPABLE: Final = 4
NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126


class Signals:
    """Blocks the signals that concern the supervised program and reads them from a descriptor instead."""

    def __init__(self) -> None:
        """Block the signals from now on; `before` is the signal mask that the program must be started with."""
        self.before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        self._descriptor = signal_descriptor(_FORWARDED)

    def fileno(self) -> int:
        """Return a descriptor that is readable once a signal has arrived."""
        return self._descriptor

    def read(self) -> list[tuple[int, bool]]:
        """Return the signals that arrived, and of each whether the terminal has sent it to the program as well."""
        signals = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._descriptor, _SIGINFO_BYTES):
                number, _, code = _SIGINFO.unpack_from(data)
                # SIGHUP goes only to the session leader, which may be this process; a second one does no harm.
                signals.append((number, code == _SENT_BY_KERNEL and number != signal.SIGHUP))
        return signals

    def has_end_request(self) -> bool:
        """Return whether a signal arrived that would have ended this process; for use while no program runs."""
        return any(number in _ENDING for number, _ in self.read())

    def close(self) -> None:
        """Restore the signal mask."""
        os.close(self._descriptor)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)


def signal_descriptor(numbers: Iterable[int]) -> int:
    """Return a descriptor from which these signals, which must be blocked, are read (signalfd(2))."""
    import ctypes  # noqa: PLC0415  slow to import

    libc = ctypes.CDLL(None, use_errno=True)
    signal_set = ctypes.create_string_buffer(_SIGSET_BYTES)
    libc.sigemptyset(signal_set)
    for number in numbers:
        libc.sigaddset(signal_set, int(number))
    descriptor: int = libc.signalfd(-1, signal_set, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise WorldError(f"cannot create a signal descriptor: {os.strerror(ctypes.get_errno())}")
    return descriptor


def describe_exit(code: int) -> str:
    """Return how a program ended, as text."""
    if code <= 128:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"exit {code}"


def exec_failure_code(error: OSError) -> int:
    """Return the exit code that a shell uses for a program that cannot be started."""
    return NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def start_in_background(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a cotenant command in a session of its own, with its output in a log file."""
    import subprocess  # noqa: PLC0415  slow to import

    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > 1 << 20:
        log.replace(log.with_name(log.name + ".1"))
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "cotenant", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def name_process(name: str) -> None:
    """Set the process name that `ps` and `top` show."""
    import ctypes  # noqa: PLC0415  slow to import

    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def protect_process() -> None:
    """Prevent other processes of the same user from opening this process's descriptors and memory through /proc."""
    import ctypes  # noqa: PLC0415  slow to import

    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def ancestors(pid: int) -> Iterator[int]:
    """Yield a process and its ancestors, nearest first, as far as /proc lists them."""
    while pid > 0:
        yield pid
        try:
            # The name in parentheses may contain any character: state and parent follow the last parenthesis.
            words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            pid = int(words[1])
        except (OSError, ValueError, IndexError):
            return


def start_with_pipes(
    command: Sequence[str], environ: Mapping[str, str] | None = None, *, keep_input: bool = False
) -> subprocess.Popen[str]:
    """Start a process with its output in pipes; its input is a pipe only if `keep_input`."""
    import subprocess  # noqa: PLC0415  slow to import

    return subprocess.Popen(
        list(command),
        env=environ,
        stdin=subprocess.PIPE if keep_input else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_and_capture(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """Return the output of a process; raise `WorldError` with the last line of its errors if it failed."""
    process = start_with_pipes(command, environ)
    output, errors = process.communicate()
    if process.returncode:
        last = (errors.strip().splitlines() or ["no error message"])[-1]
        raise WorldError(f"{Path(command[0]).name} ended with {process.returncode}: {last}")
    return output
