"""What comes of a cluster? A scenario played against the real machine, its figures, and whether its books balance."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.domain.cluster import JobState
from cotenant.domain.clusters import AckEnd, Answer, ClusterAction, ClusterEvent, JobCancelled, StartJob, StopJob
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.errors import ConfigError
from cotenant.experiment.cluster_plan import Cast, cast_of
from cotenant.format.scenario_cluster import ClusterScenario
from cotenant.machine.cluster import ClusterMachine
from cotenant.policy.place.rounds import ROUNDS
from cotenant.sim.cluster import ClusterPlan, ClusterWorld
from cotenant.sim.cluster_brain import Mind, SimBrain
from cotenant.sim.cluster_faults import ClusterFaults
from cotenant.sim.cluster_jobs import Fate
from cotenant.sim.journal import SimJournal
from cotenant.sim.loop import SimLoop
from cotenant.sim.physics.colocated import WAYS, Colocated, built_in

_HOUR_NS: Final = 3_600 * SECOND_NS
_NEAR: Final = 1e-6
Progress = Callable[[int, int], None]
"""Called with how much of the time has passed, and how much there is; nanoseconds of the world."""


class Distribution(msgspec.Struct, frozen=True):
    """Of many figures."""

    mean: float
    p50: float
    p95: float
    p99: float


class ClusterOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a scenario came to. Parts are of all GPU time; `before`: the same load, had nobody shared."""

    seed: int
    place: str
    way: str
    nodes: int
    gpus: int
    hours: float
    jobs: dict[str, int]
    """By their state at the end, as the cluster tells it."""
    left_out: int
    homeless: int
    utilization: float
    utilization_before: float
    sm_activity: float
    sm_activity_before: float
    memory: float
    memory_before: float
    online_slowdown_mean: float
    online_slowdown_p99: float
    offline_speed: float
    """Work done for each GPU and unit of its time: how many whole GPUs' worth of offline work one GPU was."""
    jct_h: Distribution
    """From a job's submission to its end, of those that are done."""
    wait_h: Distribution
    """From its submission to its first start."""
    makespan_h: float
    """Until the last job's end; 0: not all were done."""
    work_done_h: float
    work_lost_h: float
    evictions: int
    """Attempts that were told to end before their job's end, or were lost with their node or GPU."""
    moves: int
    """Of these, those of jobs that the cluster wanted elsewhere."""
    failures: int
    refused: int
    """Attempts that a node would not begin, because its GPU had changed meanwhile."""
    crashes: dict[str, int]
    gpu_time: dict[str, float]
    """Parts of all GPU time: with an offline job on it, free of one, and down."""
    decisions: str
    """A digest of every decision and its instant: equal digests, equal runs."""
    problems: list[str]
    """What does not balance; nothing, or there is a fault in cotenant."""


class Played(msgspec.Struct, frozen=True):
    """An outcome and what it was made of."""

    outcome: ClusterOutcome
    world: ClusterWorld
    machine: Mind


def play_cluster(
    scenario: ClusterScenario,
    where: Path,
    *,
    physics: Colocated | None = None,
    say: Callable[[str], None] | None = None,
    progress: Progress | None = None,
    new_machine: Callable[[], Mind] = ClusterMachine,
) -> Played:
    """One run. `say` gets a line for each decision."""
    if scenario.cluster.place not in ROUNDS:
        remedy = f"choose one of {', '.join(ROUNDS)}"
        raise ConfigError("cluster.place", scenario.cluster.place, remedy, where=str(where))
    way = scenario.way or ROUNDS[scenario.cluster.place].way
    if way not in WAYS:
        raise ConfigError("way", way, f"choose one of {', '.join(WAYS)}, or leave it out", where=str(where))
    physics = physics or built_in()
    cast = cast_of(scenario, where, physics)
    return _Run(scenario, cast, physics, way, say, new_machine).play(progress)


class _Run:
    """A world, its brain and what goes wrong."""

    def __init__(
        self,
        scenario: ClusterScenario,
        cast: Cast,
        physics: Colocated,
        way: str,
        say: Callable[[str], None] | None,
        new_machine: Callable[[], Mind],
    ) -> None:
        self._scenario, self._cast, self._way, self._say = scenario, cast, way, say
        self._digest = hashlib.sha256()
        self._loop = loop = SimLoop()
        report_ns = int(scenario.report)
        settings = scenario.cluster.settings(len(cast.jobs), report_ns)
        journal = SimJournal() if scenario.failures.brain_kills else None
        self._brain = SimBrain(loop, new_machine, settings, self._watch, journal)
        plan = ClusterPlan(
            nodes=cast.nodes,
            jobs=cast.jobs,
            online=scenario.online,
            seed=scenario.seed,
            report_ns=report_ns,
            span_ns=int(scenario.duration + scenario.drain),
            way=way,
            checkpoint_ns=int(scenario.checkpoint),
            lease_ns=settings.lease_ns,
            saves=scenario.saves,
            job_failure=scenario.failures.job_failure / WHOLE_PPM,
        )
        self._world = ClusterWorld(plan, physics, loop, self._brain.tell, self._brain.waiting)
        self._brain.bind(self._world)
        self._faults = ClusterFaults(loop, self._world, self._brain)

    def play(self, progress: Progress | None) -> Played:
        """All of the time, and then what may be drained."""
        scenario, loop, world = self._scenario, self._loop, self._world
        loop.at(0, self._brain.start, None)
        loop.at(0, world.step, None)
        if self._cast.jobs:
            loop.at(self._cast.jobs[0].when_ns, self._bring, 0)
        for when, name in self._cast.cancels:
            loop.at(when, self._cancel, name)
        self._faults.schedule(scenario.failures, scenario.seed, int(scenario.duration))
        report_ns, until_ns = int(scenario.report), int(scenario.duration)
        last_ns = until_ns + int(scenario.drain)
        now = 0
        while now < last_ns and (now < until_ns or self._is_busy()):
            now = min(now + report_ns, until_ns if now < until_ns else last_ns)
            loop.run(now)
            if progress is not None:
                progress(now, last_ns)
        world.settle(now)
        return Played(self._outcome(now), world, self._brain.machine)

    def _is_busy(self) -> bool:
        states = dict(self._brain.machine.counts().jobs)
        return any(count for state, count in states.items() if not state.is_over)

    def _bring(self, job: int, now: Instant) -> None:
        if job + 1 < len(self._cast.jobs):
            self._loop.at(self._cast.jobs[job + 1].when_ns, self._bring, job + 1)
        self._world.bring(job, now)

    def _cancel(self, name: str, now: Instant) -> None:
        self._brain.tell(JobCancelled(name), now)

    def _watch(self, now: Instant, event: ClusterEvent, actions: list[ClusterAction]) -> None:
        del event
        for action in actions:
            line = _line(now, action)
            if not line:
                continue
            self._digest.update(line.encode())
            if self._say is not None:
                self._say(line)

    def _outcome(self, now: Instant) -> ClusterOutcome:
        world, seen, book = self._world, self._world.seen, self._world.book
        states = Counter(told.state for told in self._brain.machine.jobs())
        done = np.flatnonzero(book.fate == Fate.DONE)
        started = np.flatnonzero(book.first_start_ns >= 0)
        came = np.flatnonzero(book.fate != Fate.TO_COME)
        all_over = len(came) == len(book.work) and all(state.is_over for state in states)
        gpu_ns = max(seen.gpus * seen.span_ns, 1)
        return ClusterOutcome(
            seed=self._scenario.seed,
            place=self._scenario.cluster.place,
            way=self._way,
            nodes=len(self._cast.nodes),
            gpus=world.fleet.count,
            hours=now / _HOUR_NS,
            jobs={state.value: states[state] for state in JobState if states[state]},
            left_out=self._cast.left_out,
            homeless=self._cast.homeless,
            utilization=seen.mean("utilization"),
            utilization_before=seen.mean("utilization_before"),
            sm_activity=seen.mean("sm_activity"),
            sm_activity_before=seen.mean("sm_activity_before"),
            memory=seen.mean("memory"),
            memory_before=seen.mean("memory_before"),
            online_slowdown_mean=seen.mean("slowdown"),
            online_slowdown_p99=seen.slowdown(0.99),
            offline_speed=seen.mean("offline_speed"),
            jct_h=_distribution((book.end_ns - book.submit_ns)[done] / _HOUR_NS),
            wait_h=_distribution((book.first_start_ns - book.submit_ns)[started] / _HOUR_NS),
            makespan_h=float(book.end_ns[done].max()) / _HOUR_NS if all_over and len(done) else 0.0,
            work_done_h=float(book.safe.sum()) / _HOUR_NS,
            work_lost_h=float(book.lost.sum()) / _HOUR_NS,
            evictions=int(book.evictions.sum()),
            moves=self._brain.machine.counts().moved,
            failures=int(book.failures.sum()),
            refused=world.refused,
            crashes=dict(self._faults.counts),
            gpu_time={
                "shared": seen.shared_gpu_ns / gpu_ns,
                "free": seen.free_gpu_ns / gpu_ns,
                "down": seen.down_gpu_ns / gpu_ns,
            },
            decisions=self._digest.hexdigest()[:16],
            problems=audit(world, self._brain.machine),
        )


def audit(world: ClusterWorld, machine: Mind) -> list[str]:
    """Do the books balance? Every job is somewhere exactly once, work is neither made nor lost, nor is GPU time."""
    book, seen = world.book, world.seen
    problems = []
    told = {one.spec.name: one.state for one in machine.jobs()}
    for job, spec in enumerate(book.specs):
        fate, state = Fate(book.fate[job]), told.get(spec.name)
        if (state is None) != (fate in {Fate.TO_COME, Fate.REFUSED}):
            problems.append(f"{spec.name} is {fate.name} and the cluster says {state}")
        elif state is JobState.DONE and fate is not Fate.DONE:
            problems.append(f"{spec.name} is told to be done and is {fate.name}")
        elif fate is Fate.DONE and state in {JobState.WAITING, JobState.FAILED}:
            problems.append(f"{spec.name} is done, and the cluster says {state.value}")
    held = book.done + book.lost
    for job in np.flatnonzero(np.abs(book.computed - held) > _NEAR * np.maximum(book.work, 1.0)).tolist():
        problems.append(f"{book.specs[job].name} computed {book.computed[job]:g} ns and has {held[job]:g}")
    finished = book.fate == Fate.DONE
    for job in np.flatnonzero(finished & (book.safe != book.work)).tolist():
        problems.append(f"{book.specs[job].name} is done with {book.safe[job]:g} of {book.work[job]:g} ns")
    sums = seen.shared_gpu_ns + seen.free_gpu_ns + seen.down_gpu_ns
    if abs(sums - seen.gpus * seen.span_ns) > _NEAR * max(sums, 1.0) or seen.free_gpu_ns < -_NEAR * max(sums, 1.0):
        problems.append(f"GPU time adds up to {sums:g} ns of {seen.gpus * seen.span_ns:g}")
    speed_ns = seen.mean("offline_speed") * seen.span_ns * seen.gpus
    gang_ns = float((book.computed * book.gpus).sum())
    if gang_ns - speed_ns > 1e-4 * max(gang_ns, 1.0):
        problems.append(f"jobs have {gang_ns:g} ns of work of GPUs that did {speed_ns:g}")
    return problems


def _line(now: Instant, action: ClusterAction) -> str:
    """A decision as a line; nothing for what is only politeness."""
    if isinstance(action, AckEnd | Answer):
        return ""
    at = f"{now / SECOND_NS:.3f} s"
    if isinstance(action, StartJob):
        gpus = ",".join(map(str, action.gpus))
        return f"{at} start {action.attempt.job} (attempt {action.attempt.number}) on {action.node} GPU {gpus}\n"
    assert isinstance(action, StopJob)
    return f"{at} stop {action.attempt.job} (attempt {action.attempt.number}) on {action.node}: {action.why}\n"


def _distribution(values: Any) -> Distribution:
    if not len(values):
        return Distribution(0.0, 0.0, 0.0, 0.0)
    p50, p95, p99 = np.quantile(values, [0.5, 0.95, 0.99]).tolist()
    return Distribution(float(values.mean()), p50, p95, p99)
