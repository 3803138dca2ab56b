"""Simulate the same jobs and services under every placement policy and sharing mode.

The product's own cluster state machine decides; the effect of services and trainings on each other is the simulated
physics of `cotenant.cluster.sim`, from measured curves, which the state machine does not know.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from rich.console import Console

from cotenant.cluster.policy import ROUNDS
from cotenant.cluster.sim.jobs import SimJobState
from cotenant.cluster.sim.scenario import ClusterScenario, ControllerConfig, NodesConfig, OnlineConfig, TraceConfig
from cotenant.simulate.cluster import simulate_cluster
from cotenant.units.instant import SECOND_NS
from cotenant.units.toml import Count, DurationNs, ShareOfWhole, SizeBytes
from cotenant_lab.study.claim import CONTENTION, CURVE_CELLS, NOMINAL, Perturbation, PerturbedCell, StudyClaim
from cotenant_lab.study.data_files import missing_data
from cotenant_lab.study.muxflow.claims import (
    SLOWDOWN_MOST,
    SM_ACTIVITY_LEAST,
    UTILIZATION_LEAST,
    claims_of,
    metrics_of,
    perturbed_physics,
)
from cotenant_lab.study.muxflow_node.report import MuxflowPaper
from cotenant_lab.study.progress import show_parts
from cotenant_lab.study.workers import mapping

OURS: Final = "match"
UNLIMITED: Final = "mps, no shares"
"""First fit without shares for trainings: the default behaviour of MPS."""
PRIORITY: Final = "mps with priorities, no shares"
"""The same with services at a higher client priority."""
_FIRST_FIT: Final = {UNLIMITED: "mps", PRIORITY: "mps-priority"}
ALONE: Final = "no-sharing"
PART: Final = "clusters"
OWN_SLOWDOWN_MOST: Final = 1.1
"""Our own target, stricter than MuxFlow's published limit."""
_DAY_NS: Final = 86_400 * SECOND_NS
_HOUR_NS: Final = 3_600 * SECOND_NS
_GIB: Final = 1 << 30
_MOST: Final = 95
_USES: Final = ("utilization", "sm_activity", "memory")
_ONLINE: Final = OnlineConfig(gpus=ShareOfWhole(900_000), peak=ShareOfWhole(750_000), trough=ShareOfWhole(250_000))
"""Nine of ten GPUs have a service. Loads are chosen such that utilization before sharing is near the paper's."""


class ClusterSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and the jobs of a trace."""

    name: str
    source: str
    nodes: int
    begin_d: float
    hours: float
    drain_h: float
    trace: str
    jobs: str
    limit: int = 0

    def scenario(self, policy: str, seed: int) -> ClusterScenario:
        """Return the scenario under one policy."""
        return ClusterScenario(
            kind="cluster",
            seed=seed,
            duration=DurationNs(round(self.hours * _HOUR_NS)),
            drain=DurationNs(round(self.drain_h * _HOUR_NS)),
            mode=_FIRST_FIT.get(policy, ""),
            cluster=ControllerConfig(place="first-fit" if policy in _FIRST_FIT else policy),
            nodes=(NodesConfig(count=Count(self.nodes), memory=SizeBytes(16 * _GIB)),),
            online=_ONLINE,
            trace=TraceConfig(
                format="philly" if self.trace == "philly" else "openb",
                jobs=self.jobs,
                begin=DurationNs(round(self.begin_d * _DAY_NS)),
                limit=Count(self.limit),
            ),
        )


WARM_H: Final = 1.0
"""Hours at the start, in which the cluster fills, that are not measured."""
PHILLY: Final = ClusterSetup(
    name="philly",
    source="jobs of a day of Microsoft's Philly (msr-fiddle/philly-traces, CC BY 4.0)",
    nodes=32,
    begin_d=30.5,
    hours=24,
    drain_h=72,
    trace="philly",
    jobs="philly/philly_jobs.csv.gz",
)
OPENB: Final = ClusterSetup(
    name="openb",
    source="best-effort jobs of a day of Alibaba's cluster (cluster-trace-gpu-v2023)",
    nodes=2,
    begin_d=148,
    hours=24,
    drain_h=48,
    trace="openb",
    jobs="alibaba_v2023_openb/openb_pod_list_default.csv.gz",
)


def setups(*, quick: bool) -> list[ClusterSetup]:
    """Return the clusters; quick: fewer nodes, fewer hours and fewer jobs."""
    if not quick:
        return [OPENB, PHILLY]
    less = {"nodes": 2, "hours": 4.0, "drain_h": 8.0}
    return [
        msgspec.structs.replace(OPENB, **less, limit=40),
        msgspec.structs.replace(PHILLY, **less, limit=40),
    ]


class PolicyOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in a cluster. Use is of all GPUs, as a mean over the time in which jobs arrive, without its start."""

    policy: str
    mode: str
    utilization: tuple[float, float]
    """Before and after."""
    sm_activity: tuple[float, float]
    memory: tuple[float, float]
    full: dict[str, float]
    """After sharing, mean over the time in which at least as many jobs wait as there are nodes; empty: never."""
    online_slowdown: float
    """Latency over that alone at the same load, with queueing; mean over requests."""
    online_service: float
    """Duration of a request without queueing over that alone; mean over requests."""
    online_slowdown_p99: float
    """Over time, weighted by load; 10 stands for 10 and more."""
    offline_speed: float
    """Mean fraction of a whole GPU's speed that trainings had."""
    jct_h: float
    """Mean over all arrived jobs; an unfinished job counts until the end of the run."""
    jct_p50_h: float
    done: float
    """Fraction of arrived jobs that are done."""
    makespan_h: float
    """0: some were not done in the time."""
    most_done_h: float
    """Time by which 95 % of the jobs were done; 0: they were not."""
    evictions: int
    work_lost: float
    """Fraction of all work that was repeated because of evictions."""
    problems: list[str]


class ClusterResult(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster under every policy."""

    name: str
    source: str
    gpus: int
    jobs: int
    left_out: int
    """Jobs that no node can hold: they need more GPUs or memory than a node has."""
    hours: float
    found: list[PolicyOutcome]


class MuxflowReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `muxflow`."""

    lab: str = "muxflow"
    seed: int
    quick: bool
    paper: MuxflowPaper = MuxflowPaper()
    clusters: list[ClusterResult]
    perturbed: list[PerturbedCell]
    """Our policy in the last cluster with one quantity wrong."""
    claims: list[StudyClaim]
    met: dict[str, bool]


def evaluate_clusters(
    chosen_setups: Sequence[ClusterSetup],
    directory: Path,
    seed: int,
    workers: int,
    progress: Callable[[str, int, int], None],
) -> list[ClusterResult]:
    """Run every policy; the number of workers does not change results."""
    tasks = [(setup, policy) for setup in chosen_setups for policy in (*ROUNDS, *_FIRST_FIT)]
    tasks.sort(key=lambda task: -task[0].nodes)  # longest first, so that no process runs alone at the end
    results: dict[str, list[tuple[PolicyOutcome, tuple[int, int, int]]]] = {setup.name: [] for setup in chosen_setups}
    progress(PART, 0, len(tasks))
    with mapping(workers) as mapped:
        setups_, policies = [setup for setup, _ in tasks], [policy for _, policy in tasks]
        played = mapped(play, setups_, policies, [directory] * len(tasks), [seed] * len(tasks))
        for number, ((setup, _), outcome) in enumerate(zip(tasks, played, strict=True), start=1):
            results[setup.name].append(outcome)
            progress(PART, number, len(tasks))
    return [
        ClusterResult(
            name=setup.name,
            source=setup.source,
            gpus=results[setup.name][0][1][0],
            jobs=results[setup.name][0][1][1],
            left_out=results[setup.name][0][1][2],
            hours=setup.hours,
            found=[policy_outcome for policy_outcome, _ in results[setup.name]],
        )
        for setup in chosen_setups
    ]


def play(
    setup: ClusterSetup, policy: str, directory: Path, seed: int, cell: Perturbation | None = None
) -> tuple[PolicyOutcome, tuple[int, int, int]]:
    """Run one policy; also return the number of GPUs, of arrived jobs and of omitted jobs."""
    played = simulate_cluster(setup.scenario(policy, seed), directory / "lab.toml", physics=perturbed_physics(cell))
    outcome, sim_jobs = played.outcome, played.world.sim_jobs
    submitted = np.flatnonzero(sim_jobs.state != SimJobState.PENDING)
    end_ns = outcome.hours * _HOUR_NS
    end_or_now = np.where(sim_jobs.end_ns[submitted] >= 0, sim_jobs.end_ns[submitted], end_ns)
    jct_h = ((end_or_now - sim_jobs.submit_ns[submitted]) / _HOUR_NS).tolist() or [0.0]
    at_h, series = played.world.measurements.series()
    loaded = [index for index, begin_h in enumerate(at_h) if min(WARM_H, setup.hours / 2) <= begin_h < setup.hours]

    def use(name: str) -> tuple[float, float]:
        before, after = series[f"{name}_before"], series[name]
        return statistics.fmean(before[index] for index in loaded), statistics.fmean(after[index] for index in loaded)

    waiting = [index for index in loaded if series["waiting"][index] >= setup.nodes]
    ordered = sorted(sim_jobs.end_ns[submitted][sim_jobs.end_ns[submitted] >= 0].tolist())
    most_index = -(-len(submitted) * _MOST // 100) - 1
    policy_outcome = PolicyOutcome(
        policy=policy,
        mode=outcome.mode,
        utilization=use("utilization"),
        sm_activity=use("sm_activity"),
        memory=use("memory"),
        full={name: statistics.fmean(series[name][index] for index in waiting) for name in _USES} if waiting else {},
        online_slowdown=statistics.fmean(series["slowdown"][index] for index in loaded),
        online_service=statistics.fmean(series["service"][index] for index in loaded),
        online_slowdown_p99=outcome.online_slowdown_p99,
        offline_speed=statistics.fmean(series["offline_speed"][index] for index in loaded),
        jct_h=statistics.fmean(jct_h),
        jct_p50_h=statistics.median(jct_h),
        done=float((sim_jobs.state[submitted] == SimJobState.DONE).mean()) if len(submitted) else 0.0,
        makespan_h=outcome.makespan_h,
        most_done_h=ordered[most_index] / _HOUR_NS if 0 <= most_index < len(ordered) else 0.0,
        evictions=outcome.evictions,
        work_lost=outcome.work_lost_h / max(outcome.work_lost_h + outcome.work_done_h, 1e-9),
        problems=outcome.problems,
    )
    return policy_outcome, (outcome.gpus, len(submitted), outcome.left_out)


def evaluate_perturbed(
    setup: ClusterSetup, directory: Path, seed: int, workers: int, progress: Callable[[str, int, int], None]
) -> list[PerturbedCell]:
    """Run our policy in every cell; the number of workers does not change results."""
    cells: list[Perturbation | None] = [None, *CURVE_CELLS]
    perturbed: list[PerturbedCell] = []
    progress("perturbed", 0, len(cells))
    with mapping(workers) as mapped:
        columns = ([setup] * len(cells), [OURS] * len(cells), [directory] * len(cells), [seed] * len(cells), cells)
        for cell, (outcome, _) in zip(cells, mapped(play, *columns), strict=True):
            name = NOMINAL if cell is None else str(cell)
            perturbed.append(PerturbedCell(cell=name, metrics=metrics_of(outcome)))
            progress("perturbed", len(perturbed), len(cells))
    return perturbed


def report_of(
    clusters: Sequence[ClusterResult], seed: int, *, quick: bool, perturbed: Sequence[PerturbedCell] = ()
) -> MuxflowReport:
    """Build the report with our targets and the paper's slowdown target."""
    met: dict[str, bool] = {}
    for cluster in clusters:
        by_policy = {outcome.policy: outcome for outcome in cluster.found}
        ours = by_policy[OURS]
        for name, (before, after) in (
            ("GPU utilization", ours.utilization),
            ("SM activity", ours.sm_activity),
            ("memory used", ours.memory),
        ):
            met[f"{cluster.name}: {name} rises"] = after > before
        met[f"{cluster.name}: online slowdown, mean below 20 %"] = ours.online_slowdown < SLOWDOWN_MOST
        safe = [outcome for outcome in cluster.found if outcome is not ours and outcome.online_slowdown < SLOWDOWN_MOST]
        met[f"{cluster.name}: no baseline below 20 % has a shorter mean JCT"] = all(
            ours.jct_h <= outcome.jct_h * (1 + 1e-3) for outcome in safe
        )
        met[f"{cluster.name}: shorter mean JCT than no sharing"] = ours.jct_h < by_policy[ALONE].jct_h
        met[f"{cluster.name}: the accounting is consistent under every policy"] = not any(
            outcome.problems for outcome in cluster.found
        )
    last = clusters[-1]
    ours = next(outcome for outcome in last.found if outcome.policy == OURS)
    met |= _met_targets(last.name, ours, perturbed)
    return MuxflowReport(
        seed=seed,
        quick=quick,
        clusters=list(clusters),
        perturbed=list(perturbed),
        claims=claims_of(last, ours, perturbed),
        met=met,
    )


def _met_targets(name: str, ours: PolicyOutcome, perturbed: Sequence[PerturbedCell]) -> dict[str, bool]:
    """Return the targets of the cluster in which jobs wait all day; without work there is nothing to share with."""
    met = {
        f"{name}: online slowdown, mean <= {OWN_SLOWDOWN_MOST}": ours.online_slowdown <= OWN_SLOWDOWN_MOST,
        f"{name}: utilization >= {UTILIZATION_LEAST}": ours.utilization[1] >= UTILIZATION_LEAST,
        f"{name}: SM activity >= {SM_ACTIVITY_LEAST}": ours.sm_activity[1] >= SM_ACTIVITY_LEAST,
    }
    doubled = str(Perturbation(CONTENTION, 2.0))
    for cell in perturbed:
        if cell.cell == doubled:
            met[f"{name}: online slowdown with contention doubled, mean <= {SLOWDOWN_MOST}"] = (
                cell.metrics["online_slowdown"] <= SLOWDOWN_MOST
            )
    return met


def run_muxflow(
    directory: Path, seed: int, console: Console, report: Callable[[str], None], *, quick: bool
) -> MuxflowReport:
    """Run the study with a progress bar on a terminal, or one line elsewhere."""
    chosen_setups = []
    for setup in setups(quick=quick):
        if (directory / setup.jobs).exists():
            chosen_setups.append(setup)
        else:
            report(f"omitted: {setup.name}: {directory / setup.jobs} does not exist")
    if not chosen_setups:
        raise missing_data(directory / "philly")
    with show_parts(console, report, "to play") as progress:
        workers = 1 if quick else os.cpu_count() or 1
        clusters = evaluate_clusters(chosen_setups, directory, seed, workers, progress)
        perturbed = evaluate_perturbed(chosen_setups[-1], directory, seed, workers, progress)
    return report_of(clusters, seed, quick=quick, perturbed=perturbed)
