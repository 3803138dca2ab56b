"""Which jobs are there, whose turn is it, and what may each user have?

Every job that was submitted is in exactly one state until it is forgotten, which only happens after it is over. Those
that wait have a row in flat arrays, so that a round of a hundred thousand of them is a few array operations.
"""

from __future__ import annotations

import math
from array import array
from typing import Final

from cotenant.domain.cluster import JobSpec, JobState, JobTold, Quota
from cotenant.domain.clusters import JobKept
from cotenant.domain.instant import Instant
from cotenant.machine.cluster_floor import Floor, Node
from cotenant.machine.cluster_kinds import JobKind, job_kind

_HALF_LIFE_S: Final = 86_400.0
"""What a user had a day ago counts for half: or whoever has been here for long would stay behind each newcomer until
that one has had as much."""
_NOTHING_S: Final = 1.0
"""GPU seconds so few that they are forgotten."""
_NO_LIMIT: Final = Quota("x").gpus
_KINDS_LIMIT: Final = 16_384
TEXT_LIMIT: Final = 128 << 20
"""Letters of all that jobs which are remembered say of themselves: a snapshot of them must fit into one turn."""


def text_of(spec: JobSpec) -> int:
    """How many letters a job says, about."""
    several = (spec.command, spec.types, spec.avoid, *spec.environment)
    alone = len(spec.name) + len(spec.user) + len(spec.profile) + len(spec.group) + len(spec.directory)
    return alone + sum(len(text) for texts in several for text in texts)


class Job:
    """A job, and where it is in its life."""

    __slots__ = (
        "after",
        "attempt",
        "ended",
        "evictions",
        "failures",
        "gpus",
        "is_cancelled",
        "is_known",
        "kept",
        "kept_on",
        "kind",
        "named",
        "node",
        "number",
        "progress_ppm",
        "pushed_out",
        "rate_ppm",
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
        """In the order in which jobs came."""
        self.submitted = now
        self.state = JobState.WAITING
        self.since = now
        self.attempt = 0
        self.node: Node | None = None
        self.gpus: tuple[int, ...] = ()
        self.is_known = False
        """Its node has said that the attempt is there."""
        self.stop = ""
        """Why it is to end where it is; nothing: it is not."""
        self.is_cancelled = False
        self.kept_on: Node | None = None
        self.kept: tuple[int, ...] = ()
        """GPUs that are kept for it until it has ended where it is."""
        self.progress_ppm = 0
        self.started = 0
        self.ended = 0
        self.failures = 0
        self.evictions = 0
        self.pushed_out = 0
        """Times in a row that its node made it leave, soon after it came."""
        self.after = 0
        self.why = ""
        self.kind = 0
        self.row = -1
        self.named = 0
        """The turn in which its node named it last."""
        self.rate_ppm = 0
        """Its speed from which was last learned."""

    def told(self, why: str = "") -> JobTold:
        """As people see it."""
        node = "" if self.node is None else self.node.name
        return JobTold(
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

    def keep(self) -> JobKept:
        """As it stands in a snapshot."""
        kept_on = "" if self.kept_on is None else self.kept_on.name
        return JobKept(
            self.told(),
            self.since,
            self.after,
            self.is_known,
            self.is_cancelled,
            self.stop,
            self.kept,
            kept_on,
            self.rate_ppm,
            self.pushed_out,
        )


def restored(kept: JobKept, number: int, nodes: dict[str, Node]) -> Job:
    """The job that was kept."""
    told = kept.told
    job = Job(told.spec, number, told.submitted)
    job.state, job.since, job.attempt = told.state, kept.since, told.attempt
    job.node = nodes[told.node] if told.node else None
    job.gpus, job.progress_ppm = told.gpus, told.progress_ppm
    job.started, job.ended = told.started, told.ended
    job.failures, job.evictions, job.why = told.failures, told.evictions, told.why
    job.after, job.is_known, job.is_cancelled, job.stop = kept.after, kept.is_known, kept.is_cancelled, kept.stop
    job.kept, job.rate_ppm, job.pushed_out = kept.kept, kept.rate_ppm, kept.pushed_out
    job.kept_on = nodes[kept.kept_on] if kept.kept_on else None
    return job


class Users:
    """What users hold and had, and what they may."""

    def __init__(self) -> None:
        self.quotas: dict[str, Quota] = {}
        self.held: dict[str, int] = {}
        """GPUs now; nobody with none."""
        self.used: dict[str, float] = {}
        """GPU seconds, up to `at`, older ones counting for less."""
        self.at: Instant = 0

    def left(self, user: str) -> int:
        """How many more GPUs the user may hold."""
        quota = self.quotas.get(user)
        return _NO_LIMIT if quota is None else max(0, quota.gpus - self.held.get(user, 0))

    def weight(self, user: str) -> int:
        quota = self.quotas.get(user)
        return 1 if quota is None else quota.weight

    def hold(self, user: str, gpus: int) -> None:
        """So many more, or less."""
        now = self.held.get(user, 0) + gpus
        if now:
            self.held[user] = now
        else:
            del self.held[user]

    def account(self, now: Instant) -> None:
        """Write down what was had since the last time: what is held now counts for all of it."""
        passed_s = (now - self.at) / 1e9
        self.at = now
        if passed_s <= 0:
            return
        left = 0.5 ** (passed_s / _HALF_LIFE_S)
        counts_s = (1 - left) * _HALF_LIFE_S / math.log(2)  # of a second in each GPU, what is left of it on average
        self.used = {user: had * left for user, had in self.used.items() if had * left >= _NOTHING_S}
        for user, gpus in self.held.items():
            self.used[user] = self.used.get(user, 0.0) + gpus * counts_s


class Roster:
    """All jobs that are remembered, and rows for those that wait."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self.jobs: dict[str, Job] = {}
        """In the order in which they came."""
        self.over: dict[str, Job] = {}
        """In the order in which they ended."""
        self.counts = dict.fromkeys(JobState, 0)
        self.text = 0
        """Letters of all of them."""
        self.particular: dict[str, Job] = {}
        """Jobs on a node that have a group, or avoid one."""
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
        """Of each row, whether its job waits."""
        self.user_names: list[str] = []
        self.user_of: dict[str, int] = {}

    def submit(self, spec: JobSpec, now: Instant) -> Job:
        """A job comes."""
        job = Job(spec, self.next_number, now)
        self.next_number += 1
        self.add(job)
        return job

    def add(self, job: Job) -> None:
        """A new job, or one from a snapshot."""
        self.jobs[job.spec.name] = job
        self.counts[job.state] += 1
        self.text += text_of(job.spec)
        if job.state.is_over:
            self.over[job.spec.name] = job
            return
        if job.spec.avoid:
            self._floor.avoid(job.spec.avoid, 1)
        self._take_row(job)
        self._queue(job)

    def move(self, job: Job, state: JobState, now: Instant) -> None:
        """The only way from one state to another."""
        self.counts[job.state] -= 1
        self.counts[state] += 1
        job.state = state
        job.since = now
        if state.is_over:
            self.over[job.spec.name] = job
            if job.spec.avoid:
                self._floor.avoid(job.spec.avoid, -1)
            self._free_row(job)
        else:
            self._queue(job)

    def forget(self, most: int) -> None:
        """Of those that are over, the ones that ended first, beyond so many."""
        while len(self.over) > most:
            self._forget_first()

    def has_room_for(self, spec: JobSpec) -> bool:
        """Whether what it says can be kept; those that are over, from the first on, are forgotten for it."""
        text = text_of(spec)
        while self.over and self.text + text > TEXT_LIMIT:
            self._forget_first()
        return self.text + text <= TEXT_LIMIT

    def _forget_first(self) -> None:
        name = next(iter(self.over))
        job = self.over.pop(name)
        self.counts[job.state] -= 1
        self.text -= text_of(job.spec)
        del self.jobs[name]

    def settle(self) -> None:
        """Kinds that no job is of any more are forgotten, when there are many."""
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
        """Bring its row up to date."""
        row = job.row
        waits = job.state is JobState.WAITING
        self.waits[row] = waits
        if waits:
            self.set_kind(job)
            self.after[row] = job.after
            self.since[row] = job.since

    def set_kind(self, job: Job) -> None:
        """Which jobs it is like, now."""
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
