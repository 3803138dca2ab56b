"""Simulation of a cluster scenario with the real controller, its results, and an audit of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.cluster.model.cluster import JobState
from cotenant.cluster.model.event import ClusterAction, ClusterEvent, JobCancelled, StartJob
from cotenant.cluster.policy import ROUNDS
from cotenant.cluster.sim.cluster import ClusterPlan, SimCluster
from cotenant.cluster.sim.controller import ControllerMachine, SimController
from cotenant.cluster.sim.faults import ClusterFaults
from cotenant.cluster.sim.jobs import SimJobState
from cotenant.cluster.sim.physics.colocated import MODES, ColocationModel, built_in
from cotenant.cluster.sim.scenario import ClusterScenario
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.errors import ConfigError
from cotenant.runner.sim_loop import SimLoop
from cotenant.simulate.cluster_world import ClusterSetup, build_cluster
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM

_HOUR_NS: Final = 3_600 * SECOND_NS
_NEAR: Final = 1e-6
Progress = Callable[[int, int], None]
"""Called with the simulated nanoseconds that have passed, and the total."""


class Distribution(msgspec.Struct, frozen=True):
    """Mean and quantiles of a quantity."""

    mean: float
    p50: float
    p95: float
    p99: float


class ClusterOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a scenario. Parts are of all GPU time; `_before`: the same load without offline work."""

    seed: int
    place: str
    mode: str
    nodes: int
    gpus: int
    hours: float
    jobs: dict[str, int]
    """Number of jobs by final state, as the controller reports it."""
    left_out: int
    unplaceable: int
    utilization: float
    utilization_before: float
    sm_activity: float
    sm_activity_before: float
    memory: float
    memory_before: float
    online_slowdown_mean: float
    online_slowdown_p99: float
    offline_speed: float
    """Offline work done per GPU, relative to a whole GPU."""
    jct_h: Distribution
    """From submission to end, of completed jobs."""
    wait_h: Distribution
    """From submission to the first start."""
    makespan_h: float
    """End of the last job; 0: not all completed."""
    work_done_h: float
    work_lost_h: float
    evictions: int
    """Attempts that were stopped before their job's end, or lost with their node or GPU."""
    moves: int
    """Evictions for a move to another GPU."""
    failures: int
    refused: int
    """Attempts that a node refused because its GPU had changed."""
    crashes: dict[str, int]
    gpu_time: dict[str, float]
    """Parts of all GPU time: with an offline job, without one, and down."""
    decisions: str
    """Digest of every decision and its instant: equal digests mean equal runs."""
    problems: list[str]
    """Inconsistencies found by the audit; any is a defect of cotenant."""


class ClusterRun(msgspec.Struct, frozen=True):
    """A finished simulation: its results and final state."""

    outcome: ClusterOutcome
    world: SimCluster
    machine: ControllerMachine


def simulate_cluster(
    scenario: ClusterScenario,
    where: Path,
    *,
    data: str = "",
    physics: ColocationModel | None = None,
    report: Callable[[str], None] | None = None,
    progress: Progress | None = None,
    new_machine: Callable[[], ControllerMachine] = ClusterMachine,
) -> ClusterRun:
    """Run a scenario. `report` receives a line for each decision."""
    if scenario.cluster.place not in ROUNDS:
        remedy = f"choose one of {', '.join(ROUNDS)}"
        raise ConfigError("cluster.place", scenario.cluster.place, remedy, where=str(where))
    mode = scenario.mode or ROUNDS[scenario.cluster.place].mode
    if mode not in MODES:
        raise ConfigError("mode", mode, f"choose one of {', '.join(MODES)}, or leave it out", where=str(where))
    physics = physics or built_in()
    setup = build_cluster(scenario, where, physics, data)
    return _Run(scenario, setup, physics, mode, report, new_machine).play(progress)


class _Run:
    """One run: the simulated cluster, its controller and the faults."""

    def __init__(
        self,
        scenario: ClusterScenario,
        setup: ClusterSetup,
        physics: ColocationModel,
        mode: str,
        report: Callable[[str], None] | None,
        new_machine: Callable[[], ControllerMachine],
    ) -> None:
        self._scenario, self._setup, self._mode, self._report = scenario, setup, mode, report
        self._digest = hashlib.sha256()
        self._loop = loop = SimLoop()
        report_ns = int(scenario.report)
        settings = scenario.cluster.settings(len(setup.jobs), report_ns)
        self._controller = SimController(loop, new_machine, settings, self._watch)
        plan = ClusterPlan(
            nodes=setup.nodes,
            jobs=setup.jobs,
            online=scenario.online,
            seed=scenario.seed,
            report_ns=report_ns,
            span_ns=int(scenario.duration + scenario.drain),
            mode=mode,
            checkpoint_ns=int(scenario.checkpoint),
            lease_ns=settings.lease_ns,
            saves=scenario.saves,
            job_failure=scenario.failures.job_failure / WHOLE_PPM,
        )
        self._world = SimCluster(plan, physics, loop, self._controller.deliver, self._controller.waiting)
        self._controller.bind(self._world)
        self._faults = ClusterFaults(loop, self._world, self._controller)

    def play(self, progress: Progress | None) -> ClusterRun:
        """Run for the duration, and then until running jobs have drained."""
        scenario, loop, world = self._scenario, self._loop, self._world
        loop.at(0, self._controller.start, None)
        loop.at(0, world.step, None)
        if self._setup.jobs:
            loop.at(self._setup.jobs[0].submit_ns, self._submit, 0)
        for when, name in self._setup.cancels:
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
        return ClusterRun(self._outcome(now), world, self._controller.machine)

    def _is_busy(self) -> bool:
        states = dict(self._controller.machine.counts().jobs)
        return any(count for state, count in states.items() if not state.is_over)

    def _submit(self, job: int, now: Instant) -> None:
        if job + 1 < len(self._setup.jobs):
            self._loop.at(self._setup.jobs[job + 1].submit_ns, self._submit, job + 1)
        self._world.submit(job, now)

    def _cancel(self, name: str, now: Instant) -> None:
        self._controller.deliver(JobCancelled(name), now)

    def _watch(self, now: Instant, event: ClusterEvent, actions: list[ClusterAction]) -> None:
        del event
        for action in actions:
            line = _line(now, action)
            self._digest.update(line.encode())
            if self._report is not None:
                self._report(line)

    def _outcome(self, now: Instant) -> ClusterOutcome:
        world, measurements, sim_jobs = self._world, self._world.measurements, self._world.sim_jobs
        states = Counter(reported.state for reported in self._controller.machine.jobs())
        done = np.flatnonzero(sim_jobs.state == SimJobState.DONE)
        started = np.flatnonzero(sim_jobs.first_start_ns >= 0)
        submitted = np.flatnonzero(sim_jobs.state != SimJobState.PENDING)
        all_over = len(submitted) == len(sim_jobs.work) and all(state.is_over for state in states)
        gpu_ns = max(measurements.gpus * measurements.span_ns, 1)
        return ClusterOutcome(
            seed=self._scenario.seed,
            place=self._scenario.cluster.place,
            mode=self._mode,
            nodes=len(self._setup.nodes),
            gpus=world.fleet.count,
            hours=now / _HOUR_NS,
            jobs={state.value: states[state] for state in JobState if states[state]},
            left_out=self._setup.left_out,
            unplaceable=self._setup.unplaceable,
            utilization=measurements.mean("utilization"),
            utilization_before=measurements.mean("utilization_before"),
            sm_activity=measurements.mean("sm_activity"),
            sm_activity_before=measurements.mean("sm_activity_before"),
            memory=measurements.mean("memory"),
            memory_before=measurements.mean("memory_before"),
            online_slowdown_mean=measurements.mean("slowdown"),
            online_slowdown_p99=measurements.slowdown(0.99),
            offline_speed=measurements.mean("offline_speed"),
            jct_h=_distribution((sim_jobs.end_ns - sim_jobs.submit_ns)[done] / _HOUR_NS),
            wait_h=_distribution((sim_jobs.first_start_ns - sim_jobs.submit_ns)[started] / _HOUR_NS),
            makespan_h=float(sim_jobs.end_ns[done].max()) / _HOUR_NS if all_over and len(done) else 0.0,
            work_done_h=float(sim_jobs.safe.sum()) / _HOUR_NS,
            work_lost_h=float(sim_jobs.lost.sum()) / _HOUR_NS,
            evictions=int(sim_jobs.evictions.sum()),
            moves=self._controller.machine.counts().moved,
            failures=int(sim_jobs.failures.sum()),
            refused=world.refused,
            crashes=dict(self._faults.counts),
            gpu_time={
                "shared": measurements.shared_gpu_ns / gpu_ns,
                "free": measurements.free_gpu_ns / gpu_ns,
                "down": measurements.down_gpu_ns / gpu_ns,
            },
            decisions=self._digest.hexdigest()[:16],
            problems=audit(world, self._controller.machine),
        )


def audit(world: SimCluster, machine: ControllerMachine) -> list[str]:
    """Return inconsistencies: each job is in one state, and neither work nor GPU time is created or lost."""
    sim_jobs, measurements = world.sim_jobs, world.measurements
    problems = []
    reported = {job_report.spec.name: job_report.state for job_report in machine.jobs()}
    for job, spec in enumerate(sim_jobs.specs):
        actual, state = SimJobState(sim_jobs.state[job]), reported.get(spec.name)
        if (state is None) != (actual is SimJobState.PENDING):
            problems.append(f"{spec.name} is {actual.name} and the controller reports {state}")
        elif state is JobState.DONE and actual is not SimJobState.DONE:
            problems.append(f"{spec.name} is reported to be done and is {actual.name}")
        elif actual is SimJobState.DONE and state in {JobState.WAITING, JobState.FAILED}:
            problems.append(f"{spec.name} is done, and the controller reports {state.value}")
    held = sim_jobs.done + sim_jobs.lost
    for job in np.flatnonzero(np.abs(sim_jobs.computed - held) > _NEAR * np.maximum(sim_jobs.work, 1.0)).tolist():
        problems.append(f"{sim_jobs.specs[job].name} computed {sim_jobs.computed[job]:g} ns and has {held[job]:g}")
    finished = sim_jobs.state == SimJobState.DONE
    for job in np.flatnonzero(finished & (sim_jobs.safe != sim_jobs.work)).tolist():
        problems.append(f"{sim_jobs.specs[job].name} is done with {sim_jobs.safe[job]:g} of {sim_jobs.work[job]:g} ns")
    sums = measurements.shared_gpu_ns + measurements.free_gpu_ns + measurements.down_gpu_ns
    gpu_ns, tolerance_ns = measurements.gpus * measurements.span_ns, _NEAR * max(sums, 1.0)
    if abs(sums - gpu_ns) > tolerance_ns or measurements.free_gpu_ns < -tolerance_ns:
        problems.append(f"GPU time adds up to {sums:g} ns of {gpu_ns:g}")
    speed_ns = measurements.mean("offline_speed") * measurements.span_ns * measurements.gpus
    gang_ns = float((sim_jobs.computed * sim_jobs.gpus).sum())
    if gang_ns - speed_ns > 1e-4 * max(gang_ns, 1.0):
        problems.append(f"jobs have {gang_ns:g} ns of work of GPUs that did {speed_ns:g}")
    return problems


def _line(now: Instant, action: ClusterAction) -> str:
    """Return a decision as a line."""
    at = f"{now / SECOND_NS:.3f} s"
    if isinstance(action, StartJob):
        gpus = ",".join(map(str, action.gpus))
        return f"{at} start {action.attempt.job} (attempt {action.attempt.number}) on {action.node} GPU {gpus}\n"
    return f"{at} stop {action.attempt.job} (attempt {action.attempt.number}) on {action.node}: {action.why}\n"


def _distribution(values: Any) -> Distribution:
    if not len(values):
        return Distribution(0.0, 0.0, 0.0, 0.0)
    p50, p95, p99 = np.quantile(values, [0.5, 0.95, 0.99]).tolist()
    return Distribution(float(values.mean()), p50, p95, p99)
