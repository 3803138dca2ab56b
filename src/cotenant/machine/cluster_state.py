"""What does a cluster remember, and how does an attempt at a job begin and end?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant.domain.cluster import Attempt, ClusterSettings, JobEnd, JobState
from cotenant.domain.clusters import Answer, ClusterAction, StartJob, StopJob
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import NEVER, SECOND_NS, Instant
from cotenant.domain.plan import Reason, Reject
from cotenant.machine.cluster_fit import why_not
from cotenant.machine.cluster_floor import Floor, Node
from cotenant.machine.cluster_jobs import Job, Roster
from cotenant.machine.cluster_kinds import beside_of
from cotenant.machine.cluster_worth import Worth

_AGAIN_NS: Final = 10 * SECOND_NS
"""After a failure or a refusal, until the next try."""
_PUSHED_OUT_NS: Final = 30 * SECOND_NS
"""After a node of its own accord has made a job leave: what it was in the way of is still there. Twice as long each
time, up to the longest, or the job would be back in its place in the next round."""
_LONGEST_NS: Final = 600 * SECOND_NS
"""A job that ran for so long was not in the way there: it begins anew."""
_EARLY: Final = 10
"""In a small cluster a round comes early when something changed, at most so many times as often."""
_LEARNED_STEPS: Final = 8
"""A speed that differs from the last one by less than such a part of a GPU's is nothing new."""
NO_PEER: Final = 0
"""Nobody waits for an answer."""


class ClusterState:
    """Nodes, jobs and what was learned; and the few ways in which jobs come to nodes and leave them."""

    def __init__(self) -> None:
        """Know nothing."""
        self.turn = 0
        self.settings = ClusterSettings()
        self.empty()

    def empty(self) -> None:
        """Forget all but how it is set up."""
        self.floor = Floor()
        self.roster = Roster(self.floor)
        self.worth = Worth()
        self.next_attempt = 1
        self.next_round: Instant = NEVER
        self.last_round: Instant = NEVER
        self.no_round_before: Instant = 0
        self.rounds = self.placed = self.discarded = self.moved = 0
        self.silent = 0
        self.recorded: Sequence[ClusterAction] | None = None
        """While it is done again what is on record: what was decided then."""
        self.lease_due: Instant = NEVER
        """Not after the first instant at which a lease, or what follows it, can run out; NEVER: there is none."""

    def stirred(self, now: Instant) -> None:
        """Something changed that a round might make use of; the first round after a start waits for its time."""
        if self.last_round != NEVER and self.floor.is_small:
            soonest = self.last_round + self.settings.round_ns // _EARLY
            self.next_round = min(self.next_round, max(now, soonest))

    # -- beginning -------------------------------------------------------------------------------------------------

    def start(self, job: Job, node: Node, gpus: tuple[int, ...], now: Instant) -> StartJob:
        """A new attempt there."""
        job.attempt = self.next_attempt
        self.next_attempt += 1
        job.node, job.gpus, job.started, job.why = node, gpus, now, ""
        job.is_known, job.rate_ppm = False, 0
        self.seat(job, node)
        self.roster.move(job, JobState.STARTING, now)
        self.roster.set_kind(job)
        for gpu in gpus:
            self.floor.open[node.base + gpu] = 0
        return self.order(job, node)

    def seat(self, job: Job, node: Node) -> None:
        """Its GPUs there are its own."""
        node.attempts[job.attempt] = job
        for gpu in job.gpus:
            node.busy[gpu] = job
        self.roster.users.hold(job.spec.user, len(job.gpus))
        if job.spec.group or job.spec.avoid:
            self.roster.particular[job.spec.name] = job

    def order(self, job: Job, node: Node) -> StartJob:
        """To start its present attempt."""
        share_ppm = min((node.gpus[gpu].offer_ppm for gpu in job.gpus if gpu < len(node.gpus)), default=0)
        attempt = Attempt(job.spec.name, job.attempt)
        return StartJob(node.name, attempt, job.gpus, share_ppm, job.spec, job.progress_ppm, node.epoch)

    # -- ending ----------------------------------------------------------------------------------------------------

    def stop(self, job: Job, why: str, now: Instant) -> list[ClusterAction]:
        """It is to end where it is; of a silent node, that will be sent when it speaks again."""
        job.stop = why
        assert job.node is not None
        if job.state is JobState.LOST:
            return []
        if job.state is not JobState.STOPPING:
            self.roster.move(job, JobState.STOPPING, now)
        return [self.order_stop(job, job.node)]

    def order_stop(self, job: Job, node: Node) -> StopJob:
        """To end its present attempt."""
        kept_on = "" if job.kept_on is None else job.kept_on.name
        return StopJob(node.name, Attempt(job.spec.name, job.attempt), job.stop, kept_on, job.kept)

    def move_away(self, job: Job, node: Node, gpus: tuple[int, ...], now: Instant) -> list[ClusterAction]:
        """A job that runs ends where it is, and these GPUs are kept for it."""
        job.kept_on, job.kept = node, gpus
        for gpu in gpus:
            node.busy[gpu] = job
            self.floor.open[node.base + gpu] = 0
        return self.stop(job, f"it goes on faster on {node.name}", now)

    def end(
        self, job: Job, end: JobEnd, detail: str, now: Instant, *, is_reported: bool = False
    ) -> list[ClusterAction]:
        """Its attempt is known to have ended: its node reported that, or it follows from something else."""
        node, was_told = job.node, job.stop
        assert node is not None
        del node.attempts[job.attempt]
        for gpu in job.gpus:
            del node.busy[gpu]
        self.roster.users.hold(job.spec.user, -len(job.gpus))
        self.roster.particular.pop(job.spec.name, None)
        if self.floor.refresh(node):
            self.stirred(now)
        job.node, job.gpus, job.is_known, job.stop = None, (), False, ""
        kept_on, kept = job.kept_on, job.kept
        self.let_go(job)
        if end is JobEnd.DONE:
            job.progress_ppm = WHOLE_PPM
            self.over(job, JobState.DONE, detail, now)
        elif job.is_cancelled:
            self.over(job, JobState.CANCELLED, "cancelled", now)
        elif end is JobEnd.FAILED and not was_told:
            self._failed(job, detail or "its program failed", now)
        elif end is JobEnd.REFUSED:
            self._wait(job, detail or "its node could not start it", now, _AGAIN_NS)
        else:
            job.evictions += 1
            is_pushed_out = is_reported and not was_told
            for_ns = self._pause_ns(job, now) if is_pushed_out else 0
            self._wait(job, was_told or detail or "it was told to make room", now, for_ns)
            if kept_on is not None and not why_not(self.floor, self.roster, job, kept_on, kept):
                return [self.start(job, kept_on, kept, now)]
        return []

    def _pause_ns(self, job: Job, now: Instant) -> int:
        if now - job.started >= _LONGEST_NS:
            job.pushed_out = 0
        for_ns = min(_PUSHED_OUT_NS << job.pushed_out, _LONGEST_NS)
        job.pushed_out = min(job.pushed_out + 1, _LONGEST_NS.bit_length())
        return for_ns

    def _failed(self, job: Job, why: str, now: Instant) -> None:
        job.failures += 1
        if job.failures > job.spec.retries:
            self.over(job, JobState.FAILED, why, now)
        else:
            self._wait(job, why, now, _AGAIN_NS)

    def _wait(self, job: Job, why: str, now: Instant, for_ns: int) -> None:
        job.why = why
        job.after = now + for_ns
        self.roster.move(job, JobState.WAITING, now)
        self.stirred(job.after)

    def over(self, job: Job, state: JobState, why: str, now: Instant) -> None:
        """Nothing more will happen to it."""
        job.why, job.ended = why, now
        self.roster.move(job, state, now)
        self.roster.forget(self.settings.remember)

    def let_go(self, job: Job) -> None:
        """Nothing is kept for it any more."""
        node = job.kept_on
        if node is not None:
            for gpu in job.kept:
                del node.busy[gpu]
            job.kept_on, job.kept = None, ()
            self.floor.refresh(node)

    # -- what is learned, and answers ------------------------------------------------------------------------------

    def learn(self, job: Job, node: Node, rate_ppm: int) -> None:
        """From the speed of a job that runs, if it is not much the same as the last time."""
        if abs(rate_ppm - job.rate_ppm) * _LEARNED_STEPS < WHOLE_PPM or job.gpus[0] >= len(node.gpus):
            return
        job.rate_ppm = rate_ppm
        kind = self.floor.kinds[self.floor.kind[node.base + job.gpus[0]]]
        foretold = self.worth.foretold(self.roster.kinds[job.kind], kind)
        profile = job.spec.profile or job.spec.name
        self.worth.predictor.learn(profile, beside_of(kind.online), foretold, rate_ppm / WHOLE_PPM)

    def answer(self, peer: int, reject: Reject | None = None) -> list[ClusterAction]:
        """To who asked, if anybody did."""
        return [] if peer == NO_PEER else [Answer(peer, reject)]

    def refuse(self, peer: int, reason: Reason, detail: str) -> list[ClusterAction]:
        """As `answer`."""
        return self.answer(peer, Reject(reason, detail))
