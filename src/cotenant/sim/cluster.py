"""What would a cluster do? Nodes, online load, jobs and their progress as arrays, in steps as long as nodes' reports.

The machine of the cluster decides; here is what is true. Nothing of this asks what the machine believes: jobs go as
fast as `sim/physics/colocated.py` says, and nodes report only what nodes can see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cotenant.domain.cluster import Attempt, AttemptReport, JobEnd
from cotenant.domain.clusters import AckEnd, Answer, ClusterEvent, JobSubmitted, NodeTold, StartJob, StopJob
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import Instant
from cotenant.format.cluster_csv import TraceNode
from cotenant.format.scenario_cluster import OnlineConfig
from cotenant.sim.cluster_fleet import DISABLED, HEALTHY, OVERLIMIT, Fleet
from cotenant.sim.cluster_jobs import Book, BrokenPromiseError, Brought, Fate
from cotenant.sim.cluster_seen import Seen
from cotenant.sim.loop import SimLoop
from cotenant.sim.physics.colocated import Colocated, Together

NOBODY = -1


class ClusterPlan(NamedTuple):
    """All that a world is made of before it begins."""

    nodes: Sequence[TraceNode]
    jobs: Sequence[Brought]
    """In the order in which they are brought."""
    online: OnlineConfig
    seed: int
    report_ns: int
    span_ns: int
    way: str
    checkpoint_ns: int
    lease_ns: int
    saves: bool
    """Whether a job that is told to stop saves its work first."""
    job_failure: float = 0.0


class ClusterWorld:
    """The truth, and the nodes' side of what is said. It is the door through which the cluster's machine speaks."""

    def __init__(
        self,
        plan: ClusterPlan,
        physics: Colocated,
        loop: SimLoop,
        tell: Callable[[ClusterEvent, Instant], bool],
        waiting: Callable[[], int],
    ) -> None:
        """`tell` brings an event to the cluster's brain, if there is one now; `waiting`: how many jobs wait for it."""
        self._plan, self._physics, self._loop, self._tell, self._waiting = plan, physics, loop, tell, waiting
        self.fleet = Fleet(plan.nodes, physics, plan.online, plan.way, np.random.default_rng([plan.seed, 1]))
        self.book = Book(plan.jobs, plan.checkpoint_ns)
        self.seen = Seen(self.fleet.count, plan.span_ns)
        self._fails = np.random.default_rng([plan.seed, 2])
        count = self.fleet.count
        self._kinds = np.append(self.book.kind, NOBODY)
        self.job = np.full(count, NOBODY, dtype=np.int64)
        """On each GPU."""
        self._bytes = np.zeros(count)
        self._at: Instant = 0
        nodes = len(plan.nodes)
        self.index = {node.name: place for place, node in enumerate(plan.nodes)}
        self.epoch = [1] * nodes
        self.down = [False] * nodes
        self.cut = [False] * nodes
        self._seen_number = [0] * nodes
        self._here: list[dict[int, Attempt]] = [{} for _ in range(nodes)]
        self._ends: list[dict[Attempt, AttemptReport]] = [{} for _ in range(nodes)]
        self._gpus: list[tuple[Any, ...]] = [()] * nodes
        self._said: list[NodeTold | None] = [None] * nodes
        self._dirty = [True] * nodes
        self._heard: list[Instant] = [0] * nodes
        self._is_fenced = [False] * nodes
        self._running = 0
        self._stale = True
        self._now: Together | None = None
        self._alone: Together | None = None
        self.refused = 0

    # -- time ---------------------------------------------------------------------------------------------------------

    def step(self, _: Any, now: Instant) -> None:
        """Loads move, nodes see and act, and all of them report."""
        self._loop.at(now + self._plan.report_ns, self.step, None)
        self.settle(now)
        self.fleet.breathe(now, self._plan.report_ns)
        self._stale = True
        over = np.unique(self.job[(self.fleet.condition == OVERLIMIT) & (self.job != NOBODY)])
        for job in over.tolist():
            self.end(job, JobEnd.EVICTED, now, "online work needs the GPU", is_told=True)
        self._refresh()
        self._report(now)

    def settle(self, now: Instant) -> None:
        """Let everything go on as it is until now. Whoever changes anything calls this first."""
        ns = now - self._at
        if ns <= 0:
            return
        self._refresh()
        together, alone = self._now, self._alone
        assert together is not None
        assert alone is not None
        jobs = np.flatnonzero(self.book.fate == Fate.RUNNING)
        rate = self._rates(jobs, together)
        ran, ended = self.book.run(jobs, rate, ns)
        self._running = len(jobs)
        by_job = np.zeros(len(self.book.work) + 1)  # one more, of nobody: index -1 finds it
        by_job[jobs] = ran
        ran_ns = by_job[self.job]
        self._see(ns, together, alone, ran_ns)
        begin = self._at
        self._at = now
        for place in np.flatnonzero(ended).tolist():
            job = int(jobs[place])
            how = JobEnd.DONE if self.book.done[job] >= self.book.work[job] else JobEnd.FAILED
            self.end(job, how, begin + float(ran[place]), "" if how is JobEnd.DONE else "its program failed")

    def _see(self, ns: int, together: Together, alone: Together, ran_ns: Any) -> None:
        """Where a job ended on the way, its GPU was for a part of the time as it is without it."""
        fleet = self.fleet
        part = ran_ns / ns
        up = fleet.up & ~fleet.faulty

        def mixed(with_job: Any, without: Any) -> Any:
            return np.where(up, with_job * part + without * (1 - part), 0.0)

        online = np.where(up, fleet.online_bytes, 0.0) / fleet.memory_bytes
        now = {
            "utilization": mixed(together.utilization, alone.utilization),
            "utilization_before": np.where(up, alone.utilization, 0.0),
            "sm_activity": mixed(together.sm_activity, alone.sm_activity),
            "sm_activity_before": np.where(up, alone.sm_activity, 0.0),
            "memory": online + np.where(up, self._bytes * part, 0.0) / fleet.memory_bytes,
            "memory_before": online,
            "offline_speed": together.rate * part,
            "online_load": np.where(up, fleet.load, 0.0),
            "slowdowns": mixed(together.slowdown, 1.0),
            "served": up & (fleet.service >= 0),
            "load": fleet.load,
            "running": self._running,
            "waiting": self._waiting(),
        }
        self.seen.span(self._at, ns, now, ran_ns, up)

    def _rates(self, jobs: Any, together: Together) -> Any:
        """A job goes as fast as the slowest of its GPUs lets it."""
        slowest = np.full(len(self.book.work), np.inf)
        here = np.flatnonzero(self.job != NOBODY)
        np.minimum.at(slowest, self.job[here], together.rate[here].astype(float))
        return slowest[jobs]

    def _refresh(self) -> None:
        """What GPUs do now, with and without their offline jobs."""
        if not self._stale:
            return
        fleet = self.fleet
        kind = self._kinds[self.job]
        self._now = self._physics.together(fleet.service, fleet.load, kind, fleet.share, self._plan.way)
        nobody = np.full(fleet.count, NOBODY)
        self._alone = self._physics.together(fleet.service, fleet.load, nobody, fleet.share, self._plan.way)
        self._stale = False

    # -- what nodes say -----------------------------------------------------------------------------------------------

    def _report(self, now: Instant) -> None:
        book, fleet = self.book, self.fleet
        jobs = np.flatnonzero(book.fate == Fate.RUNNING)
        assert self._now is not None
        for place in np.unique(book.node[book.news(jobs, self._rates(jobs, self._now))]).tolist():
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
                self._unheard(place)
                continue
            said = self._said[place]
            if said is None or self._dirty[place]:
                said = self._said[place] = self._told(place, node.name)
                self._dirty[place] = False
            if self._tell(said, now):
                self._heard[place] = now
            else:
                self._unheard(place)

    def _unheard(self, place: int) -> None:
        """A node that does not reach the cluster for its lease ends its jobs by itself, to the instant."""
        if not self._is_fenced[place]:
            self._is_fenced[place] = True
            self._loop.at(self._heard[place] + self._plan.lease_ns, self._run_out, place)

    def _run_out(self, place: int, now: Instant) -> None:
        self._is_fenced[place] = False
        if self.down[place] or self._heard[place] + self._plan.lease_ns > now:
            return
        self.settle(now)
        for job in list(self._here[place]):
            self.end(job, JobEnd.EVICTED, now, "its node does not reach the cluster", is_told=True)

    def _told(self, place: int, name: str) -> NodeTold:
        report = self.book.report
        attempts = [report(job) for job in self._here[place]]
        attempts += self._ends[place].values()
        return NodeTold(name, self.epoch[place], self._gpus[place], tuple(attempts), self._seen_number[place])

    # -- what nodes are told ------------------------------------------------------------------------------------------

    def _hears(self, place: int, number: int) -> bool:
        if self.down[place] or self.cut[place]:
            return False
        if number > self._seen_number[place]:
            self._seen_number[place] = number
            self._dirty[place] = True
        return True

    def start(self, order: StartJob) -> None:
        """A node begins an attempt, unless the order is stale or a GPU is not to be had."""
        place = self.index[order.node]
        fresh = order.attempt.number > self._seen_number[place]
        if not self._hears(place, order.attempt.number) or order.epoch != self.epoch[place] or not fresh:
            return
        now = self._loop.now()
        self.settle(now)
        job = self.book.place[order.attempt.job]
        gpus = self.fleet.first[place] + np.array(order.gpus)
        if len(gpus) != self.book.gpus[job]:
            raise BrokenPromiseError(f"{order.attempt.job} wants {self.book.gpus[job]} GPUs and gets {len(gpus)}")
        if (self.job[gpus] != NOBODY).any():
            raise BrokenPromiseError(f"{order.node} is to run {order.attempt.job} on a GPU that another job has")
        self._dirty[place] = True
        if self.book.fate[job] == Fate.DONE:
            # Its end was not heard of: its node was cut off, or died right after. It finds its work done.
            told = AttemptReport(order.attempt, order.gpus, WHOLE_PPM, 0, JobEnd.DONE, "its work was done already")
            self._ends[place][order.attempt] = told
            return
        needs = float(self.book.specs[job].memory_bytes)
        room = self.fleet.memory_bytes[gpus] - self.fleet.online_bytes[gpus]
        if (self.fleet.condition[gpus] != HEALTHY).any() or (room < needs).any():
            self.refused += 1
            told = AttemptReport(order.attempt, order.gpus, 0, 0, JobEnd.REFUSED, "the GPU is not to be had now")
            self._ends[place][order.attempt] = told
            return
        self.book.start(job, order.attempt, (place, order.gpus), now, self._goal(job))
        self.job[gpus] = job
        self._bytes[gpus] = needs
        self._here[place][job] = order.attempt
        self._stale = True

    def stop(self, order: StopJob) -> None:
        """A node ends an attempt in good order."""
        place = self.index[order.node]
        job = self.book.place.get(order.attempt.job, NOBODY)
        if self._hears(place, order.attempt.number) and self._here[place].get(job) == order.attempt:
            self.settle(self._loop.now())
            if job in self._here[place]:  # it may have ended by itself just now
                self.end(job, JobEnd.EVICTED, self._loop.now(), order.why, is_told=True)

    def acknowledge(self, order: AckEnd) -> None:
        """A node may forget an end."""
        place = self.index[order.node]
        if self._hears(place, order.attempt.number) and self._ends[place].pop(order.attempt, None) is not None:
            self._dirty[place] = True

    def answer(self, answer: Answer) -> None:
        """Whoever brought a job hears that it was taken, or not."""
        if answer.reject is not None:
            self.book.fate[answer.peer - 1] = Fate.REFUSED

    def _goal(self, job: int) -> float:
        """Where this attempt ends: some fail on the way, by chance."""
        work, safe = float(self.book.work[job]), float(self.book.safe[job])
        if not self._plan.job_failure or self._fails.random() >= self._plan.job_failure:
            return work
        return safe + (work - safe) * float(self._fails.random())

    # -- what happens -------------------------------------------------------------------------------------------------

    def end(self, job: int, how: JobEnd, when: float, detail: str, *, is_told: bool = False) -> None:
        """An attempt ends; its node will say so until that was taken note of. One that is told to may save its work."""
        place = int(self.book.node[job])
        gpus = self.fleet.first[place] + np.array(self.book.on[job])
        report = self.book.end(job, how, when, detail, saves=is_told and self._plan.saves)
        self._free(gpus)
        del self._here[place][job]
        self._ends[place][report.attempt] = report
        self._dirty[place] = True

    def _free(self, gpus: Any) -> None:
        self.job[gpus] = NOBODY
        self._bytes[gpus] = 0.0
        self._stale = True

    def bring(self, job: int, now: Instant) -> None:
        """A job comes, and the cluster is told of it; the answer will name its place, from 1 on."""
        self.book.fate[job] = Fate.IDLE
        self._tell(JobSubmitted(self.book.specs[job], peer=job + 1), now)

    def crash(self, place: int, now: Instant) -> None:
        """A node dies, and all that ran there."""
        self.settle(now)
        for job in list(self._here[place]):
            self.end(job, JobEnd.EVICTED, now, "its node died")
        self._ends[place].clear()
        self.down[place] = True
        self._power(place, up=False)

    def come_back(self, place: int, now: Instant) -> None:
        """It runs again, and knows nothing of what was."""
        self.settle(now)
        self._heard[place] = now
        self.down[place] = False
        self.epoch[place] += 1
        self._seen_number[place] = 0
        self._dirty[place] = True
        self._power(place, up=True)

    def fault(self, gpu: int, now: Instant, *, on: bool) -> None:
        """A GPU fails, and whatever ran there; or it is back."""
        self.settle(now)
        self.fleet.faulty[gpu] = on
        self.fleet.judge()
        self._stale = True
        if on and (job := int(self.job[gpu])) != NOBODY:
            self.end(job, JobEnd.EVICTED, now, "its GPU failed")
        assert not on or self.fleet.condition[gpu] == DISABLED

    def _power(self, place: int, *, up: bool) -> None:
        self.fleet.up[self.fleet.first[place] : self.fleet.first[place + 1]] = up
        self._stale = True
