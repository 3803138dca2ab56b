"""Jobs, the queue of waiting jobs, and what users hold.

Every submitted job is in exactly one state until it is forgotten, which happens only after its end. Unfinished jobs
have a row in flat arrays, so that a round over a hundred thousand of them takes a few array operations.
"""

from __future__ import annotations

import math
from array import array
from typing import Final

from cotenant.cluster.model.cluster import JobReport, JobSpec, JobState
from cotenant.cluster.model.event import JobSnapshot
from cotenant.cluster.state.inventory import ClusterInventory, Node
from cotenant.cluster.state.kinds import JobKind, job_kind
from cotenant.units.instant import Instant

_HALF_LIFE_S: Final = 86_400.0
"""GPU time of a day ago counts half. Without decay, a user of long standing would wait behind each new user until that
one has received as much."""
_NOTHING_S: Final = 1.0
"""GPU seconds below which a user's account is removed."""
_KINDS_LIMIT: Final = 16_384


class Job:
    """A job and its state."""

    __slots__ = (
        "after",
        "attempt",
        "ended",
        "evictions",
        "failures",
        "gpus",
        "is_cancelled",
        "is_known",
        "kind",
        "named",
        "node",
        "number",
        "progress_ppm",
        "pushed_out",
        "rate_ppm",
        "reserved",
        "reserved_on",
        "row",
        "since",
        "spec",
        "started",
        "state",
        "stop",
        "submitted",
        "why",
    )

    def __init__(self, spec: JobSpec, number: int, now: Instant) -> None:
        self.spec = spec
        self.number = number
        """Position in the order of submission."""
        self.submitted = now
        self.state = JobState.WAITING
        self.since = now
        self.attempt = 0
        self.node: Node | None = None
        self.gpus: tuple[int, ...] = ()
        self.is_known = False
        """Whether the node has reported the attempt."""
        self.stop = ""
        """Why the attempt is to be stopped; empty: it is not."""
        self.is_cancelled = False
        self.reserved_on: Node | None = None
        self.reserved: tuple[int, ...] = ()
        """GPUs that are reserved for it until it has ended where it runs."""
        self.progress_ppm = 0
        self.started = 0
        self.ended = 0
        self.failures = 0
        self.evictions = 0
        self.pushed_out = 0
        """Consecutive evictions by its node soon after a start."""
        self.after = 0
        self.why = ""
        self.kind = 0
        self.row = -1
        self.named = 0
        """The turn in which its node last named it."""
        self.rate_ppm = 0
        """Speed from which the predictor learned last."""

    def report(self, why: str = "") -> JobReport:
        """Return the job with the reason for its state."""
        node = "" if self.node is None else self.node.name
        return JobReport(
            self.spec,
            self.state,
            self.submitted,
            self.attempt,
            node,
            self.gpus,
            self.progress_ppm,
            self.started,
            self.ended,
            self.failures,
            self.evictions,
            why or self.why,
        )

    def snapshot(self) -> JobSnapshot:
        """Return the job for a snapshot."""
        reserved_on = "" if self.reserved_on is None else self.reserved_on.name
        return JobSnapshot(
            self.report(),
            self.since,
            self.after,
            self.is_known,
            self.is_cancelled,
            self.stop,
            self.reserved,
            reserved_on,
            self.rate_ppm,
            self.pushed_out,
        )


def restored(snapshot: JobSnapshot, number: int, nodes: dict[str, Node]) -> Job:
    """Return the job of a snapshot."""
    report = snapshot.report
    job = Job(report.spec, number, report.submitted)
    job.state, job.since, job.attempt = report.state, snapshot.since, report.attempt
    job.node = nodes[report.node] if report.node else None
    job.gpus, job.progress_ppm = report.gpus, report.progress_ppm
    job.started, job.ended = report.started, report.ended
    job.failures, job.evictions, job.why = report.failures, report.evictions, report.why
    job.after, job.is_known, job.is_cancelled, job.stop = (
        snapshot.after,
        snapshot.is_known,
        snapshot.is_cancelled,
        snapshot.stop,
    )
    job.reserved, job.rate_ppm, job.pushed_out = snapshot.reserved, snapshot.rate_ppm, snapshot.pushed_out
    job.reserved_on = nodes[snapshot.reserved_on] if snapshot.reserved_on else None
    return job


class Users:
    """Allocated GPUs and received GPU time of users."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        """Allocated GPUs; users without any are absent."""
        self.used: dict[str, float] = {}
        """GPU seconds up to `at`, with exponential decay."""
        self.accounted_at: Instant = 0

    def hold(self, user: str, gpus: int) -> None:
        """Change the number of GPUs that a user holds."""
        held = self.held.get(user, 0) + gpus
        if held:
            self.held[user] = held
        else:
            del self.held[user]

    def account(self, now: Instant) -> None:
        """Account the time since the last call for the GPUs that are held now."""
        passed_s = (now - self.accounted_at) / 1e9
        self.accounted_at = now
        if passed_s <= 0:
            return
        decay = 0.5 ** (passed_s / _HALF_LIFE_S)
        counts_s = (1 - decay) * _HALF_LIFE_S / math.log(2)  # decayed GPU seconds of one GPU over the interval
        self.used = {user: used_s * decay for user, used_s in self.used.items() if used_s * decay >= _NOTHING_S}
        for user, gpus in self.held.items():
            self.used[user] = self.used.get(user, 0.0) + gpus * counts_s


class JobTable:
    """All remembered jobs, with array rows for unfinished ones."""

    def __init__(self, inventory: ClusterInventory) -> None:
        self._inventory = inventory
        self.jobs: dict[str, Job] = {}
        """In the order of submission."""
        self.over: dict[str, Job] = {}
        """In the order of their end."""
        self.counts = dict.fromkeys(JobState, 0)
        self.particular: dict[str, Job] = {}
        """Jobs on a node that have a group or avoid one."""
        self.gangs: dict[str, dict[str, Job]] = {}
        """Unfinished jobs of each gang, by name."""
        self.users = Users()
        self.next_number = 0
        self.kinds: list[JobKind] = []
        self.kind_of: dict[JobKind, int] = {}
        self._free_rows: list[int] = []
        self.at_row: list[Job | None] = []
        self.kind = array("i")
        self.priority = array("i")
        self.number = array("q")
        self.after = array("q")
        self.since = array("q")
        self.user = array("i")
        self.waits = bytearray()
        """For each row, whether its job waits."""
        self.user_names: list[str] = []
        self.user_of: dict[str, int] = {}

    def submit(self, spec: JobSpec, now: Instant) -> Job:
        """Add a submitted job."""
        job = Job(spec, self.next_number, now)
        self.next_number += 1
        self.add(job)
        return job

    def add(self, job: Job) -> None:
        """Add a new job or one from a snapshot."""
        self.jobs[job.spec.name] = job
        self.counts[job.state] += 1
        if job.state.is_over:
            self.over[job.spec.name] = job
            return
        if job.spec.avoid:
            self._inventory.avoid(job.spec.avoid, 1)
        if job.spec.gang:
            self.gangs.setdefault(job.spec.gang, {})[job.spec.name] = job
        self._take_row(job)
        self._queue(job)

    def move(self, job: Job, state: JobState, now: Instant) -> None:
        """Change the state of a job; every transition goes through here."""
        self.counts[job.state] -= 1
        self.counts[state] += 1
        job.state = state
        job.since = now
        if state.is_over:
            self.over[job.spec.name] = job
            if job.spec.avoid:
                self._inventory.avoid(job.spec.avoid, -1)
            if job.spec.gang:
                del self.gangs[job.spec.gang][job.spec.name]
                if not self.gangs[job.spec.gang]:
                    del self.gangs[job.spec.gang]
            self._free_row(job)
        else:
            self._queue(job)

    def forget(self, limit: int) -> None:
        """Forget the jobs that ended first, beyond this number."""
        while len(self.over) > limit:
            name = next(iter(self.over))
            self.counts[self.over.pop(name).state] -= 1
            del self.jobs[name]

    def settle(self) -> None:
        """Remove kinds without jobs if there are many kinds."""
        if len(self.kinds) <= _KINDS_LIMIT or len(self.kinds) < 2 * len(self.at_row):
            return
        self.kinds, self.kind_of = [], {}
        for job in self.at_row:
            if job is not None:
                self.set_kind(job)

    @property
    def waiting(self) -> int:
        return self.counts[JobState.WAITING]

    def _queue(self, job: Job) -> None:
        """Update the row of a job."""
        row = job.row
        waits = job.state is JobState.WAITING
        self.waits[row] = waits
        if waits:
            self.set_kind(job)
            self.after[row] = job.after
            self.since[row] = job.since

    def set_kind(self, job: Job) -> None:
        """Set the kind of a job."""
        kind = job_kind(job.spec, was_tried=job.attempt > 0)
        number = self.kind_of.get(kind)
        if number is None:
            number = self.kind_of[kind] = len(self.kinds)
            self.kinds.append(kind)
        job.kind = self.kind[job.row] = number

    def _take_row(self, job: Job) -> None:
        spec = job.spec
        user = self.user_of.get(spec.user)
        if user is None:
            user = self.user_of[spec.user] = len(self.user_names)
            self.user_names.append(spec.user)
        if self._free_rows:
            row = self._free_rows.pop()
            self.at_row[row] = job
            self.priority[row], self.number[row], self.user[row] = spec.priority, job.number, user
        else:
            row = len(self.at_row)
            self.at_row.append(job)
            for column in (self.kind, self.after, self.since):
                column.append(0)
            self.priority.append(spec.priority)
            self.number.append(job.number)
            self.user.append(user)
            self.waits.append(0)
        job.row = row
        self.set_kind(job)

    def _free_row(self, job: Job) -> None:
        self.waits[job.row] = 0
        self.at_row[job.row] = None
        self._free_rows.append(job.row)
        job.row = -1
