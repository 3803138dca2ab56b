"""How is a program run as a child whose signals and end are ours to pass on?"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
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
_SENT_BY_KERNEL: Final = 0x80  # si_code SI_KERNEL: the terminal sent it, to the whole foreground group
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126


class Child:
    """A running program. Dies with us: a tenant whose slot is freed must not go on unseen."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], descriptors: Sequence[int]) -> None:
        """Start it; raises `OSError` as `exec` would."""
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        libc = ctypes.CDLL(None, use_errno=True)
        parent = os.getpid()

        def in_child() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # we died between fork and prctl
                os._exit(_NOT_FOUND)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

        try:
            # This process has one thread here, which is what makes a function between fork and exec safe.
            self._process = subprocess.Popen(
                list(command),
                env=dict(environ),
                pass_fds=list(descriptors),
                preexec_fn=in_child,  # noqa: PLW1509  see above
            )
        except BaseException:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
            raise
        self._exit = os.pidfd_open(self._process.pid)
        threading.Thread(target=self._forward_signals, daemon=True).start()

    def fileno(self) -> int:
        """Readable once the program has ended."""
        return self._exit

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def wait(self) -> int:
        """Its exit code as a shell would report it: 128 + n for signal n."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def _forward_signals(self) -> None:
        while True:
            received = signal.sigwaitinfo(_FORWARDED)
            # A hangup goes to the leader of the session alone, which may be us; twice does not hurt.
            if received.si_code != _SENT_BY_KERNEL or received.si_signo == signal.SIGHUP:
                self._process.send_signal(received.si_signo)


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
    return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


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
