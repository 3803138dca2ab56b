"""What is sent to us, how did a program end, and how are other processes started?"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from cotenant.errors import WorldError

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
NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126


class Signals:
    """What is sent to us while a program runs: nothing of it acts by itself, all of it can be read."""

    def __init__(self) -> None:
        """Hold back what concerns the program from now on; `before` is the mask that it is to be started with."""
        self.before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        self._descriptor = signal_descriptor(_FORWARDED)

    def fileno(self) -> int:
        """Readable once a signal has come."""
        return self._descriptor

    def read(self) -> list[tuple[int, bool]]:
        """The signals that came, in their order, and whether the program has each already: from the terminal."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while told := os.read(self._descriptor, _SIGINFO_BYTES):
                number, _, code = _SIGINFO.unpack_from(told)
                # A hangup goes to the leader of the session alone, which may be us; twice does not hurt.
                found.append((number, code == _SENT_BY_KERNEL and number != signal.SIGHUP))
        return found

    def told_to_end(self) -> bool:
        """While no program runs: whether one of those came that would have ended us."""
        return any(number in _ENDING for number, _ in self.read())

    def close(self) -> None:
        """Let signals act as they did before."""
        os.close(self._descriptor)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)


def signal_descriptor(numbers: Iterable[int]) -> int:
    """A descriptor that these signals, which must be blocked, are read from; Python itself has none (signalfd(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = ctypes.create_string_buffer(_SIGSET_BYTES)
    libc.sigemptyset(wanted)
    for number in numbers:
        libc.sigaddset(wanted, int(number))
    descriptor: int = libc.signalfd(-1, wanted, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise WorldError(f"signals cannot be read: {os.strerror(ctypes.get_errno())}")
    return descriptor


def describe_ending(code: int) -> str:
    """How a program ended, in words."""
    if code <= 128:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"exit {code}"


def exec_failure_code(error: OSError) -> int:
    """What a shell returns for a program that cannot be started."""
    return NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def start_in_background(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start cotenant itself as a process of its own session, writing to a log."""
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
    """What `ps` and `top` show instead of python."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def lineage(pid: int) -> Iterator[int]:
    """A process and those it descends from, nearest first; ends where the kernel tells no more."""
    while pid > 0:
        yield pid
        try:
            # The name, in brackets, may hold anything: what follows its last bracket is the state and the parent.
            words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            pid = int(words[1])
        except (OSError, ValueError, IndexError):
            return


def start_piped(
    command: Sequence[str], environ: Mapping[str, str] | None = None, *, keep_input: bool = False
) -> subprocess.Popen[str]:
    """A process whose words we keep; it reads nothing, unless it is to wait for us."""
    return subprocess.Popen(
        list(command),
        env=environ,
        stdin=subprocess.PIPE if keep_input else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_to_end(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """What a process said; raises `WorldError` with its last words when it failed."""
    process = start_piped(command, environ)
    said, complained = process.communicate()
    if process.returncode:
        last = (complained.strip().splitlines() or ["it says nothing"])[-1]
        raise WorldError(f"{Path(command[0]).name} ended with {process.returncode}: {last}")
    return said
