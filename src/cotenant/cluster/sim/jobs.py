"""True progress of the jobs of a simulated cluster."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.cluster.model.cluster import Attempt, AttemptReport, JobEnd, JobSpec
from cotenant.units.instant import Instant
from cotenant.units.share import WHOLE_PPM

_RATE_STEP_PPM: Final = 10_000
"""Speeds are reported in steps of 1 %, which is as precise as a measurement."""


class SimJobState(enum.IntEnum):
    """True state of a job."""

    PENDING = 0
    IDLE = 1
    """Submitted and not running."""
    RUNNING = 2
    DONE = 3


class ScheduledJob(NamedTuple):
    """A job that will be submitted."""

    submit_ns: int
    spec: JobSpec
    """Specification that the user submits."""
    kind: int
    """Index of the training in the physical model."""
    work_ns: int
    """True duration alone on whole GPUs."""


class GuaranteeViolationError(AssertionError):
    """The controller violated a guarantee: it ran a job twice, or two jobs on one GPU."""


class SimJobs:
    """True state of all jobs, by index. Work is in nanoseconds of the job alone on whole GPUs."""

    def __init__(self, jobs: Sequence[ScheduledJob], checkpoint_ns: int) -> None:
        """Begin before any submission."""
        count = len(jobs)
        self.specs = [job.spec for job in jobs]
        self.submit_ns = np.array([job.submit_ns for job in jobs], dtype=np.int64)
        self.index = {spec.name: index for index, spec in enumerate(self.specs)}
        self.kind = np.array([job.kind for job in jobs], dtype=np.int64)
        self.gpus = np.array([spec.gpus for spec in self.specs], dtype=np.int64)
        self.work = np.array([float(job.work_ns) for job in jobs])
        self._checkpoint = float(max(checkpoint_ns, 1))
        self.state = np.full(count, SimJobState.PENDING, dtype=np.int8)
        self.done = np.zeros(count)
        """Work done by the present or last attempt, saved or not."""
        self.safe = np.zeros(count)
        """Part of `done` that the next attempt need not repeat."""
        self.computed = np.zeros(count)
        """Work done by all attempts."""
        self.lost = np.zeros(count)
        self.goal = np.array(self.work)
        """Work at which this attempt ends: all of it, or where it fails."""
        self.first_start_ns = np.full(count, -1, dtype=np.int64)
        self.end_ns = np.full(count, -1.0)
        self.attempts = np.zeros(count, dtype=np.int64)
        self.evictions = np.zeros(count, dtype=np.int64)
        self.failures = np.zeros(count, dtype=np.int64)
        self.node = np.full(count, -1, dtype=np.int64)
        self.on: list[tuple[int, ...]] = [()] * count
        """GPUs of the present attempt, by their index on the node."""
        self.attempt: list[Attempt | None] = [None] * count
        self._reported = np.full(count, -1, dtype=np.int64)
        self._reports: list[AttemptReport | None] = [None] * count

    def start(
        self, job: int, attempt: Attempt, location: tuple[int, tuple[int, ...]], now: Instant, goal: float
    ) -> None:
        """Start an attempt from the saved work."""
        if self.state[job] != SimJobState.IDLE:
            raise GuaranteeViolationError(
                f"{attempt.job} is started (attempt {attempt.number}) while it is {SimJobState(self.state[job]).name}"
            )
        self.state[job] = SimJobState.RUNNING
        self.node[job], self.on[job] = location
        self.attempt[job] = attempt
        self.done[job] = self.safe[job]
        self.goal[job] = goal
        self.attempts[job] += 1
        if self.first_start_ns[job] < 0:
            self.first_start_ns[job] = now
        self._reported[job] = -1

    def run(self, jobs: Any, rate: Any, ns: int) -> tuple[Any, Any]:
        """Advance jobs at their rates; return how long each ran, and which reached their goal."""
        remaining = self.goal[jobs] - self.done[jobs]
        with np.errstate(divide="ignore"):
            needs = np.where(rate > 0, remaining / np.maximum(rate, 1e-12), np.inf)
        is_ended = needs <= ns
        ran_ns = np.minimum(needs, ns)
        work = np.where(is_ended, remaining, rate * ran_ns)
        self.done[jobs] = np.where(is_ended, self.goal[jobs], self.done[jobs] + work)
        self.computed[jobs] += work
        saved = np.floor(self.done[jobs] / self._checkpoint) * self._checkpoint
        self.safe[jobs] = np.maximum(
            self.safe[jobs], np.where(self.done[jobs] >= self.work[jobs], self.work[jobs], saved)
        )
        return ran_ns, is_ended

    def end(self, job: int, outcome: JobEnd, end_ns: float, detail: str, *, saves: bool) -> AttemptReport:
        """End the attempt and return its report; work that is not saved is lost."""
        attempt = self.attempt[job]
        assert attempt is not None
        assert self.state[job] == SimJobState.RUNNING
        if saves:
            self.safe[job] = self.done[job]
        report = AttemptReport(attempt, self.on[job], self._progress_ppm(job), 0, outcome, detail)
        if outcome is JobEnd.DONE:
            self.state[job] = SimJobState.DONE
            self.end_ns[job] = end_ns
        else:
            self.state[job] = SimJobState.IDLE
            self.lost[job] += self.done[job] - self.safe[job]
            self.done[job] = self.safe[job]
            self.failures[job] += outcome is JobEnd.FAILED
            self.evictions[job] += outcome is JobEnd.EVICTED
        self.attempt[job] = None
        self.node[job] = -1
        self.on[job] = ()
        return report

    def changed_reports(self, jobs: Any, rate: Any) -> Any:
        """Return the running jobs whose report changed."""
        progress = np.floor(self.safe[jobs] / np.maximum(self.work[jobs], 1.0) * WHOLE_PPM).astype(np.int64)
        rate_step = np.rint(rate * (WHOLE_PPM // _RATE_STEP_PPM)).astype(np.int64)
        code = progress * WHOLE_PPM + rate_step
        changed = self._reported[jobs] != code
        changed_jobs = jobs[changed]
        self._reported[changed_jobs] = code[changed]
        rows = zip(changed_jobs.tolist(), progress[changed].tolist(), rate_step[changed].tolist(), strict=True)
        for job, progress_ppm, step in rows:
            attempt = self.attempt[job]
            assert attempt is not None
            self._reports[job] = AttemptReport(attempt, self.on[job], progress_ppm, step * _RATE_STEP_PPM)
        return changed_jobs

    def report(self, job: int) -> AttemptReport:
        """Return the report of a running job."""
        cached = self._reports[job]
        if cached is None or cached.attempt is not self.attempt[job]:
            attempt = self.attempt[job]
            assert attempt is not None
            cached = self._reports[job] = AttemptReport(attempt, self.on[job], self._progress_ppm(job))
        return cached

    def _progress_ppm(self, job: int) -> int:
        return int(self.safe[job] / max(float(self.work[job]), 1.0) * WHOLE_PPM)
