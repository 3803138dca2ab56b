"""Measure value, time and memory of the matching at several sizes, each in its own process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from cotenant.errors import WorldError
from cotenant.runner.process import start_with_pipes
from cotenant_lab.bench.match.case import MatchResult
from cotenant_lab.bench.match.instances import WEIGHTS

SIZES: Final = (100, 1_000, 5_000, 20_000)
QUICK_SIZES: Final = (100, 1_000)
SHAPES: Final = ("structured", "distinct")
EXACT_LIMIT: Final = 5_000
"""Size beyond which the exact solver is not run: its table of 20,000 x 20,000 takes 3.2 GB."""
EXACT_SECONDS: Final = 150
"""Time limit of the exact solver."""
LEAST_STRUCTURED: Final = 0.999
LEAST_DISTINCT: Final = 0.99
"""Minimum fractions of the optimum."""
LIMIT_MIB: Final = 2048
LIMIT_S: Final = 2.0
"""Limit for the largest structured case, as part of a round that starts every five minutes."""


class MatchCase(msgspec.Struct, frozen=True, kw_only=True):
    """A matching of `size` jobs to as many GPUs."""

    shape: str
    weight: str
    size: int
    seconds: float
    cpu_seconds: float
    rows_seconds: float
    """The part of `seconds` spent on computing rows of the table, which is not stored."""
    peak_mib: float
    """Of the whole process, including Python and its libraries."""
    bids: int
    value: float
    bound: float
    vs_bound: float
    vs_optimal: float
    """Against the exact optimum where `optimal_by` is "exact", otherwise against the bound."""
    optimal_by: str
    exact_seconds: float | None
    exact_peak_mib: float | None
    again_seconds: float | None
    """With the prices of the first matching, after 2 % of jobs and GPUs changed."""
    again_vs_bound: float | None
    round_seconds: float | None
    """A whole placement round: kinds counted, matched, and each job assigned to its GPU."""
    few_seconds: float | None
    """The same with 300 waiting jobs and all GPUs free."""


class MatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all cases, and the worst of them."""

    bench: str
    rounds: int
    structured_vs_optimal: float
    distinct_vs_optimal: float
    largest_structured_seconds: float
    largest_structured_peak_mib: float
    cases: tuple[MatchCase, ...]
    met: dict[str, bool]
    """Targets by field; those of the largest case only if the largest size was run."""


def bench_match(rounds: int, report: Callable[[str], None], *, sizes: tuple[int, ...] = SIZES) -> MatchReport:
    """Run each case in its own process, one after the other."""
    cases = [_case(shape, weight, size, rounds, report) for shape in SHAPES for weight in WEIGHTS for size in sizes]
    largest = [case for case in cases if case.shape == "structured" and case.size == max(sizes)]
    structured = min(case.vs_optimal for case in cases if case.shape == "structured")
    distinct = min(case.vs_optimal for case in cases if case.shape == "distinct")
    seconds, peak_mib = max(case.seconds for case in largest), max(case.peak_mib for case in largest)
    met = {"structured_vs_optimal": structured >= LEAST_STRUCTURED, "distinct_vs_optimal": distinct >= LEAST_DISTINCT}
    if max(sizes) >= SIZES[-1]:
        met["largest_structured_seconds"] = seconds <= LIMIT_S
        met["largest_structured_peak_mib"] = peak_mib <= LIMIT_MIB
    return MatchReport(
        bench="match",
        rounds=rounds,
        structured_vs_optimal=structured,
        distinct_vs_optimal=distinct,
        largest_structured_seconds=seconds,
        largest_structured_peak_mib=peak_mib,
        cases=tuple(cases),
        met=met,
    )


def _case(shape: str, weight: str, size: int, rounds: int, report: Callable[[str], None]) -> MatchCase:
    report(f"{shape}, {weight}: {size:,} x {size:,}")
    ours = _match_result("auction", shape, weight, size, rounds, None)
    assert ours is not None
    exact = None
    if size <= EXACT_LIMIT:
        report(f"{shape}, {weight}: {size:,} x {size:,}, scipy")
        exact = _match_result("scipy", shape, weight, size, 1, EXACT_SECONDS)
    best = ours.bound if exact is None else exact.value
    return MatchCase(
        shape=shape,
        weight=weight,
        size=size,
        seconds=ours.seconds,
        cpu_seconds=ours.cpu_seconds,
        rows_seconds=ours.rows_seconds,
        peak_mib=ours.peak_mib,
        bids=ours.bids,
        value=ours.value,
        bound=ours.bound,
        vs_bound=ours.value / ours.bound if ours.bound else 1.0,
        vs_optimal=ours.value / best if best else 1.0,
        optimal_by="bound" if exact is None else "exact",
        exact_seconds=None if exact is None else exact.seconds,
        exact_peak_mib=None if exact is None else exact.peak_mib,
        again_seconds=ours.again_seconds,
        again_vs_bound=ours.again_vs_bound,
        round_seconds=ours.round_seconds,
        few_seconds=ours.few_seconds,
    )


def _match_result(
    solver: str, shape: str, weight: str, size: int, rounds: int, most_s: float | None
) -> MatchResult | None:
    """Return what another process found, or None if it took too long."""
    words = [sys.executable, "-m", "cotenant_lab.bench.match.case", solver, shape, weight, str(size), str(rounds)]
    process = start_with_pipes(words)
    try:
        output, errors = process.communicate(timeout=most_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    if process.returncode:
        raise WorldError(
            f"a matching process ended with {process.returncode}: {(errors.strip().splitlines() or ['?'])[-1]}"
        )
    return msgspec.json.decode(output, type=MatchResult)
