"""Supervisor of an attempt: a process that runs the attempt's programs independently of the agent.

`python -m cotenant.cluster.daemon.supervisor ATTEMPT LEASE` runs the order in the attempt's directory as tenants of the
node. It ends them gracefully when ordered to, or when the lease in that file has ended, which the agent extends only
while it reaches the controller. When nothing of the attempt runs any more, it writes how the attempt ended.

If a supervisor is killed, its programs are ended as well; the next supervisor of the attempt starts nothing, but waits
until all of them are gone, and writes the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cotenant.cluster.daemon.attempt_record import MARK, End, Order, Record, read_lease
from cotenant.cluster.daemon.attempt_result import end_of
from cotenant.cluster.model.cluster import JobEnd
from cotenant.node.client.outcome import EndedBy, RunOutcome
from cotenant.runner.clock import boot_ns, pause
from cotenant.runner.process import name_process, signal_descriptor
from cotenant.units.instant import SECOND_NS, Duration, Instant

_LOOK_S: Final = 0.25
_LONGER_NS: Final = 8 * SECOND_NS  # a drain, and what `cotenant run` takes besides its program's grace
_ROUND_S: Final = 0.02
_PR_SET_PDEATHSIG: Final = 1
_SIGNALLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HEARD: Final = (*_SIGNALLED, signal.SIGCHLD)
_NOT_LEASED: Final = "the lease ran out: the controller was not heard of for too long"
_SIGNALLED_DIRECTLY: Final = "its supervisor was told to end"
_ORPHANED: Final = "its supervisor was killed"


def keep(record: Record, run: Callable[[Order], End]) -> None:
    """Run the attempt to its end; at once nothing if another supervisor does, or if it has ended."""
    try:
        lock = os.open(record.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # the attempt is forgotten already
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        order = record.order()
        if order is None or record.end() is not None:
            return
        if record.take_charge() is None:
            end = run(order)
        else:
            clear_away(record.path, order.grace_ns + _LONGER_NS)
            end = End(JobEnd.EVICTED, _ORPHANED)
        record.finish(end)
    except BlockingIOError:  # another has it
        return
    finally:
        os.close(lock)


class _Attempt:
    """The programs of an attempt, and why they are to end."""

    def __init__(self, record: Record, order: Order, lease: Path) -> None:
        self._record = record
        self._order = order
        self._lease = lease
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._outcomes: list[RunOutcome | None] = []
        self._asked: str | None = None
        self._is_ending = False
        self._until_ns: Instant | None = None
        """When what is left is killed."""

    def run(self) -> End:
        """From its start to its end."""
        wakeful = signal_descriptor(_HEARD)
        self._look()
        if self._asked is None:
            self._start()
        while self._running:
            ready, _, _ = select.select([wakeful], [], [], _LOOK_S)
            if ready:
                self._hear(os.read(wakeful, 4096))
            self._reap()
            self._look()
            if self._until_ns is not None and boot_ns() >= self._until_ns:
                clear_away(self._record.path, 0)
        # A program that was made to end is gone with all it started; one that ended by itself, or whose parent was
        # killed, may have left something that would go on to write where the next attempt begins.
        clear_away(self._record.path, _LONGER_NS if None in self._outcomes else 0)
        progress = self._record.progress()
        is_complete = progress is not None and progress.is_complete
        return end_of(self._outcomes, self._asked, is_complete=is_complete and bool(self._outcomes))

    def _start(self) -> None:
        order = self._order
        ours = {**_rendezvous(len(order.commands)), MARK: str(self._record.path)}
        supervisor = os.getpid()
        try:
            with Path(order.log).open("ab") as log:
                for rank, command in enumerate(order.commands):
                    self._running[rank] = subprocess.Popen(
                        list(command),
                        env={**os.environ, **ours, **order.environment[rank]},
                        cwd=order.directory,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        preexec_fn=lambda: _end_with(supervisor),  # noqa: PLW1509  this process has one thread
                    )
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or str(error)
            self._outcomes.append(RunOutcome(1, EndedBy.OWN, f"cannot be started in {order.directory!r}: {said}"))
            self._end()

    def _hear(self, signals: bytes) -> None:
        numbers = [int.from_bytes(signals[at : at + 4], sys.byteorder) for at in range(0, len(signals), 128)]
        if self._asked is None and self._record.stop() is None and any(number in _SIGNALLED for number in numbers):
            self._asked = _SIGNALLED_DIRECTLY
            self._end()

    def _reap(self) -> None:
        for rank, process in list(self._running.items()):
            if process.poll() is None:
                continue
            del self._running[rank]
            outcome = self._record.outcome(rank)
            self._outcomes.append(outcome)
            if outcome is None or outcome.code or outcome.doing is not EndedBy.OWN:
                self._end()  # one for all: what is left of a gang would only wait for it

    def _look(self) -> None:
        """Whether it is to end."""
        lease = read_lease(self._lease)
        now = boot_ns()
        is_leased = lease is not None and now < lease.until_ns
        if self._asked is None:
            self._asked = self._record.stop()
            if self._asked is None and not is_leased:
                self._asked = _NOT_LEASED
            if self._asked is not None:
                self._end()
        if not is_leased:  # nothing may be left at the end of the cluster's grace, so kill well before it
            last_ns = now if lease is None else lease.until_ns + 2 * lease.grace_ns // 3
            self._until_ns = last_ns if self._until_ns is None else min(self._until_ns, last_ns)

    def _end(self) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        if self._until_ns is None:
            self._until_ns = boot_ns() + self._order.grace_ns + _LONGER_NS
        for process in self._running.values():
            process.terminate()


def _rendezvous(ranks: int) -> dict[str, str]:
    """Where the programs of a gang find each other, by the names that PyTorch's `env://` looks for."""
    if ranks < 2:
        return {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def clear_away(mark: Path, patience_ns: Duration) -> None:
    """See to it that nothing runs that bears this mark; for so long it may end by itself."""
    until_ns = boot_ns() + patience_ns
    while left := marked(mark):
        if boot_ns() >= until_ns:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        pause(_ROUND_S)


def marked(mark: Path) -> list[int]:
    """All processes that run and have this mark in their environment."""
    wanted = os.fsencode(f"{MARK}={mark}") + b"\0"
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def _end_with(supervisor: int) -> None:
    """In the new process: be told to end when the supervisor is killed, and have no signal held back."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:  # it was killed just before
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def main(arguments: list[str]) -> int:
    """Be a supervisor."""
    attempt, lease = arguments
    name_process("cotenant-supervisor")
    signal.pthread_sigmask(
        signal.SIG_BLOCK, _HEARD
    )  # before it is known as the supervisor: from then on it may be told
    record = Record(Path(attempt))
    keep(record, lambda order: _Attempt(record, order, Path(lease)).run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
