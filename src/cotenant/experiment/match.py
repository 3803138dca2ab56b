"""How near the best is a matching, how long does it take, and what does it need? Beside an exact solver."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from cotenant.errors import WorldError
from cotenant.experiment.match_case import Solved
from cotenant.experiment.match_tables import WORTHS
from cotenant.live.process import start_piped

SIZES: Final = (100, 1_000, 5_000, 20_000)
QUICK_SIZES: Final = (100, 1_000)
SHAPES: Final = ("structured", "distinct")
EXACT_LIMIT: Final = 5_000
"""Jobs and GPUs beyond which the exact solver is not tried: its table of 20,000 x 20,000 alone takes 3.2 GB."""
EXACT_SECONDS: Final = 150
"""After which it is given up."""
LEAST_STRUCTURED: Final = 0.999
LEAST_DISTINCT: Final = 0.99
"""Of the best."""
LIMIT_MIB: Final = 2048
LIMIT_S: Final = 2.0
"""Of the largest structured one: a round of five minutes has more to do than match."""


class MatchCase(msgspec.Struct, frozen=True, kw_only=True):
    """So many jobs and as many GPUs."""

    shape: str
    worth: str
    size: int
    seconds: float
    cpu_seconds: float
    rows_seconds: float
    """Of `seconds`, what it took to make rows of the table, which is not held."""
    peak_mib: float
    """Of the whole process, Python and its libraries included."""
    bids: int
    value: float
    bound: float
    vs_bound: float
    vs_optimal: float
    """Against the exact optimum where `optimal_by` says so, otherwise against the bound."""
    optimal_by: str
    exact_seconds: float | None
    exact_peak_mib: float | None
    again_seconds: float | None
    """With the prices of the first time, after one in fifty of jobs and GPUs changed."""
    again_vs_bound: float | None
    round_seconds: float | None
    """A whole round of placement: kinds counted, matched, and each job given its GPU."""
    few_seconds: float | None
    """The same with 300 jobs that wait, and all GPUs free."""


class MatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of them, and what they say at worst."""

    bench: str
    rounds: int
    structured_vs_optimal: float
    distinct_vs_optimal: float
    largest_structured_seconds: float
    largest_structured_peak_mib: float
    cases: tuple[MatchCase, ...]
    met: dict[str, bool]
    """Targets by the field that they are of; those of the largest only where it is as large as it should be."""


def bench_match(rounds: int, say: Callable[[str], None], *, sizes: tuple[int, ...] = SIZES) -> MatchReport:
    """Each in a process of its own, one after the other."""
    cases = [_case(shape, worth, size, rounds, say) for shape in SHAPES for worth in WORTHS for size in sizes]
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


def _case(shape: str, worth: str, size: int, rounds: int, say: Callable[[str], None]) -> MatchCase:
    say(f"{shape}, {worth}: {size:,} x {size:,}")
    ours = _solved("auction", shape, worth, size, rounds, None)
    assert ours is not None
    exact = None
    if size <= EXACT_LIMIT:
        say(f"{shape}, {worth}: {size:,} x {size:,}, scipy")
        exact = _solved("scipy", shape, worth, size, 1, EXACT_SECONDS)
    best = ours.bound if exact is None else exact.value
    return MatchCase(
        shape=shape,
        worth=worth,
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


def _solved(solver: str, shape: str, worth: str, size: int, rounds: int, most_s: float | None) -> Solved | None:
    """What another process found; None, if it took too long."""
    words = [sys.executable, "-m", "cotenant.experiment.match_case", solver, shape, worth, str(size), str(rounds)]
    process = start_piped(words)
    try:
        said, complained = process.communicate(timeout=most_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    if process.returncode:
        raise WorldError(
            f"a matching ended with {process.returncode}: {(complained.strip().splitlines() or ['?'])[-1]}"
        )
    return msgspec.json.decode(said, type=Solved)
