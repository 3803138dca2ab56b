"""Attempts on this machine: each is started once, has a supervisor, and is reported until its end is acknowledged."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from cotenant.cluster.daemon.attempt_record import End, Order, Record, is_alive, records_in
from cotenant.cluster.daemon.supervisor import clear_away
from cotenant.cluster.model.cluster import Attempt, AttemptReport
from cotenant.cluster.progress import Progress
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM

_AGAIN_NS: Final = SECOND_NS
"""Between two supervisors of one attempt: one that cannot even say how it ended will not do better at once."""

LOG_LIMIT_BYTES: Final = 1 << 20
"""Of what supervisors say, as a rule nothing: beyond that the log begins anew, and the one before is kept."""


class _HeldAttempt:
    """An attempt and its last observed state."""

    def __init__(self, record: Record, order: Order) -> None:
        self.record = record
        self.order = order
        self.end: End | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.kept_ns: Instant | None = None
        self.progress_ppm = order.progress_ppm
        self.seen: tuple[Progress, Instant] | None = None
        self.rate_ppm = 0

    def look(self, now: Instant) -> None:
        """How far the job is, and how fast it was since that last changed."""
        self.rate_ppm = 0
        progress = self.record.progress()
        if progress is None or (self.seen is not None and progress == self.seen[0]):
            return
        self.progress_ppm = max(self.progress_ppm, progress.ppm)
        if self.seen is not None and self.order.work_ns and now > self.seen[1]:
            before, then = self.seen
            part = progress.done / progress.whole - before.done / before.whole
            self.rate_ppm = max(0, int(part * self.order.work_ns / (now - then) * WHOLE_PPM))
        self.seen = (progress, now)

    def report(self) -> AttemptReport:
        attempt, gpus = self.order.attempt, self.order.gpus
        if self.end is None:
            return AttemptReport(attempt, gpus, self.progress_ppm, self.rate_ppm)
        return AttemptReport(attempt, gpus, self.progress_ppm, self.rate_ppm, self.end.end, self.end.detail)


class Attempts:
    """Attempts on disk below a directory; nothing about them is kept only in memory."""

    def __init__(self, directory: Path, lease: Path, say: Callable[[str], None]) -> None:
        """Take over what an earlier agent left; `lease` is the file that the supervisors go by."""
        self._directory = directory
        self._lease = lease
        self._say = say
        self._held: dict[Attempt, _HeldAttempt] = {}
        self.supervisors: list[subprocess.Popen[bytes]] = []
        """Those that this agent started and that were not yet seen to have ended."""
        directory.mkdir(mode=0o700, exist_ok=True)
        for record in records_in(directory):
            order = record.order()
            if order is None:  # of another version, or damaged: what runs unnamed must not go on
                self._give_up(record)
            else:
                self._held[order.attempt] = _HeldAttempt(record, order)

    def tenants(self) -> frozenset[str]:
        """What the programs of all attempts are called at the node."""
        return frozenset(name for held in self._held.values() for name in held.order.tenants)

    def record_of(self, attempt: Attempt) -> Record:
        """Where an attempt is, or would be; numbers of attempts are the cluster's, and never used twice."""
        return Record(self._directory / str(attempt.number))

    def accept(self, order: Order, refusal: End | None) -> bool:
        """Have an attempt, once: whether it is new here. One that is refused has ended before it began."""
        record = self.record_of(order.attempt)
        if order.attempt in self._held or record.path.exists():
            return False
        record.make(order, refusal)
        held = self._held[order.attempt] = _HeldAttempt(record, order)
        held.end = refusal
        return True

    def stop(self, attempt: Attempt, why: str) -> None:
        """Have it end in good order."""
        held = self._held.get(attempt)
        if held is None or held.end is not None or held.record.stop() is not None:
            return
        held.record.ask_to_stop(why)
        supervisor = held.record.supervisor()
        if supervisor is not None and is_alive(supervisor):
            with contextlib.suppress(ProcessLookupError):
                os.kill(supervisor.pid, signal.SIGTERM)  # to look at once

    def forget(self, attempt: Attempt) -> None:
        """Its end is known to the process that wanted it."""
        held = self._held.get(attempt)
        if held is not None and held.end is not None:
            del self._held[attempt]
            held.record.remove()

    def tend(self, now: Instant) -> bool:
        """See that each has a supervisor until it has ended; whether an end became known."""
        is_news = False
        self.supervisors = [supervisor for supervisor in self.supervisors if supervisor.poll() is None]
        for held in self._held.values():
            if held.end is not None:
                continue
            held.end = held.record.end()
            if held.end is not None:
                is_news = True
                self._say(f"attempt {held.order.attempt.number} at {held.order.attempt.job} ended: {held.end.detail}")
            else:
                self._keep(held, now)
        return is_news

    def reports(self, now: Instant) -> tuple[AttemptReport, ...]:
        """All of them, as they are."""
        for held in self._held.values():
            held.look(now)
        return tuple(held.report() for held in self._held.values())

    def _keep(self, held: _HeldAttempt, now: Instant) -> None:
        if held.process is not None and held.process.poll() is None:
            return
        supervisor = held.record.supervisor()
        if supervisor is not None and is_alive(supervisor):
            return
        if held.kept_ns is not None and now < held.kept_ns + _AGAIN_NS:
            return
        held.kept_ns = now
        command = [
            sys.executable,
            "-P",
            "-m",
            "cotenant.cluster.daemon.supervisor",
            str(held.record.path),
            str(self._lease),
        ]
        with _log(self._directory.parent / "supervisors.log") as log:
            held.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.supervisors.append(held.process)

    def _give_up(self, record: Record) -> None:
        self._say(f"the order in {record.path} cannot be read; what runs of it is ended")
        supervisor = record.supervisor()
        if supervisor is not None and is_alive(supervisor):
            with contextlib.suppress(ProcessLookupError):
                os.kill(supervisor.pid, signal.SIGKILL)
        clear_away(record.path, 0)
        record.remove()


def _log(path: Path) -> BinaryIO:
    """Open for appending; a supervisor that runs goes on with the file that it has."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size >= LOG_LIMIT_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    return path.open("ab")
