"""How far is each job really, whatever the cluster believes? Work in numbers, and the attempt that does it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.domain.cluster import Attempt, AttemptReport, JobEnd, JobSpec
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import Instant

_RATE_STEP_PPM: Final = 10_000
"""Speeds are told in steps of one in a hundred: nobody measures better."""


class Fate(enum.IntEnum):
    """Where a job is in truth."""

    TO_COME = 0
    IDLE = 1
    """It was brought, and does not run."""
    RUNNING = 2
    DONE = 3
    REFUSED = 4
    """The cluster would not take it."""


class Brought(NamedTuple):
    """A job of a world, before it comes."""

    when_ns: int
    spec: JobSpec
    """As its user tells of it."""
    kind: int
    """Which training of the physics it is in truth."""
    work_ns: int
    """Alone on whole GPUs, in truth."""


class BrokenPromiseError(AssertionError):
    """The cluster did what it must never do: ran a job twice, or two jobs on one GPU."""


class Book:
    """The truth about all jobs, by place. Work is in nanoseconds of the job alone on whole GPUs."""

    def __init__(self, jobs: Sequence[Brought], checkpoint_ns: int) -> None:
        """None has come."""
        count = len(jobs)
        self.specs = [job.spec for job in jobs]
        self.submit_ns = np.array([job.when_ns for job in jobs], dtype=np.int64)
        self.place = {spec.name: index for index, spec in enumerate(self.specs)}
        self.kind = np.array([job.kind for job in jobs], dtype=np.int64)
        self.gpus = np.array([spec.gpus for spec in self.specs], dtype=np.int64)
        self.work = np.array([float(job.work_ns) for job in jobs])
        self._checkpoint = float(max(checkpoint_ns, 1))
        self.fate = np.full(count, Fate.TO_COME, dtype=np.int8)
        self.done = np.zeros(count)
        """Of its work, by the attempt that runs or the last one, lost or not."""
        self.safe = np.zeros(count)
        """Of that, what the next attempt need not do again."""
        self.computed = np.zeros(count)
        """By all attempts together."""
        self.lost = np.zeros(count)
        self.goal = np.array(self.work)
        """Where this attempt ends: at the whole, or where it fails."""
        self.first_start_ns = np.full(count, -1, dtype=np.int64)
        self.end_ns = np.full(count, -1.0)
        self.attempts = np.zeros(count, dtype=np.int64)
        self.evictions = np.zeros(count, dtype=np.int64)
        self.failures = np.zeros(count, dtype=np.int64)
        self.node = np.full(count, -1, dtype=np.int64)
        self.on: list[tuple[int, ...]] = [()] * count
        """The GPUs of the attempt that runs, as their node counts them."""
        self.attempt: list[Attempt | None] = [None] * count
        self._told = np.full(count, -1, dtype=np.int64)
        self._reports: list[AttemptReport | None] = [None] * count

    def start(self, job: int, attempt: Attempt, where: tuple[int, tuple[int, ...]], now: Instant, goal: float) -> None:
        """An attempt begins where the last one was saved."""
        if self.fate[job] != Fate.IDLE:
            raise BrokenPromiseError(
                f"{attempt.job} is started (attempt {attempt.number}) while it is {Fate(self.fate[job]).name}"
            )
        self.fate[job] = Fate.RUNNING
        self.node[job], self.on[job] = where
        self.attempt[job] = attempt
        self.done[job] = self.safe[job]
        self.goal[job] = goal
        self.attempts[job] += 1
        if self.first_start_ns[job] < 0:
            self.first_start_ns[job] = now
        self._told[job] = -1

    def run(self, jobs: Any, rate: Any, ns: int) -> tuple[Any, Any]:
        """Let jobs go on at their rates for a while; returns how long each really ran, and which came to its goal."""
        left = self.goal[jobs] - self.done[jobs]
        with np.errstate(divide="ignore"):
            needs = np.where(rate > 0, left / np.maximum(rate, 1e-12), np.inf)
        ended = needs <= ns
        ran = np.minimum(needs, ns)
        work = np.where(ended, left, rate * ran)
        self.done[jobs] = np.where(ended, self.goal[jobs], self.done[jobs] + work)
        self.computed[jobs] += work
        saved = np.floor(self.done[jobs] / self._checkpoint) * self._checkpoint
        self.safe[jobs] = np.maximum(
            self.safe[jobs], np.where(self.done[jobs] >= self.work[jobs], self.work[jobs], saved)
        )
        return ran, ended

    def end(self, job: int, how: JobEnd, when: float, detail: str, *, saves: bool) -> AttemptReport:
        """The attempt is over; what it did not save then or before is lost. Returns what its node says of it."""
        attempt = self.attempt[job]
        assert attempt is not None
        assert self.fate[job] == Fate.RUNNING
        if saves:
            self.safe[job] = self.done[job]
        report = AttemptReport(attempt, self.on[job], self._progress_ppm(job), 0, how, detail)
        if how is JobEnd.DONE:
            self.fate[job] = Fate.DONE
            self.end_ns[job] = when
        else:
            self.fate[job] = Fate.IDLE
            self.lost[job] += self.done[job] - self.safe[job]
            self.done[job] = self.safe[job]
            self.failures[job] += how is JobEnd.FAILED
            self.evictions[job] += how is JobEnd.EVICTED
        self.attempt[job] = None
        self.node[job] = -1
        self.on[job] = ()
        return report

    def news(self, jobs: Any, rate: Any) -> Any:
        """Those of the running jobs of which their nodes have something else to tell than the last time."""
        progress = np.floor(self.safe[jobs] / np.maximum(self.work[jobs], 1.0) * WHOLE_PPM).astype(np.int64)
        rate_step = np.rint(rate * (WHOLE_PPM // _RATE_STEP_PPM)).astype(np.int64)
        told = progress * WHOLE_PPM + rate_step
        changed = self._told[jobs] != told
        found = jobs[changed]
        self._told[found] = told[changed]
        rows = zip(found.tolist(), progress[changed].tolist(), rate_step[changed].tolist(), strict=True)
        for job, progress_ppm, step in rows:
            attempt = self.attempt[job]
            assert attempt is not None
            self._reports[job] = AttemptReport(attempt, self.on[job], progress_ppm, step * _RATE_STEP_PPM)
        return found

    def report(self, job: int) -> AttemptReport:
        """What its node says of a job that runs."""
        known = self._reports[job]
        if known is None or known.attempt is not self.attempt[job]:
            attempt = self.attempt[job]
            assert attempt is not None
            known = self._reports[job] = AttemptReport(attempt, self.on[job], self._progress_ppm(job))
        return known

    def _progress_ppm(self, job: int) -> int:
        return int(self.safe[job] / max(float(self.work[job]), 1.0) * WHOLE_PPM)
