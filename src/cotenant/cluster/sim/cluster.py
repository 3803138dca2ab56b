"""Simulated nodes of a cluster: online load, jobs and their progress as arrays, in steps of the report period.

The controller decides; this module holds the true state and never reads the controller's beliefs. Jobs progress as fast
as `sim/physics/colocated.py` computes, and nodes report only what real nodes can observe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cotenant.cluster.model.cluster import Attempt, AttemptReport, JobEnd
from cotenant.cluster.model.event import ClusterEvent, JobSubmitted, NodeReport, StartJob, StopJob
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
        self._settled_at: Instant = 0
        nodes = len(plan.nodes)
        self.index = {node.name: index for index, node in enumerate(plan.nodes)}
        self.epoch = [1] * nodes
        self.down = [False] * nodes
        self.cut = [False] * nodes
        self._highest_attempt = [0] * nodes
        self._attempts_on: list[dict[int, Attempt]] = [{} for _ in range(nodes)]
        self._ends: list[dict[Attempt, AttemptReport]] = [{} for _ in range(nodes)]
        self._gpus: list[tuple[Any, ...]] = [()] * nodes
        self._last_reports: list[NodeReport | None] = [None] * nodes
        self._dirty = [True] * nodes
        self._last_contact: list[Instant] = [0] * nodes
        self._is_fenced = [False] * nodes
        self._running = 0
        self._stale = True
        self._shared: SharingResult | None = None
        self._alone: SharingResult | None = None
        self.refused = 0

    # -- time ---------------------------------------------------------------------------------------------------------

    def step(self, _: Any, now: Instant) -> None:
        """Advance the loads by one step, let nodes evict, and send all reports."""
        self._loop.at(now + self._plan.report_ns, self.step, None)
        self.settle(now)
        self.fleet.advance(now, self._plan.report_ns)
        self._stale = True
        evicted = np.unique(self.job[(self.fleet.condition == OVERLIMIT) & (self.job != ABSENT)])
        for job in evicted.tolist():
            self.end(job, JobEnd.EVICTED, now, "online work needs the GPU", is_reported=True)
        self._refresh()
        self._report(now)

    def settle(self, now: Instant) -> None:
        """Advance the simulation to now without changes; every change calls this first."""
        ns = now - self._settled_at
        if ns <= 0:
            return
        self._refresh()
        shared, alone = self._shared, self._alone
        assert shared is not None
        assert alone is not None
        jobs = np.flatnonzero(self.sim_jobs.state == SimJobState.RUNNING)
        rate = self._rates(jobs, shared)
        ran_by_job, is_ended = self.sim_jobs.run(jobs, rate, ns)
        self._running = len(jobs)
        by_job = np.zeros(len(self.sim_jobs.work) + 1)  # one more entry, for GPUs without a job: index -1 finds it
        by_job[jobs] = ran_by_job
        ran_ns = by_job[self.job]
        self._record(ns, shared, alone, ran_ns)
        begin = self._settled_at
        self._settled_at = now
        for index in np.flatnonzero(is_ended).tolist():
            job = int(jobs[index])
            outcome = JobEnd.DONE if self.sim_jobs.done[job] >= self.sim_jobs.work[job] else JobEnd.FAILED
            detail = "" if outcome is JobEnd.DONE else "its program failed"
            self.end(job, outcome, begin + float(ran_by_job[index]), detail)

    def _record(self, ns: int, shared: SharingResult, alone: SharingResult, ran_ns: Any) -> None:
        """Record measurements; a GPU whose job ended within the span counts partly without it."""
        fleet = self.fleet
        part = ran_ns / ns
        up = fleet.up & ~fleet.faulty

        def mixed(with_job: Any, without_job: Any) -> Any:
            return np.where(up, with_job * part + without_job * (1 - part), 0.0)

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
            "service": mixed(shared.service, 1.0),
            "served": up & (fleet.service >= 0),
            "load": fleet.load,
            "running": self._running,
            "waiting": self._waiting(),
        }
        self.measurements.span(self._settled_at, ns, now, ran_ns, up)

    def _rates(self, jobs: Any, shared: SharingResult) -> Any:
        """Return the speed of jobs, each that of its slowest GPU."""
        slowest = np.full(len(self.sim_jobs.work), np.inf)
        occupied = np.flatnonzero(self.job != ABSENT)
        np.minimum.at(slowest, self.job[occupied], shared.rate[occupied].astype(float))
        return slowest[jobs]

    def _refresh(self) -> None:
        """Recompute what GPUs do with and without their offline jobs."""
        if not self._stale:
            return
        fleet = self.fleet
        kind = self._kinds[self.job]
        self._shared = self._physics.evaluate(fleet.service, fleet.load, kind, fleet.share, self._plan.mode)
        absent = np.full(fleet.count, ABSENT)
        self._alone = self._physics.evaluate(fleet.service, fleet.load, absent, fleet.share, self._plan.mode)
        self._stale = False

    # -- reports of nodes ---------------------------------------------------------------------------------------------

    def _report(self, now: Instant) -> None:
        sim_jobs, fleet = self.sim_jobs, self.fleet
        jobs = np.flatnonzero(sim_jobs.state == SimJobState.RUNNING)
        assert self._shared is not None
        for node_index in np.unique(
            sim_jobs.node[sim_jobs.changed_reports(jobs, self._rates(jobs, self._shared))]
        ).tolist():
            self._dirty[node_index] = True
        codes, changed = fleet.changed()
        for node_index in changed.tolist():
            self._dirty[node_index] = True
            row = codes[fleet.first[node_index] : fleet.first[node_index + 1]]
            self._gpus[node_index] = tuple([fleet.report(code) for code in row])
        for index, node in enumerate(self._plan.nodes):
            if self.down[index]:
                continue
            if self.cut[index]:
                self._lost_contact(index)
                continue
            report = self._last_reports[index]
            if report is None or self._dirty[index]:
                report = self._last_reports[index] = self._node_report(index, node.name)
                self._dirty[index] = False
            if self._deliver(report, now):
                self._last_contact[index] = now
                self._forget_ends(index, report)
            else:
                self._lost_contact(index)

    def _forget_ends(self, node_index: int, report: NodeReport) -> None:
        """Forget the ends of attempts that the controller has received."""
        for attempt_report in report.attempts:
            if attempt_report.end is not None:
                self._ends[node_index].pop(attempt_report.attempt, None)
                self._dirty[node_index] = True

    def _lost_contact(self, node_index: int) -> None:
        """Schedule the end of the lease of a node that cannot reach the controller; it ends its jobs then."""
        if not self._is_fenced[node_index]:
            self._is_fenced[node_index] = True
            self._loop.at(self._last_contact[node_index] + self._plan.lease_ns, self._run_out, node_index)

    def _run_out(self, node_index: int, now: Instant) -> None:
        self._is_fenced[node_index] = False
        if self.down[node_index] or self._last_contact[node_index] + self._plan.lease_ns > now:
            return
        self.settle(now)
        for job in list(self._attempts_on[node_index]):
            self.end(job, JobEnd.EVICTED, now, "its node does not reach the cluster", is_reported=True)

    def _node_report(self, node_index: int, name: str) -> NodeReport:
        report = self.sim_jobs.report
        attempts = [report(job) for job in self._attempts_on[node_index]]
        attempts += self._ends[node_index].values()
        return NodeReport(
            name, self.epoch[node_index], self._gpus[node_index], tuple(attempts), self._highest_attempt[node_index]
        )

    # -- orders to nodes ----------------------------------------------------------------------------------------------

    def _receive(self, node_index: int, number: int) -> bool:
        if self.down[node_index] or self.cut[node_index]:
            return False
        if number > self._highest_attempt[node_index]:
            self._highest_attempt[node_index] = number
            self._dirty[node_index] = True
        return True

    def start(self, order: StartJob) -> None:
        """Start an attempt, unless the order is stale or a GPU is unavailable."""
        node_index = self.index[order.node]
        fresh = order.attempt.number > self._highest_attempt[node_index]
        if not self._receive(node_index, order.attempt.number) or order.epoch != self.epoch[node_index] or not fresh:
            return
        now = self._loop.now()
        self.settle(now)
        job = self.sim_jobs.index[order.attempt.job]
        gpus = self.fleet.first[node_index] + np.array(order.gpus)
        if len(gpus) != self.sim_jobs.gpus[job]:
            raise GuaranteeViolationError(
                f"{order.attempt.job} wants {self.sim_jobs.gpus[job]} GPUs and gets {len(gpus)}"
            )
        if (self.job[gpus] != ABSENT).any():
            raise GuaranteeViolationError(f"{order.node} is to run {order.attempt.job} on a GPU that another job has")
        self._dirty[node_index] = True
        if self.sim_jobs.state[job] == SimJobState.DONE:
            # The controller never received the end of the job: its node was cut off or crashed. The new
            # attempt ends at once.
            report = AttemptReport(order.attempt, order.gpus, WHOLE_PPM, 0, JobEnd.DONE, "its work was done already")
            self._ends[node_index][order.attempt] = report
            return
        needs = float(self.sim_jobs.specs[job].memory_bytes)
        room = self.fleet.memory_bytes[gpus] - self.fleet.online_bytes[gpus]
        if (self.fleet.condition[gpus] != HEALTHY).any() or (room < needs).any():
            self.refused += 1
            report = AttemptReport(order.attempt, order.gpus, 0, 0, JobEnd.REFUSED, "the GPU is not available now")
            self._ends[node_index][order.attempt] = report
            return
        self.sim_jobs.start(job, order.attempt, (node_index, order.gpus), now, self._goal(job))
        self.job[gpus] = job
        self._bytes[gpus] = needs
        self._attempts_on[node_index][job] = order.attempt
        self._stale = True

    def stop(self, order: StopJob) -> None:
        """Stop an attempt gracefully."""
        node_index = self.index[order.node]
        job = self.sim_jobs.index.get(order.attempt.job, ABSENT)
        if self._receive(node_index, order.attempt.number) and self._attempts_on[node_index].get(job) == order.attempt:
            self.settle(self._loop.now())
            if job in self._attempts_on[node_index]:  # it may have ended by itself just now
                self.end(job, JobEnd.EVICTED, self._loop.now(), order.why, is_reported=True)

    def _goal(self, job: int) -> float:
        """Return the work at which this attempt ends; some attempts fail at random."""
        work, safe = float(self.sim_jobs.work[job]), float(self.sim_jobs.safe[job])
        if not self._plan.job_failure or self._fails.random() >= self._plan.job_failure:
            return work
        return safe + (work - safe) * float(self._fails.random())

    # -- events of the simulation -------------------------------------------------------------------------------------

    def end(self, job: int, outcome: JobEnd, end_ns: float, detail: str, *, is_reported: bool = False) -> None:
        """End an attempt; its node reports that until a report reaches the controller.

        An attempt that was stopped may save its work.
        """
        node_index = int(self.sim_jobs.node[job])
        gpus = self.fleet.first[node_index] + np.array(self.sim_jobs.on[job])
        report = self.sim_jobs.end(job, outcome, end_ns, detail, saves=is_reported and self._plan.saves)
        self._free(gpus)
        del self._attempts_on[node_index][job]
        self._ends[node_index][report.attempt] = report
        self._dirty[node_index] = True

    def _free(self, gpus: Any) -> None:
        self.job[gpus] = ABSENT
        self._bytes[gpus] = 0.0
        self._stale = True

    def submit(self, job: int, now: Instant) -> None:
        """Submit a job."""
        self.sim_jobs.state[job] = SimJobState.IDLE
        self._deliver(JobSubmitted(self.sim_jobs.specs[job]), now)

    def crash(self, node_index: int, now: Instant) -> None:
        """Crash a node with everything that runs there."""
        self.settle(now)
        for job in list(self._attempts_on[node_index]):
            self.end(job, JobEnd.EVICTED, now, "its node died")
        self._ends[node_index].clear()
        self.down[node_index] = True
        self._power(node_index, up=False)

    def restart(self, node_index: int, now: Instant) -> None:
        """Restart a node without any memory of earlier attempts."""
        self.settle(now)
        self._last_contact[node_index] = now
        self.down[node_index] = False
        self.epoch[node_index] += 1
        self._highest_attempt[node_index] = 0
        self._dirty[node_index] = True
        self._power(node_index, up=True)

    def fault(self, gpu: int, now: Instant, *, on: bool) -> None:
        """Make a GPU fail, with the job on it, or repair it."""
        self.settle(now)
        self.fleet.faulty[gpu] = on
        self.fleet.update_conditions()
        self._stale = True
        if on and (job := int(self.job[gpu])) != ABSENT:
            self.end(job, JobEnd.EVICTED, now, "its GPU failed")
        assert not on or self.fleet.condition[gpu] == DISABLED

    def _power(self, node_index: int, *, up: bool) -> None:
        self.fleet.up[self.fleet.first[node_index] : self.fleet.first[node_index + 1]] = up
        self._stale = True
