"""What does sharing do to a cluster? The same jobs beside the same services, by every way to place and to share.

The cluster's machine is the product's own, driven by simulated time; what services and trainings do to each other is
sim/physics/colocated.py, from measured curves, of which the machine knows nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from cotenant.domain.instant import SECOND_NS
from cotenant.experiment.cluster import play_cluster
from cotenant.experiment.lab.muxflow_report import Published
from cotenant.experiment.lab.workers import mapping
from cotenant.format.scenario_cluster import BrainConfig, ClusterScenario, NodesConfig, OnlineConfig, TraceConfig
from cotenant.format.toml import Count, DurationNs, ShareOfWhole, SizeBytes
from cotenant.policy.place.rounds import ROUNDS
from cotenant.sim.cluster_jobs import Fate

OURS: Final = "match"
UNLIMITED: Final = "mps, no shares"
"""First fit, and trainings without a share: what MPS does by default."""
ALONE: Final = "no-sharing"
PART: Final = "clusters"
SLOWDOWN_MOST: Final = 1.2
"""As published of MuxFlow: online work is slowed by less than 20 %."""
_DAY_NS: Final = 86_400 * SECOND_NS
_HOUR_NS: Final = 3_600 * SECOND_NS
_GIB: Final = 1 << 30
_MOST: Final = 95
_USES: Final = ("utilization", "sm_activity", "memory")
_ONLINE: Final = OnlineConfig(gpus=ShareOfWhole(900_000), peak=ShareOfWhole(750_000), trough=ShareOfWhole(250_000))
"""Nine GPUs in ten have a service. Loads are chosen so that GPUs are busy before for about as long as in the paper."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and the jobs of a trace that come to it."""

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
        """Under one policy."""
        is_free = policy == UNLIMITED
        return ClusterScenario(
            kind="cluster",
            seed=seed,
            duration=DurationNs(round(self.hours * _HOUR_NS)),
            drain=DurationNs(round(self.drain_h * _HOUR_NS)),
            way="mps" if is_free else "",
            cluster=BrainConfig(place="first-fit" if is_free else policy),
            nodes=(NodesConfig(count=Count(self.nodes), memory=SizeBytes(16 * _GIB)),),
            online=_ONLINE,
            trace=TraceConfig(
                format="philly" if self.trace == "philly" else "openb",
                jobs=self.jobs,
                begin=DurationNs(round(self.begin_d * _DAY_NS)),
                limit=Count(self.limit),
            ),
        )


PHILLY: Final = Setup(
    name="philly",
    source="jobs of a day of Microsoft's Philly (msr-fiddle/philly-traces, CC BY 4.0)",
    nodes=32,
    begin_d=30,
    hours=24,
    drain_h=72,
    trace="philly",
    jobs="philly/philly_jobs.csv.gz",
)
OPENB: Final = Setup(
    name="openb",
    source="best-effort jobs of a day of Alibaba's cluster (cluster-trace-gpu-v2023)",
    nodes=2,
    begin_d=148,
    hours=24,
    drain_h=48,
    trace="openb",
    jobs="alibaba_v2023_openb/openb_pod_list_default.csv.gz",
)


def setups(*, quick: bool) -> list[Setup]:
    """Quick: fewer nodes, fewer hours and the first jobs of them."""
    if not quick:
        return [OPENB, PHILLY]
    less = {"nodes": 2, "hours": 4.0, "drain_h": 8.0}
    return [
        msgspec.structs.replace(OPENB, **less, limit=40),
        msgspec.structs.replace(PHILLY, **less, limit=40),
    ]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy made of a cluster. Use is of all GPUs, in the mean over the time in which jobs come."""

    policy: str
    way: str
    utilization: tuple[float, float]
    """Before and after."""
    sm_activity: tuple[float, float]
    memory: tuple[float, float]
    full: dict[str, float]
    """After, in the mean over the time in which jobs wait: GPUs are what lacks then. Nothing: none ever waited."""
    online_slowdown: float
    """Latency over that alone at the same load, its queue in it; in the mean over requests."""
    online_slowdown_p99: float
    """Of all of the time, weighed by load; 10 stands for 10 and more."""
    offline_speed: float
    """Of a whole GPU, what trainings had of each in the mean."""
    jct_h: float
    """Of all jobs that came; one that is not done counts until the end of the run."""
    jct_p50_h: float
    done: float
    """Of the jobs that came, the part that is done."""
    makespan_h: float
    """0: some were not done in the time."""
    most_done_h: float
    """When 95 of 100 jobs were done; 0: they were not."""
    evictions: int
    work_lost: float
    """Of all the work that was done, what evictions made to be done again."""
    problems: list[str]


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster under every policy."""

    name: str
    source: str
    gpus: int
    jobs: int
    left_out: int
    """Jobs that no node could hold: they want more GPUs or memory than one has."""
    hours: float
    found: list[Found]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that the lab found."""

    lab: str = "muxflow"
    seed: int
    quick: bool
    paper: Published = Published()
    clusters: list[Cluster]
    met: dict[str, bool]


def judge_clusters(
    asked: Sequence[Setup], directory: Path, seed: int, workers: int, progress: Callable[[str, int, int], None]
) -> list[Cluster]:
    """Every policy of the cluster; the number of workers changes nothing."""
    tasks = [(setup, policy) for setup in asked for policy in (*ROUNDS, UNLIMITED)]
    tasks.sort(key=lambda task: -task[0].nodes)  # the longest first, so that no process is left alone at the end
    told: dict[str, list[tuple[Found, tuple[int, int, int]]]] = {setup.name: [] for setup in asked}
    progress(PART, 0, len(tasks))
    with mapping(workers) as mapped:
        setups_, policies = [setup for setup, _ in tasks], [policy for _, policy in tasks]
        played = mapped(play, setups_, policies, [directory] * len(tasks), [seed] * len(tasks))
        for number, ((setup, _), one) in enumerate(zip(tasks, played, strict=True), start=1):
            told[setup.name].append(one)
            progress(PART, number, len(tasks))
    return [
        Cluster(
            name=setup.name,
            source=setup.source,
            gpus=told[setup.name][0][1][0],
            jobs=told[setup.name][0][1][1],
            left_out=told[setup.name][0][1][2],
            hours=setup.hours,
            found=[found for found, _ in told[setup.name]],
        )
        for setup in asked
    ]


def play(setup: Setup, policy: str, directory: Path, seed: int) -> tuple[Found, tuple[int, int, int]]:
    """One run; a function of its arguments alone. With it: GPUs, jobs that came, jobs left out."""
    played = play_cluster(setup.scenario(policy, seed), directory / "lab.toml")
    outcome, book = played.outcome, played.world.book
    came = np.flatnonzero(book.fate != Fate.TO_COME)
    end_ns = outcome.hours * _HOUR_NS
    ended = np.where(book.end_ns[came] >= 0, book.end_ns[came], end_ns)
    jct_h = ((ended - book.submit_ns[came]) / _HOUR_NS).tolist() or [0.0]
    at_h, courses = played.world.seen.courses()
    loaded = [place for place, begin_h in enumerate(at_h) if begin_h < setup.hours]

    def use(name: str) -> tuple[float, float]:
        before, after = courses[f"{name}_before"], courses[name]
        return statistics.fmean(before[place] for place in loaded), statistics.fmean(after[place] for place in loaded)

    waiting = [place for place in range(len(at_h)) if courses["waiting"][place] >= 1]
    ordered = sorted(book.end_ns[came][book.end_ns[came] >= 0].tolist())
    most = -(-len(came) * _MOST // 100) - 1
    found = Found(
        policy=policy,
        way=outcome.way,
        utilization=use("utilization"),
        sm_activity=use("sm_activity"),
        memory=use("memory"),
        full={name: statistics.fmean(courses[name][place] for place in waiting) for name in _USES} if waiting else {},
        online_slowdown=statistics.fmean(courses["slowdown"][place] for place in loaded),
        online_slowdown_p99=outcome.online_slowdown_p99,
        offline_speed=statistics.fmean(courses["offline_speed"][place] for place in loaded),
        jct_h=statistics.fmean(jct_h),
        jct_p50_h=statistics.median(jct_h),
        done=float((book.fate[came] == Fate.DONE).mean()) if len(came) else 0.0,
        makespan_h=outcome.makespan_h,
        most_done_h=ordered[most] / _HOUR_NS if 0 <= most < len(ordered) else 0.0,
        evictions=outcome.evictions,
        work_lost=outcome.work_lost_h / max(outcome.work_lost_h + outcome.work_done_h, 1e-9),
        problems=outcome.problems,
    )
    return found, (outcome.gpus, len(came), outcome.left_out)


def report_of(clusters: Sequence[Cluster], seed: int, *, quick: bool) -> Report:
    """Which targets (ours, and the paper's of slowdown) are met."""
    met: dict[str, bool] = {}
    for cluster in clusters:
        by = {one.policy: one for one in cluster.found}
        ours = by[OURS]
        for name, (before, after) in (
            ("GPU utilization", ours.utilization),
            ("SM activity", ours.sm_activity),
            ("memory used", ours.memory),
        ):
            met[f"{cluster.name}: {name} rises"] = after > before
        met[f"{cluster.name}: online slowdown, mean below 20 %"] = ours.online_slowdown < SLOWDOWN_MOST
        safe = [one for one in cluster.found if one is not ours and one.online_slowdown < SLOWDOWN_MOST]
        met[f"{cluster.name}: no baseline below 20 % has a shorter mean JCT"] = all(
            ours.jct_h <= one.jct_h * (1 + 1e-3) for one in safe
        )
        met[f"{cluster.name}: shorter mean JCT than no sharing"] = ours.jct_h < by[ALONE].jct_h
        met[f"{cluster.name}: the books balance under every policy"] = not any(one.problems for one in cluster.found)
    return Report(seed=seed, quick=quick, clusters=list(clusters), met=met)
