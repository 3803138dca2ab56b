"""Bench `cluster`: speed of the cluster controller and its simulation for one day of 20,000 GPUs and smaller clusters.

Every size runs in its own process, so that peak memory is that of the size.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.cluster.model.event import ClusterAction, ClusterEvent, ClusterWoke
from cotenant.cluster.sim.scenario import ClusterScenario, JobsConfig, NodesConfig
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.runner.clock import LiveClock
from cotenant.simulate.cluster import Progress, simulate_cluster
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.text import round_size
from cotenant.units.toml import Count, DurationNs, ShareOfWhole
from cotenant_lab.errors import RunFailedError

_HOUR_NS: Final = 3_600 * SECOND_NS
_GPUS_A_NODE: Final = 8
_JOBS_A_GPU: Final = 5
_GANGS: Final = 0.02
"""Fraction of jobs that need two GPUs."""
_WORK: Final = DurationNs(_HOUR_NS)
"""The median; the mean is 1.6 times as long. Five such jobs about fill a GPU for a day next to online work."""
SMALLEST: Final = 400
"""GPUs of the smallest cluster that can be chosen; a tenth of it still has nodes of both types."""
LIMIT_S: Final = 120.0
LIMIT_BYTES: Final = 4 << 30
LIMIT_ROUND_MS: Final = 200.0
LIMIT_EXPONENT: Final = 1.2


class ClusterSize(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one size."""

    gpus: int
    jobs: int
    hours: float
    seconds: float
    """Total: the simulation set up, run and evaluated."""
    cpu_seconds: float
    """CPU time; less than `seconds` if other programs use the machine."""
    peak_bytes: int
    rounds: int
    round_ms_p50: float
    round_ms_p99: float
    round_ms_max: float
    reports: int
    started: int
    done: int
    utilization: float
    decisions: str


class ClusterBenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """Results; the first four values are those of the largest size."""

    bench: str
    seconds: float
    peak_bytes: int
    round_ms_p99: float
    growth_exponent: float
    """Exponent of time over size from the smallest to the largest size: 1 is proportional."""
    sizes: list[ClusterSize]
    met: dict[str, bool]
    """Targets of the full bench; empty in a quick run, or for other sizes."""


def bench_cluster(
    report: Callable[[str], None], progress: Progress, *, quick: bool, gpus: int = 0, seed: int = 0
) -> ClusterBenchReport:
    """Measure all sizes, each in its own process; with `gpus` a tenth of that number and that number."""
    hours = 2 if quick else 24
    sizes = []
    defaults = (40, 160) if quick else (1_000, 5_000, 20_000)
    for size in (gpus // 10, gpus) if gpus else defaults:
        report(f"{size:,} GPUs, {size * _JOBS_A_GPU:,} jobs, {hours} h, reports and rounds every 5 min")
        sizes.append(_measure_in_process(size, hours, seed, progress))
    smallest, largest = sizes[0], sizes[-1]
    exponent = math.log(largest.seconds / smallest.seconds) / math.log(largest.gpus / smallest.gpus)
    met = {
        "seconds": largest.seconds <= LIMIT_S,
        "peak_bytes": largest.peak_bytes <= LIMIT_BYTES,
        "round_ms_p99": largest.round_ms_p99 <= LIMIT_ROUND_MS,
        "growth_exponent": exponent <= LIMIT_EXPONENT,
    }
    return ClusterBenchReport(
        bench="cluster",
        seconds=largest.seconds,
        peak_bytes=largest.peak_bytes,
        round_ms_p99=largest.round_ms_p99,
        growth_exponent=exponent,
        sizes=sizes,
        met={} if quick or gpus else met,
    )


def day_of(gpus: int, hours: int, seed: int) -> ClusterScenario:
    """Return nodes of eight GPUs, all with online work, and five jobs per GPU and day, some of them for two GPUs."""
    jobs = gpus * _JOBS_A_GPU
    gangs = round(jobs * _GANGS)
    nodes = gpus // _GPUS_A_NODE
    return ClusterScenario(
        kind="cluster",
        seed=seed,
        duration=DurationNs(hours * _HOUR_NS),
        nodes=(
            NodesConfig(Count(nodes - nodes // 4), "v"),
            NodesConfig(Count(nodes // 4), "a", type="A100"),
        ),
        jobs=(
            JobsConfig(name="job", count=Count(jobs - gangs), users=200, work=_WORK, known=ShareOfWhole(900_000)),
            JobsConfig(name="gang", count=Count(gangs), users=20, gpus=2, work=_WORK),
        ),
    )


class _TimedMachine(ClusterMachine):
    """The cluster state machine with timed placement rounds."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = LiveClock()
        self.rounds_ms: list[float] = []
        self.events = 0

    def handle(self, event: ClusterEvent, *, now: Instant) -> list[ClusterAction]:
        """Handle the event; time a wake-up that holds a placement round."""
        self.events += 1
        if type(event) is not ClusterWoke:
            return super().handle(event, now=now)
        rounds_before, begin = self.rounds, self._clock.now()
        actions = super().handle(event, now=now)
        if self.rounds > rounds_before:
            self.rounds_ms.append((self._clock.now() - begin) / 1e6)
        return actions


def measure(gpus: int, hours: int, seed: int, progress: Progress | None = None) -> ClusterSize:
    """Measure one size in this process."""
    clock = LiveClock()
    begin = clock.now()
    played = simulate_cluster(day_of(gpus, hours, seed), Path("bench"), progress=progress, new_machine=_TimedMachine)
    seconds = (clock.now() - begin) / SECOND_NS
    machine, outcome = played.machine, played.outcome
    assert isinstance(machine, _TimedMachine)
    if outcome.problems:
        raise RunFailedError(f"the accounting of the simulation is inconsistent: {outcome.problems[0]}; report this")
    p50, p99 = np.quantile(machine.rounds_ms, [0.5, 0.99]).tolist()
    sim_jobs = played.world.sim_jobs
    used = resource.getrusage(resource.RUSAGE_SELF)
    return ClusterSize(
        gpus=outcome.gpus,
        jobs=len(sim_jobs.specs),
        hours=outcome.hours,
        seconds=seconds,
        cpu_seconds=used.ru_utime + used.ru_stime,
        peak_bytes=used.ru_maxrss * 1024,
        rounds=len(machine.rounds_ms),
        round_ms_p50=p50,
        round_ms_p99=p99,
        round_ms_max=max(machine.rounds_ms),
        reports=machine.events - len(sim_jobs.specs) - len(machine.rounds_ms),
        started=int(sim_jobs.attempts.sum()),
        done=outcome.jobs.get("done", 0),
        utilization=outcome.utilization,
        decisions=outcome.decisions,
    )


def _measure_in_process(gpus: int, hours: int, seed: int, progress: Progress) -> ClusterSize:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_child, args=(theirs, gpus, hours, seed), daemon=True)
    process.start()
    theirs.close()
    try:
        while True:
            results: tuple[int, int] | ClusterSize = ours.recv()
            if isinstance(results, ClusterSize):
                return results
            progress(*results)
    except EOFError:
        raise RunFailedError(f"the process that measured {gpus} GPUs ended early; see its message") from None
    finally:
        process.join(5)
        process.kill()


def _child(theirs: Connection, gpus: int, hours: int, seed: int) -> None:
    def progress(done: int, total: int) -> None:
        theirs.send((done, total))

    theirs.send(measure(gpus, hours, seed, progress))
    theirs.close()


def show_cluster_bench(console: Console, report: ClusterBenchReport) -> None:
    """Print a row for each size, then the targets of the largest."""
    columns = ("GPUS", "JOBS", "REPORTS", "STARTED", "SECONDS", "CPU", "PEAK", "ROUNDS", "ROUND P50", "P99", "MAX")
    rows = [
        (
            f"{size.gpus:,}",
            f"{size.jobs:,}",
            f"{size.reports:,}",
            f"{size.started:,}",
            f"{size.seconds:.1f}",
            f"{size.cpu_seconds:.1f} s",
            round_size(size.peak_bytes),
            f"{size.rounds}",
            f"{size.round_ms_p50:.1f} ms",
            f"{size.round_ms_p99:.1f} ms",
            f"{size.round_ms_max:.1f} ms",
        )
        for size in report.sizes
    ]
    console.print(table(f"cluster controller and simulation, {report.sizes[0].hours:.0f} h", columns, rows))
    console.print(f"growth exponent {report.growth_exponent:.2f}", highlight=False)
    for name, met in report.met.items():
        console.print(f"{'met' if met else 'MISSED'}: {name}", style="" if met else "bold red", highlight=False)
