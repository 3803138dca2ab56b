"""State of a cluster controller, and how attempts at jobs start and end."""

from __future__ import annotations

from typing import Final

from cotenant.cluster.model.cluster import Attempt, ClusterSettings, JobEnd, JobState
from cotenant.cluster.model.event import ClusterAction, StartJob, StopJob
from cotenant.cluster.state.fit import why_not
from cotenant.cluster.state.inventory import ClusterInventory, Node
from cotenant.cluster.state.jobs import Job, JobTable
from cotenant.cluster.state.kinds import co_runner_key
from cotenant.cluster.state.pair_weights import PairWeights
from cotenant.units.instant import NEVER, SECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM

_AGAIN_NS: Final = 10 * SECOND_NS
"""Delay before the next attempt after a failure or a refusal."""
_PUSHED_OUT_NS: Final = 30 * SECOND_NS
"""Delay after an eviction by the node itself, whose cause is probably still there. It doubles with each such eviction,
up to `_LONGEST_NS`; without it, the next round would place the job there again."""
_LONGEST_NS: Final = 600 * SECOND_NS
"""An attempt that ran for this long resets the delay after evictions."""
_EARLY: Final = 10
"""In a small cluster a change triggers an early round, at most this many times as often as the period."""
_LEARNED_STEPS: Final = 8
"""A speed that differs from the last one by less than this fraction of a GPU's speed is not learned again."""


class ClusterState:
    """Nodes, jobs and learned corrections, and the transitions by which jobs start on nodes and leave them."""

    def __init__(self) -> None:
        """Begin with no nodes and no jobs."""
        self.turn = 0
        self.settings = ClusterSettings()
        self.empty()

    def empty(self) -> None:
        """Remove everything but the settings."""
        self.inventory = ClusterInventory()
        self.job_table = JobTable(self.inventory)
        self.pair_weights = PairWeights()
        self.next_attempt = 1
        self.next_round: Instant = NEVER
        self.last_round: Instant = NEVER
        self.rounds = self.placed = self.discarded = self.moved = 0
        self.silent = 0
        self.lease_due: Instant = NEVER
        """Not later than the first end of a lease or of its grace; NEVER: there is none."""

    def request_early_round(self, now: Instant) -> None:
        """Bring the next round forward after a change. The first round after a start keeps its time."""
        if self.last_round != NEVER and self.inventory.is_small:
            soonest = self.last_round + self.settings.round_ns // _EARLY
            self.next_round = min(self.next_round, max(now, soonest))

    # -- start of attempts ------------------------------------------------------------------------------------------

    def start(self, job: Job, node: Node, gpus: tuple[int, ...], now: Instant) -> StartJob:
        """Start a new attempt on these GPUs."""
        job.attempt = self.next_attempt
        self.next_attempt += 1
        job.node, job.gpus, job.started, job.why = node, gpus, now, ""
        job.is_known, job.rate_ppm = False, 0
        self.occupy(job, node)
        self.job_table.move(job, JobState.STARTING, now)
        self.job_table.set_kind(job)
        for gpu in gpus:
            self.inventory.refresh_gpu(node, gpu)
        return self.order(job, node)

    def occupy(self, job: Job, node: Node) -> None:
        """Allocate the GPUs of the attempt."""
        node.attempts[job.attempt] = job
        for gpu in job.gpus:
            node.hold(gpu, job)
        self.job_table.users.hold(job.spec.user, len(job.gpus))
        if job.spec.group or job.spec.avoid:
            self.job_table.particular[job.spec.name] = job

    def order(self, job: Job, node: Node) -> StartJob:
        """Return the order to start the present attempt."""
        share_ppm = min((node.gpus[gpu].offer_ppm for gpu in job.gpus if gpu < len(node.gpus)), default=0)
        attempt = Attempt(job.spec.name, job.attempt)
        return StartJob(node.name, attempt, job.gpus, share_ppm, job.spec, job.progress_ppm, node.epoch)

    # -- end of attempts --------------------------------------------------------------------------------------------

    def stop(self, job: Job, why: str, now: Instant) -> list[ClusterAction]:
        """Stop the present attempt. For a silent node, the order is sent after its next report."""
        job.stop = why
        assert job.node is not None
        if job.state is JobState.LOST:
            return []
        if job.state is not JobState.STOPPING:
            self.job_table.move(job, JobState.STOPPING, now)
            self.inventory.refresh(job.node)  # it is not being started any more
        return [self.order_stop(job, job.node)]

    def order_stop(self, job: Job, node: Node) -> StopJob:
        """Return the order to stop the present attempt."""
        return StopJob(node.name, Attempt(job.spec.name, job.attempt), job.stop)

    def migrate(self, job: Job, node: Node, gpus: tuple[int, ...], now: Instant) -> list[ClusterAction]:
        """Stop a running job and reserve these GPUs for it."""
        job.reserved_on, job.reserved = node, gpus
        for gpu in gpus:
            node.hold(gpu, job)
            self.inventory.refresh_gpu(node, gpu)
        return self.stop(job, f"it is moved to a faster GPU of {node.name}", now)

    def end(
        self, job: Job, end: JobEnd, detail: str, now: Instant, *, is_reported: bool = False
    ) -> list[ClusterAction]:
        """Record that the attempt ended: its node reported that (`is_reported`), or it follows from other events."""
        node, was_stopped = job.node, job.stop
        assert node is not None
        del node.attempts[job.attempt]
        for gpu in job.gpus:
            node.release(gpu, job)
        self.job_table.users.hold(job.spec.user, -len(job.gpus))
        self.job_table.particular.pop(job.spec.name, None)
        if self.inventory.refresh(node):
            self.request_early_round(now)
        job.node, job.gpus, job.is_known, job.stop = None, (), False, ""
        reserved_on, reserved = job.reserved_on, job.reserved
        self.release_reservation(job)
        if end is JobEnd.DONE:
            job.progress_ppm = WHOLE_PPM
            self.over(job, JobState.DONE, detail, now)
        elif job.is_cancelled:
            self.over(job, JobState.CANCELLED, "cancelled", now)
        elif end is JobEnd.FAILED and not was_stopped:
            self._failed(job, detail or "its program failed", now)
        elif end is JobEnd.REFUSED:
            self._wait(job, detail or "its node could not start it", now, _AGAIN_NS)
        else:
            job.evictions += 1
            is_pushed_out = is_reported and not was_stopped
            for_ns = self._pause_ns(job, now) if is_pushed_out else 0
            self._wait(job, was_stopped or detail or "its GPU was needed by other work", now, for_ns)
            if reserved_on is not None and not why_not(self.inventory, self.job_table, job, reserved_on, reserved):
                return [self.start(job, reserved_on, reserved, now)]
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
        self.job_table.move(job, JobState.WAITING, now)
        self.request_early_round(job.after)

    def over(self, job: Job, state: JobState, why: str, now: Instant) -> None:
        """Move a job to a final state."""
        job.why, job.ended = why, now
        self.job_table.move(job, state, now)
        self.job_table.forget(self.settings.remember)

    def release_reservation(self, job: Job) -> None:
        """Release the GPUs that are reserved for a job."""
        node = job.reserved_on
        if node is not None:
            for gpu in job.reserved:
                node.release(gpu, job)
            job.reserved_on, job.reserved = None, ()
            self.inventory.refresh(node)

    # -- learning ---------------------------------------------------------------------------------------------------

    def learn(self, job: Job, node: Node, rate_ppm: int) -> None:
        """Correct the predictor by the speed of a running job, unless that is close to the last one."""
        if abs(rate_ppm - job.rate_ppm) * _LEARNED_STEPS < WHOLE_PPM or job.gpus[0] >= len(node.gpus):
            return
        job.rate_ppm = rate_ppm
        kind = self.inventory.kind_for_holder(node, job.gpus[0])
        predicted = self.pair_weights.predicted(self.job_table.kinds[job.kind], kind)
        profile = job.spec.profile or job.spec.name
        self.pair_weights.predictor.learn(profile, co_runner_key(kind.online), predicted, rate_ppm / WHOLE_PPM)
