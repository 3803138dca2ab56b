"""Run one matching in this process, so that its peak memory is that of the matching."""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np
from scipy.optimize import linear_sum_assignment

from cotenant.cluster.policy import ROUNDS
from cotenant.cluster.policy.distinct import match_distinct
from cotenant.cluster.policy.match import match
from cotenant.cluster.policy.round import round_of
from cotenant.runner.clock import monotonic_ns, thread_ns
from cotenant_lab.bench.match.instances import Array, Rows, distinct, drawn_kinds, structured

FEW: Final = 300
"""Waiting jobs of a round in which most jobs are placed already."""
_SECOND_NS: Final = 1e9
_CHANGED: Final = 0.02

Result = TypeVar("Result")


class MatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one solver."""

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


def solve(solver: str, shape: str, weight: str, size: int, rounds: int) -> MatchResult:
    """Solve one case `rounds` times."""
    if solver == "scipy":
        result = _exact(shape, weight, size)
    elif shape == "structured":
        result = _structured(weight, size, rounds)
    else:
        result = _distinct(weight, size)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return msgspec.structs.replace(result, peak_mib=peak_mib)


def _structured(weight: str, size: int, rounds: int) -> MatchResult:
    table, jobs, gpus = structured(weight, size)
    seconds, cpu_seconds, matching = _timed(lambda: match(table, jobs, gpus), rounds)
    unchanged = int(size * (1 - _CHANGED))
    jobs_now, gpus_now = (
        drawn_kinds(len(counts), size - unchanged, seed) + _thinned(counts, unchanged)
        for counts, seed in ((jobs, 3), (gpus, 4))
    )
    again_seconds, _, repeated = _timed(lambda: match(table, jobs_now, gpus_now, price=matching.price), rounds)
    each_job, each_gpu = (np.repeat(np.arange(len(counts)), counts) for counts in (jobs, gpus))
    full = round_of(table, each_job, each_gpu)
    few = round_of(table, each_job[:: max(1, size // FEW)], each_gpu)
    plan = ROUNDS["match"].plan
    return MatchResult(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        value=matching.value,
        bound=matching.bound,
        bids=matching.bids,
        peak_mib=0,
        again_seconds=again_seconds,
        again_vs_bound=repeated.part,
        round_seconds=_timed(lambda: plan(full), rounds)[0],
        few_seconds=_timed(lambda: plan(few), rounds)[0],
    )


def _thinned(counts: Array, total: int) -> Array:
    """Reduce the counts to `kept` in total, each kind in proportion."""
    ends = np.cumsum(counts) * total // counts.sum()
    return np.diff(ends, prepend=0)


def _distinct(weight: str, size: int) -> MatchResult:
    all_rows = distinct(weight, size)
    spent_ns = 0

    def rows(begin: int, end: int) -> Array:
        nonlocal spent_ns
        begin_ns = monotonic_ns()
        table = all_rows(begin, end)
        spent_ns += monotonic_ns() - begin_ns
        return table

    seconds, cpu_seconds, matching = _timed(lambda: match_distinct(rows, size, size), 1)
    return MatchResult(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        rows_seconds=spent_ns / _SECOND_NS,
        value=matching.value,
        bound=matching.bound,
        bids=matching.bids,
        peak_mib=0,
    )


def _exact(shape: str, weight: str, size: int) -> MatchResult:
    if shape == "structured":
        table, jobs, gpus = structured(weight, size)
        weights = np.repeat(np.repeat(table, jobs, axis=0), gpus, axis=1)
    else:
        rows: Rows = distinct(weight, size)
        weights = rows(0, size)
    begin_ns = monotonic_ns()
    chosen = linear_sum_assignment(weights, maximize=True)
    seconds = (monotonic_ns() - begin_ns) / _SECOND_NS
    value = float(weights[chosen].sum(dtype=np.float64))
    return MatchResult(seconds=seconds, value=value, bound=value, peak_mib=0)


def _timed(work: Callable[[], Result], rounds: int) -> tuple[float, float, Result]:
    """Return the median wall and CPU seconds, and the last result."""
    results, wall, cpu = [], [], []
    for _ in range(rounds):
        begin_ns, begin_cpu_ns = monotonic_ns(), thread_ns()
        results = [work()]
        wall.append((monotonic_ns() - begin_ns) / _SECOND_NS)
        cpu.append((thread_ns() - begin_cpu_ns) / _SECOND_NS)
    return statistics.median(wall), statistics.median(cpu), results[0]


def main(words: Sequence[str]) -> None:
    """Print the result as JSON."""
    solver, shape, weight, size, rounds = words
    sys.stdout.buffer.write(msgspec.json.encode(solve(solver, shape, weight, int(size), int(rounds))))


if __name__ == "__main__":
    main(sys.argv[1:])
