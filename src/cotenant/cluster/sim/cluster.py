"""Simulated nodes of a cluster: online load, jobs and their progress as arrays, in steps of the report period.

The controller decides; this module holds the true state and never reads the controller's beliefs. Jobs progress as fast
as `sim/physics/colocated.py` computes, and nodes report only what real nodes can observe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cotenant.cluster.model.cluster import Attempt, AttemptReport, JobEnd
from cotenant.cluster.model.event import AckEnd, Answer, ClusterEvent, JobSubmitted, NodeReport, StartJob, StopJob
from cotenant.cluster.sim.fleet import DISABLED, HEALTHY, OVERLIMIT, Fleet
from cotenant.cluster.sim.jobs import GuaranteeViolationError, ScheduledJob, SimJobs, SimJobState
from cotenant.cluster.sim.measurements import ClusterMeasurements
from cotenant.cluster.sim.physics.colocated import ColocationModel, SharingResult
from cotenant.cluster.sim.scenario import OnlineConfig
from cotenant.cluster.sim.table import TraceNode
from cotenant.runner.sim_loop import SimLoop
from cotenant.units.instant import Instant
from cotenant.units.share import WHOLE_PPM

ABSENT = -1


class ClusterPlan(NamedTuple):
    """Parameters of a simulated cluster."""

    nodes: Sequence[TraceNode]
    jobs: Sequence[ScheduledJob]
    """In the order of submission."""
    online: OnlineConfig
    seed: int
    report_ns: int
    span_ns: int
    mode: str
    checkpoint_ns: int
    lease_ns: int
    saves: bool
    """Whether a job that is stopped saves its work first."""
    job_failure: float = 0.0


class SimCluster:
    """True state of the cluster, and the nodes' side of the protocol; implements the controller's transport."""

    def __init__(
        self,
        plan: ClusterPlan,
        physics: ColocationModel,
        loop: SimLoop,
        deliver: Callable[[ClusterEvent, Instant], bool],
        waiting: Callable[[], int],
    ) -> None:
        """Build the cluster.

        `deliver` passes an event to the controller, and returns whether it is up; `waiting` returns the number
        of jobs that wait for it.
        """
        self._plan, self._physics, self._loop, self._deliver, self._waiting = plan, physics, loop, deliver, waiting
        self.fleet = Fleet(plan.nodes, physics, plan.online, plan.mode, np.random.default_rng([plan.seed, 1]))
        self.sim_jobs = SimJobs(plan.jobs, plan.checkpoint_ns)
        self.measurements = ClusterMeasurements(self.fleet.count, plan.span_ns)
        self._fails = np.random.default_rng([plan.seed, 2])
        count = self.fleet.count
        self._kinds = np.append(self.sim_jobs.kind, ABSENT)
        self.job = np.full(count, ABSENT, dtype=np.int64)
        """Index of the job on each GPU."""
        self._bytes = np.zeros(count)
        self._at: Instant = 0
        nodes = len(plan.nodes)
        self.index = {node.name: place for place, node in enumerate(plan.nodes)}
        self.epoch = [1] * nodes
        self.down = [False] * nodes
        self.cut = [False] * nodes
        self._highest_attempt = [0] * nodes
        self._here: list[dict[int, Attempt]] = [{} for _ in range(nodes)]
        self._ends: list[dict[Attempt, AttemptReport]] = [{} for _ in range(nodes)]
        self._gpus: list[tuple[Any, ...]] = [()] * nodes
        self._last_reports: list[NodeReport | None] = [None] * nodes
        self._dirty = [True] * nodes
        self._last_contact: list[Instant] = [0] * nodes
        self._is_fenced = [False] * nodes
        self._running = 0
        self._stale = True
        self._now: SharingResult | None = None
        self._alone: SharingResult | None = None
        self.refused = 0

    # -- time ---------------------------------------------------------------------------------------------------------

    def step(self, _: Any, now: Instant) -> None:
        """Advance the loads by one step, let nodes evict, and send all reports."""
        self._loop.at(now + self._plan.report_ns, self.step, None)
        self.settle(now)
        self.fleet.advance(now, self._plan.report_ns)
        self._stale = True
        over = np.unique(self.job[(self.fleet.condition == OVERLIMIT) & (self.job != ABSENT)])
        for job in over.tolist():
            self.end(job, JobEnd.EVICTED, now, "online work needs the GPU", is_reported=True)
        self._refresh()
        self._report(now)

    def settle(self, now: Instant) -> None:
        """Advance the simulation to now without changes; every change calls this first."""
        ns = now - self._at
        if ns <= 0:
            return
        self._refresh()
        shared, alone = self._now, self._alone
        assert shared is not None
        assert alone is not None
        jobs = np.flatnonzero(self.sim_jobs.state == SimJobState.RUNNING)
        rate = self._rates(jobs, shared)
        ran, ended = self.sim_jobs.run(jobs, rate, ns)
        self._running = len(jobs)
        by_job = np.zeros(len(self.sim_jobs.work) + 1)  # one more entry, for GPUs without a job: index -1 finds it
        by_job[jobs] = ran
        ran_ns = by_job[self.job]
        self._record(ns, shared, alone, ran_ns)
        begin = self._at
        self._at = now
        for place in np.flatnonzero(ended).tolist():
            job = int(jobs[place])
            how = JobEnd.DONE if self.sim_jobs.done[job] >= self.sim_jobs.work[job] else JobEnd.FAILED
            self.end(job, how, begin + float(ran[place]), "" if how is JobEnd.DONE else "its program failed")

    def _record(self, ns: int, shared: SharingResult, alone: SharingResult, ran_ns: Any) -> None:
        """Record measurements; a GPU whose job ended within the span counts partly without it."""
        fleet = self.fleet
        part = ran_ns / ns
        up = fleet.up & ~fleet.faulty

        def mixed(with_job: Any, without: Any) -> Any:
            return np.where(up, with_job * part + without * (1 - part), 0.0)

        online = np.where(up, fleet.online_bytes, 0.0) / fleet.memory_bytes
        now = {
            "utilization": mixed(shared.utilization, alone.utilization),
            "utilization_before": np.where(up, alone.utilization, 0.0),
            "sm_activity": mixed(shared.sm_activity, alone.sm_activity),
            "sm_activity_before": np.where(up, alone.sm_activity, 0.0),
            "memory": online + np.where(up, self._bytes * part, 0.0) / fleet.memory_bytes,
            "memory_before": online,
            "offline_speed": shared.rate * part,
            "online_load": np.where(up, fleet.load, 0.0),
            "slowdowns": mixed(shared.slowdown, 1.0),
            "served": up & (fleet.service >= 0),
            "load": fleet.load,
            "running": self._running,
            "waiting": self._waiting(),
        }
        self.measurements.span(self._at, ns, now, ran_ns, up)

    def _rates(self, jobs: Any, shared: SharingResult) -> Any:
        """Return the speed of jobs, each that of its slowest GPU."""
        slowest = np.full(len(self.sim_jobs.work), np.inf)
        here = np.flatnonzero(self.job != ABSENT)
        np.minimum.at(slowest, self.job[here], shared.rate[here].astype(float))
        return slowest[jobs]

    def _refresh(self) -> None:
        """Recompute what GPUs do with and without their offline jobs."""
        if not self._stale:
            return
        fleet = self.fleet
        kind = self._kinds[self.job]
        self._now = self._physics.evaluate(fleet.service, fleet.load, kind, fleet.share, self._plan.mode)
        absent = np.full(fleet.count, ABSENT)
        self._alone = self._physics.evaluate(fleet.service, fleet.load, absent, fleet.share, self._plan.mode)
        self._stale = False

    # -- reports of nodes ---------------------------------------------------------------------------------------------

    def _report(self, now: Instant) -> None:
        sim_jobs, fleet = self.sim_jobs, self.fleet
        jobs = np.flatnonzero(sim_jobs.state == SimJobState.RUNNING)
        assert self._now is not None
        for place in np.unique(sim_jobs.node[sim_jobs.changed_reports(jobs, self._rates(jobs, self._now))]).tolist():
            self._dirty[place] = True
        codes, changed = fleet.changed()
        for place in changed.tolist():
            self._dirty[place] = True
            row = codes[fleet.first[place] : fleet.first[place + 1]]
            self._gpus[place] = tuple([fleet.report(code) for code in row])
        for place, node in enumerate(self._plan.nodes):
            if self.down[place]:
                continue
            if self.cut[place]:
                self._lost_contact(place)
                continue
            report = self._last_reports[place]
            if report is None or self._dirty[place]:
                report = self._last_reports[place] = self._node_report(place, node.name)
                self._dirty[place] = False
            if self._deliver(report, now):
                self._last_contact[place] = now
            else:
                self._lost_contact(place)

    def _lost_contact(self, place: int) -> None:
        """Schedule the end of the lease of a node that cannot reach the controller; it ends its jobs then."""
        if not self._is_fenced[place]:
            self._is_fenced[place] = True
            self._loop.at(self._last_contact[place] + self._plan.lease_ns, self._run_out, place)

    def _run_out(self, place: int, now: Instant) -> None:
        self._is_fenced[place] = False
        if self.down[place] or self._last_contact[place] + self._plan.lease_ns > now:
            return
        self.settle(now)
        for job in list(self._here[place]):
            self.end(job, JobEnd.EVICTED, now, "its node does not reach the cluster", is_reported=True)

    def _node_report(self, place: int, name: str) -> NodeReport:
        report = self.sim_jobs.report
        attempts = [report(job) for job in self._here[place]]
        attempts += self._ends[place].values()
        return NodeReport(name, self.epoch[place], self._gpus[place], tuple(attempts), self._highest_attempt[place])

    # -- orders to nodes ----------------------------------------------------------------------------------------------

    def _receive(self, place: int, number: int) -> bool:
        if self.down[place] or self.cut[place]:
            return False
        if number > self._highest_attempt[place]:
            self._highest_attempt[place] = number
            self._dirty[place] = True
        return True

    def start(self, order: StartJob) -> None:
        """Start an attempt, unless the order is stale or a GPU is unavailable."""
        place = self.index[order.node]
        fresh = order.attempt.number > self._highest_attempt[place]
        if not self._receive(place, order.attempt.number) or order.epoch != self.epoch[place] or not fresh:
            return
        now = self._loop.now()
        self.settle(now)
        job = self.sim_jobs.place[order.attempt.job]
        gpus = self.fleet.first[place] + np.array(order.gpus)
        if len(gpus) != self.sim_jobs.gpus[job]:
            raise GuaranteeViolationError(
                f"{order.attempt.job} wants {self.sim_jobs.gpus[job]} GPUs and gets {len(gpus)}"
            )
        if (self.job[gpus] != ABSENT).any():
            raise GuaranteeViolationError(f"{order.node} is to run {order.attempt.job} on a GPU that another job has")
        self._dirty[place] = True
        if self.sim_jobs.state[job] == SimJobState.DONE:
            # The controller never received the end of the job: its node was cut off or crashed. The new
            # attempt ends at once.
            report = AttemptReport(order.attempt, order.gpus, WHOLE_PPM, 0, JobEnd.DONE, "its work was done already")
            self._ends[place][order.attempt] = report
            return
        needs = float(self.sim_jobs.specs[job].memory_bytes)
        room = self.fleet.memory_bytes[gpus] - self.fleet.online_bytes[gpus]
        if (self.fleet.condition[gpus] != HEALTHY).any() or (room < needs).any():
            self.refused += 1
            report = AttemptReport(order.attempt, order.gpus, 0, 0, JobEnd.REFUSED, "the GPU is not to be had now")
            self._ends[place][order.attempt] = report
            return
        self.sim_jobs.start(job, order.attempt, (place, order.gpus), now, self._goal(job))
        self.job[gpus] = job
        self._bytes[gpus] = needs
        self._here[place][job] = order.attempt
        self._stale = True

    def stop(self, order: StopJob) -> None:
        """Stop an attempt gracefully."""
        place = self.index[order.node]
        job = self.sim_jobs.place.get(order.attempt.job, ABSENT)
        if self._receive(place, order.attempt.number) and self._here[place].get(job) == order.attempt:
            self.settle(self._loop.now())
            if job in self._here[place]:  # it may have ended by itself just now
                self.end(job, JobEnd.EVICTED, self._loop.now(), order.why, is_reported=True)

    def acknowledge(self, order: AckEnd) -> None:
        """Forget the end of an attempt."""
        place = self.index[order.node]
        if self._receive(place, order.attempt.number) and self._ends[place].pop(order.attempt, None) is not None:
            self._dirty[place] = True

    def answer(self, answer: Answer) -> None:
        """Record whether a submitted job was accepted."""
        if answer.reject is not None:
            self.sim_jobs.state[answer.peer - 1] = SimJobState.REFUSED

    def _goal(self, job: int) -> float:
        """Return the work at which this attempt ends; some attempts fail at random."""
        work, safe = float(self.sim_jobs.work[job]), float(self.sim_jobs.safe[job])
        if not self._plan.job_failure or self._fails.random() >= self._plan.job_failure:
            return work
        return safe + (work - safe) * float(self._fails.random())

    # -- events of the simulation -------------------------------------------------------------------------------------

    def end(self, job: int, how: JobEnd, when: float, detail: str, *, is_reported: bool = False) -> None:
        """End an attempt; its node reports that until it is acknowledged.

        An attempt that was stopped may save its work.
        """
        place = int(self.sim_jobs.node[job])
        gpus = self.fleet.first[place] + np.array(self.sim_jobs.on[job])
        report = self.sim_jobs.end(job, how, when, detail, saves=is_reported and self._plan.saves)
        self._free(gpus)
        del self._here[place][job]
        self._ends[place][report.attempt] = report
        self._dirty[place] = True

    def _free(self, gpus: Any) -> None:
        self.job[gpus] = ABSENT
        self._bytes[gpus] = 0.0
        self._stale = True

    def submit(self, job: int, now: Instant) -> None:
        """Submit a job; the answer names its index plus 1."""
        self.sim_jobs.state[job] = SimJobState.IDLE
        self._deliver(JobSubmitted(self.sim_jobs.specs[job], peer=job + 1), now)

    def crash(self, place: int, now: Instant) -> None:
        """Crash a node with everything that runs there."""
        self.settle(now)
        for job in list(self._here[place]):
            self.end(job, JobEnd.EVICTED, now, "its node died")
        self._ends[place].clear()
        self.down[place] = True
        self._power(place, up=False)

    def restart(self, place: int, now: Instant) -> None:
        """Restart a node without any memory of earlier attempts."""
        self.settle(now)
        self._last_contact[place] = now
        self.down[place] = False
        self.epoch[place] += 1
        self._highest_attempt[place] = 0
        self._dirty[place] = True
        self._power(place, up=True)

    def fault(self, gpu: int, now: Instant, *, on: bool) -> None:
        """Make a GPU fail, with the job on it, or repair it."""
        self.settle(now)
        self.fleet.faulty[gpu] = on
        self.fleet.update_conditions()
        self._stale = True
        if on and (job := int(self.job[gpu])) != ABSENT:
            self.end(job, JobEnd.EVICTED, now, "its GPU failed")
        assert not on or self.fleet.condition[gpu] == DISABLED

    def _power(self, place: int, *, up: bool) -> None:
        self.fleet.up[self.fleet.first[place] : self.fleet.first[place + 1]] = up
        self._stale = True
