"""How fast is a cluster's brain, and the world around it? One day of 20,000 GPUs, beside smaller ones.

Every size is a process of its own, so that its memory is its own.
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

from cotenant.domain.clusters import ClusterAction, ClusterEvent, ClusterWoke
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.errors import WorldError
from cotenant.experiment.cluster import Progress, play_cluster
from cotenant.format.scenario_cluster import ClusterScenario, JobsConfig, NodesConfig
from cotenant.format.toml import Count, DurationNs, ShareOfWhole
from cotenant.live.clock import LiveClock
from cotenant.machine.cluster import ClusterMachine

_HOUR_NS: Final = 3_600 * SECOND_NS
_GPUS_A_NODE: Final = 8
_JOBS_A_GPU: Final = 5
_GANGS: Final = 0.02
"""Of the jobs, that want two GPUs."""
_WORK: Final = DurationNs(_HOUR_NS)
"""The median; the mean is 1.6 times that. Beside online work five such jobs about fill a GPU's day."""
LIMIT_S: Final = 120.0
LIMIT_BYTES: Final = 4 << 30
LIMIT_ROUND_MS: Final = 200.0
LIMIT_EXPONENT: Final = 1.2


class ClusterSize(msgspec.Struct, frozen=True, kw_only=True):
    """One size, measured."""

    gpus: int
    jobs: int
    hours: float
    seconds: float
    """For all of it: the world made, played and added up."""
    cpu_seconds: float
    """Of the processors; where the machine has others to serve, less than `seconds`."""
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


class ClusterBench(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. The first four figures are of the largest size."""

    bench: str
    seconds: float
    peak_bytes: int
    round_ms_p99: float
    growth_exponent: float
    """By how much more than the size the time grows, from the smallest to the largest: 1 is in proportion."""
    sizes: list[ClusterSize]
    met: dict[str, bool]
    """Targets, of the full course; empty: the quick one."""


def bench_cluster(say: Callable[[str], None], progress: Progress, *, quick: bool, seed: int = 0) -> ClusterBench:
    """All sizes, each in its own process."""
    hours = 2 if quick else 24
    sizes = []
    for gpus in (40, 160) if quick else (1_000, 5_000, 20_000):
        say(f"{gpus:,} GPUs, {gpus * _JOBS_A_GPU:,} jobs, {hours} h, reports and rounds every 5 min")
        sizes.append(_apart(gpus, hours, seed, progress))
    least, most = sizes[0], sizes[-1]
    exponent = math.log(most.seconds / least.seconds) / math.log(most.gpus / least.gpus)
    met = {
        "seconds": most.seconds <= LIMIT_S,
        "peak_bytes": most.peak_bytes <= LIMIT_BYTES,
        "round_ms_p99": most.round_ms_p99 <= LIMIT_ROUND_MS,
        "growth_exponent": exponent <= LIMIT_EXPONENT,
    }
    return ClusterBench(
        bench="cluster",
        seconds=most.seconds,
        peak_bytes=most.peak_bytes,
        round_ms_p99=most.round_ms_p99,
        growth_exponent=exponent,
        sizes=sizes,
        met={} if quick else met,
    )


def day_of(gpus: int, hours: int, seed: int) -> ClusterScenario:
    """Nodes of eight GPUs, all with online work, and five jobs for each GPU and day, some of them of two GPUs."""
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


class _Timed(ClusterMachine):
    """The machine, with a clock beside it."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = LiveClock()
        self.rounds_ms: list[float] = []
        self.events = 0

    def handle(self, event: ClusterEvent, *, now: Instant) -> list[ClusterAction]:
        """Handle; a wake-up that holds a round is timed."""
        self.events += 1
        if type(event) is not ClusterWoke:
            return super().handle(event, now=now)
        held, begin = self.rounds, self._clock.now()
        actions = super().handle(event, now=now)
        if self.rounds > held:
            self.rounds_ms.append((self._clock.now() - begin) / 1e6)
        return actions


def measure(gpus: int, hours: int, seed: int, progress: Progress | None = None) -> ClusterSize:
    """One size, in this process."""
    clock = LiveClock()
    begin = clock.now()
    played = play_cluster(day_of(gpus, hours, seed), Path("bench"), progress=progress, new_machine=_Timed)
    seconds = (clock.now() - begin) / SECOND_NS
    machine, outcome = played.machine, played.outcome
    assert isinstance(machine, _Timed)
    if outcome.problems:
        raise WorldError(f"the bench's books do not balance: {outcome.problems[0]}; report this")
    p50, p99 = np.quantile(machine.rounds_ms, [0.5, 0.99]).tolist()
    book = played.world.book
    used = resource.getrusage(resource.RUSAGE_SELF)
    return ClusterSize(
        gpus=outcome.gpus,
        jobs=len(book.specs),
        hours=outcome.hours,
        seconds=seconds,
        cpu_seconds=used.ru_utime + used.ru_stime,
        peak_bytes=used.ru_maxrss * 1024,
        rounds=len(machine.rounds_ms),
        round_ms_p50=p50,
        round_ms_p99=p99,
        round_ms_max=max(machine.rounds_ms),
        reports=machine.events - len(book.specs) - len(machine.rounds_ms),
        started=int(book.attempts.sum()),
        done=outcome.jobs.get("done", 0),
        utilization=outcome.utilization,
        decisions=outcome.decisions,
    )


def _apart(gpus: int, hours: int, seed: int, progress: Progress) -> ClusterSize:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_child, args=(theirs, gpus, hours, seed), daemon=True)
    process.start()
    theirs.close()
    try:
        while True:
            told: tuple[int, int] | ClusterSize = ours.recv()
            if isinstance(told, ClusterSize):
                return told
            progress(*told)
    except EOFError:
        raise WorldError(f"the process that measured {gpus} GPUs ended before it was done; see above") from None
    finally:
        process.join(5)
        process.kill()


def _child(theirs: Connection, gpus: int, hours: int, seed: int) -> None:
    def progress(done: int, total: int) -> None:
        theirs.send((done, total))

    theirs.send(measure(gpus, hours, seed, progress))
    theirs.close()
