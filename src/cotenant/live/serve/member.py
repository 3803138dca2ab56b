"""How does a server hold one of its workers? Started, heard, given a run, given up on, buried."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cotenant.domain.instant import Instant
from cotenant.format.tensor import Array
from cotenant.live.clock import monotonic_ns
from cotenant.live.process import describe_ending
from cotenant.live.serve.model import LoadFailed
from cotenant.live.serve.parcel import Do, Hello, Lies, Room, Setup, Sorry, Word, hear_word, send

_WORDS_BYTES: Final = 400
_TERM_S: Final = 5.0


class Start(NamedTuple):
    """How a worker is started: as what, and what it is to be."""

    command: Sequence[str]
    environ: Mapping[str, str]
    setup: Setup


class Member:
    """One worker, from its start to its end."""

    def __init__(self, start: Start, width: int) -> None:
        """Started; it says hello when it can run."""
        self.width = width
        self.hello: Hello | None = None
        self.idle_since: Instant = monotonic_ns()
        self.given = Room()
        self._made = Room()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line = ours
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        try:
            self.process = subprocess.Popen(
                list(start.command),
                env=dict(start.environ),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                start_new_session=True,  # a terminal's Ctrl-C is for the server, which then drains
            )
        except OSError:
            ours.close()
            self._complaints.close()
            raise
        finally:
            theirs.close()
        self.pidfd = os.pidfd_open(self.process.pid)
        with contextlib.suppress(OSError):  # one that is dead already shows by its end
            send(ours, start.setup)

    def await_hello(self, patience_s: float) -> Hello:
        """Wait until it can run; `LoadFailed` says why it cannot."""
        self.line.settimeout(patience_s)
        try:
            word = self.hear()
        except TimeoutError:
            self.kill()
            raise LoadFailed(f"its worker was not ready within {patience_s:g} s") from None
        if isinstance(word, Hello):
            self.line.setblocking(False)
            return word
        self.end()
        why = word.why if isinstance(word, Sorry) else self.ending()
        self.forget()
        raise LoadFailed(f"its worker cannot run it: {why}")

    def hear(self) -> Word | None:
        """What it says; None: it is gone."""
        word = hear_word(self.line, self._made)
        if isinstance(word, Hello):
            self.hello = word
            with contextlib.suppress(OSError):
                if word.pid != self.process.pid:  # below another: its own end is what counts
                    os.close(self.pidfd)
                    self.pidfd = -1
                    self.pidfd = os.pidfd_open(word.pid)
        return word

    def tell(self, do: Do, descriptor: int) -> None:
        """Have a batch run."""
        send(self.line, do, descriptor)

    def seen(self, lies: Lies) -> Array:
        """A tensor that it made; copied, for its memory is written again."""
        return self._made.seen(lies).copy()

    def ending(self) -> str:
        """How it ended, as far as that is known yet, and what it said last, for people."""
        code = self.process.poll()
        how = "its process is gone" if code is None else describe_ending(code if code >= 0 else 128 - code)
        self._complaints.seek(0, os.SEEK_END)
        self._complaints.seek(max(0, self._complaints.tell() - _WORDS_BYTES))
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        return f"{how}: {said[-1]}" if said else how

    def kill(self) -> None:
        """At once. What `cotenant run` started ends with it."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.process.kill()

    def leave(self) -> None:
        """Let it go: it ends when its line does."""
        with contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Let it go, wait for it, and do not wait for ever."""
        self.leave()
        try:
            self.process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()

    def forget(self) -> None:
        """Of a process that has ended: let go of what stood for it."""
        self.line.close()
        self._complaints.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
