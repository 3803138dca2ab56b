"""How long does one matching take, and how much memory? A process of its own, so that the memory is its own too."""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np
from scipy.optimize import linear_sum_assignment

from cotenant.experiment.match_tables import Array, Rows, distinct, drawn_kinds, structured
from cotenant.live.clock import monotonic_ns, thread_ns
from cotenant.policy.place.distinct import match_distinct
from cotenant.policy.place.match import match
from cotenant.policy.place.round import round_of
from cotenant.policy.place.rounds import ROUNDS

FEW: Final = 300
"""Jobs that wait in a round in which most of the work is done already."""
_SECOND_NS: Final = 1e9
_CHANGED: Final = 0.02

Result = TypeVar("Result")


class Solved(msgspec.Struct, frozen=True, kw_only=True):
    """By whichever solver."""

    seconds: float
    value: float
    bound: float = 0.0
    cpu_seconds: float = 0.0
    rows_seconds: float = 0.0
    peak_mib: float
    bids: int = 0
    again_seconds: float | None = None
    again_vs_bound: float | None = None
    round_seconds: float | None = None
    few_seconds: float | None = None


def solve(solver: str, shape: str, worth: str, size: int, rounds: int) -> Solved:
    """One matching, as often as asked for."""
    if solver == "scipy":
        found = _exact(shape, worth, size)
    elif shape == "structured":
        found = _structured(worth, size, rounds)
    else:
        found = _distinct(worth, size)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return msgspec.structs.replace(found, peak_mib=peak_mib)


def _structured(worth: str, size: int, rounds: int) -> Solved:
    table, jobs, gpus = structured(worth, size)
    seconds, cpu_seconds, found = _timed(lambda: match(table, jobs, gpus), rounds)
    kept = int(size * (1 - _CHANGED))
    jobs_now, gpus_now = (
        drawn_kinds(len(each), size - kept, seed) + _thinned(each, kept) for each, seed in ((jobs, 3), (gpus, 4))
    )
    again_seconds, _, again = _timed(lambda: match(table, jobs_now, gpus_now, price=found.price), rounds)
    each_job, each_gpu = (np.repeat(np.arange(len(each)), each) for each in (jobs, gpus))
    full = round_of(table, each_job, each_gpu)
    few = round_of(table, each_job[:: max(1, size // FEW)], each_gpu)
    plan = ROUNDS["match"].plan
    return Solved(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        value=found.value,
        bound=found.bound,
        bids=found.bids,
        peak_mib=0,
        again_seconds=again_seconds,
        again_vs_bound=again.part,
        round_seconds=_timed(lambda: plan(full), rounds)[0],
        few_seconds=_timed(lambda: plan(few), rounds)[0],
    )


def _thinned(counts: Array, kept: int) -> Array:
    """So many of them all stay, every kind in its part."""
    ends = np.cumsum(counts) * kept // counts.sum()
    return np.diff(ends, prepend=0)


def _distinct(worth: str, size: int) -> Solved:
    made = distinct(worth, size)
    spent_ns = 0

    def rows(begin: int, end: int) -> Array:
        nonlocal spent_ns
        before = monotonic_ns()
        table = made(begin, end)
        spent_ns += monotonic_ns() - before
        return table

    seconds, cpu_seconds, found = _timed(lambda: match_distinct(rows, size, size), 1)
    return Solved(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        rows_seconds=spent_ns / _SECOND_NS,
        value=found.value,
        bound=found.bound,
        bids=found.bids,
        peak_mib=0,
    )


def _exact(shape: str, worth: str, size: int) -> Solved:
    if shape == "structured":
        table, jobs, gpus = structured(worth, size)
        each = np.repeat(np.repeat(table, jobs, axis=0), gpus, axis=1)
    else:
        rows: Rows = distinct(worth, size)
        each = rows(0, size)
    before = monotonic_ns()
    chosen = linear_sum_assignment(each, maximize=True)
    seconds = (monotonic_ns() - before) / _SECOND_NS
    value = float(each[chosen].sum(dtype=np.float64))
    return Solved(seconds=seconds, value=value, bound=value, peak_mib=0)


def _timed(work: Callable[[], Result], rounds: int) -> tuple[float, float, Result]:
    """Medians of seconds on the wall and on the processor, and what came of the last time."""
    results, wall, cpu = [], [], []
    for _ in range(rounds):
        begun, begun_cpu = monotonic_ns(), thread_ns()
        results = [work()]
        wall.append((monotonic_ns() - begun) / _SECOND_NS)
        cpu.append((thread_ns() - begun_cpu) / _SECOND_NS)
    return statistics.median(wall), statistics.median(cpu), results[0]


def main(words: Sequence[str]) -> None:
    """Say it as JSON."""
    solver, shape, worth, size, rounds = words
    sys.stdout.buffer.write(msgspec.json.encode(solve(solver, shape, worth, int(size), int(rounds))))


if __name__ == "__main__":
    main(sys.argv[1:])
