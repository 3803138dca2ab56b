"""Claims of FIKIT: results over the pairs, and over a few pairs with the physics and the profiles wrong."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from cotenant.simulate.kernels import RunSettings
from cotenant_lab.study.claim import (
    KERNEL_CELLS,
    NOMINAL,
    Perturbation,
    PerturbedCell,
    StudyClaim,
    claim_of,
    perturbed_setting,
)
from cotenant_lab.study.fikit.run import FikitCase, FikitGroup, FikitResult, Progress, evaluate
from cotenant_lab.study.workers import mapping

PAPER: Final = "FIKIT, arXiv 2311.10359"
PART: Final = "perturbed"
CASES: Final = 6
"""Pairs of each perturbed cell, evenly spread over all."""
FAST: Final = 3.5
OFFLINE_LEAST: Final = 0.84
COST_MOST: Final = 0.10
_OURS: Final = "cotenant mps"


def play_cell(case: FikitCase, cell: Perturbation | None, setting: RunSettings) -> FikitResult:
    """Run one pair with one quantity wrong."""
    return evaluate(case, setting if cell is None else perturbed_setting(setting, cell))


def evaluate_perturbed(
    cases: Sequence[FikitCase], setting: RunSettings, workers: int, progress: Progress
) -> list[PerturbedCell]:
    """Evaluate a few pairs in every cell."""
    chosen = cases[:: max(len(cases) // CASES, 1)][:CASES]
    cells = (None, *KERNEL_CELLS)
    tasks = [(case, cell) for cell in cells for case in chosen]
    results: list[FikitResult] = []
    progress(PART, 0, len(tasks))
    with mapping(workers) as mapped:
        columns = ([case for case, _ in tasks], [cell for _, cell in tasks], [setting] * len(tasks))
        for result in mapped(play_cell, *columns):
            results.append(result)
            progress(PART, len(results), len(tasks))
    return [
        PerturbedCell(
            cell=NOMINAL if cell is None else str(cell),
            metrics=metrics_of(results[index * len(chosen) : (index + 1) * len(chosen)]),
        )
        for index, cell in enumerate(cells)
    ]


def metrics_of(results: Sequence[FikitResult]) -> dict[str, float]:
    """Return medians over pairs, under MPS."""

    def median(values: list[float]) -> float:
        return round(statistics.median(values), 4)

    pairs = [result.metrics for result in results]
    return {
        "speedup": median([pair.online_speedup_vs_sharing["mps"] for pair in pairs]),
        "offline_ratio": median([pair.offline_ratio_vs_sharing["mps"] for pair in pairs]),
        "delay_ratio": median([pair.online_delay_ratio[_OURS] for pair in pairs]),
        "speedup_bound": median([pair.online_slowdown["mps"] for pair in pairs]),
        "gap_ratio": median([result.gap_ratio for result in results]),
        "offline_vs_alone": median([pair.offline_vs_alone[_OURS] for pair in pairs]),
        "offline_vs_alone_sharing": median([pair.offline_vs_alone["mps"] for pair in pairs]),
    }


def claims_of(group: FikitGroup, cells: Sequence[PerturbedCell]) -> list[StudyClaim]:
    """Return the paper's three claims; results are medians over all pairs, under MPS."""
    found, metrics = metrics_of(group.cases), group.metrics
    speed, offline, cost = (
        metrics[f"{name}_mps"]
        for name in ("online_speedup_vs_sharing", "offline_ratio_vs_sharing", "online_delay_ratio")
    )
    fast = group.fast_fraction.get("mps", 0.0)
    faster, more = metrics["speedup_vs_priorities"].median, metrics["offline_vs_priorities"].median
    others = (
        f"over MPS with priorities the online program is {faster:.2f} times as fast and the offline one has {more:.2f} "
        "of its speed, in the median; the paper's programs and GPUs are others"
    )
    gaps = (
        f"the online programs leave gaps of {found['gap_ratio']:.0%} of their time in the median, from which the "
        f"offline program gets {found['offline_vs_alone']:.0%} of its speed alone; default sharing gives it "
        f"{found['offline_vs_alone_sharing']:.0%}, at the expense of the online program"
    )
    return [
        claim_of(
            PAPER,
            "high priority 1.33 to 14.87 times as fast as under default sharing, more than half over 3.5",
            ("speedup", found["speedup"], FAST),
            cells,
            result=f"median {speed.median:.2f}, {speed.min:.2f} to {speed.max:.2f}; {fast:.0%} of the pairs over 3.5",
            reason=f"alone, without any neighbour, they are {found['speedup_bound']:.2f} times as fast as under "
            f"default sharing in the median, which no sharing can exceed; {others}",
        ),
        claim_of(
            PAPER,
            "low priority at 0.84 to 1 of its speed under default sharing",
            ("offline_ratio", found["offline_ratio"], OFFLINE_LEAST),
            cells,
            result=f"median {offline.median:.2f}, {offline.min:.2f} to {offline.max:.2f}",
            reason=f"{gaps}; {others}",
        ),
        claim_of(
            PAPER,
            "gap filling costs high priority less than 10 %",
            ("delay_ratio", found["delay_ratio"], COST_MOST),
            cells,
            result=f"median {cost.median:.3f}, {cost.min:.3f} to {cost.max:.3f}",
            reason=f"counts what kernels waited for; contention with kernels that run is in the speedup; {others}",
            is_least=False,
        ),
    ]
