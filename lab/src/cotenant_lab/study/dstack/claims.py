"""Claims of D-STACK: results over all combinations, and over a few with the physics and the profiles wrong."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cotenant_lab.serving.modes import ADMITTED, OURS, TEMPORAL
from cotenant_lab.serving.simulated import ServedModel
from cotenant_lab.study.claim import CURVE_CELLS, NOMINAL, PerturbedCell, StudyClaim, claim_of
from cotenant_lab.study.dstack.run import POISSON, CombinationTask, OfferedLoad, Progress, ServedRun, play_all

if TYPE_CHECKING:
    from cotenant_lab.study.dstack.report import MetricSpread, ModeComparison

PAPER: Final = "D-STACK, arXiv 2304.13541"
COMBINATIONS: Final = 6
"""Combinations of each perturbed cell, evenly spread over all."""
_MODES: Final = (OURS, TEMPORAL, TEMPORAL + ADMITTED)
_LOADS: Final = (OfferedLoad(POISSON, 1.0), OfferedLoad(POISSON, 2.0))


def evaluate_perturbed(
    combinations: Sequence[tuple[ServedModel, ...]], seed: int, workers: int, progress: Progress
) -> list[PerturbedCell]:
    """Evaluate a few combinations in every cell."""
    chosen = combinations[:: max(len(combinations) // COMBINATIONS, 1)][:COMBINATIONS]
    cells = (None, *CURVE_CELLS)
    perturbed = []
    for done, cell in enumerate(cells, 1):
        tasks = [
            CombinationTask(models, _LOADS, _MODES, seed * len(chosen) + index, perturbation=cell)
            for index, models in enumerate(chosen)
        ]
        runs = play_all(tasks, workers, lambda *_: None)
        perturbed.append(PerturbedCell(cell=NOMINAL if cell is None else str(cell), metrics=metrics_of(runs)))
        progress("perturbed", done, len(cells))
    return perturbed


def metrics_of(runs: Sequence[ServedRun]) -> dict[str, float]:
    """Return medians over combinations; throughput and utilization are at the best load of each mode."""
    cases: dict[tuple[str, ...], list[ServedRun]] = {}
    for run in runs:
        cases.setdefault(tuple(run.models), []).append(run)

    def best(case: Sequence[ServedRun], modes: Sequence[str], name: str) -> float:
        return max(float(getattr(run, name)) for run in case if run.mode in modes)

    def ratio(name: str, rivals: Sequence[str]) -> float:
        ratios = [best(case, [OURS], name) / max(best(case, rivals, name), 1e-9) for case in cases.values()]
        return round(statistics.median(ratios), 4)

    of_ideal = [run.of_ideal for run in runs if run.of_ideal is not None]
    return {
        "throughput": ratio("goodput_per_s", _MODES[1:]),
        "utilization": ratio("utilization", _MODES[1:2]),
        "of_ideal": round(statistics.median(of_ideal), 4),
    }


def claims_of(temporal: ModeComparison, of_ideal: MetricSpread, cells: Sequence[PerturbedCell]) -> list[StudyClaim]:
    """Return the paper's three claims: medians, over temporal sharing that may use our admission."""
    throughput, utilization = temporal.throughput_admitted, temporal.utilization
    law = "runs at the same time follow a law over measured curves and slow each other as iGniter's pairs do"
    return [
        claim_of(
            PAPER,
            "up to 4 times the throughput of temporal sharing",
            ("throughput", throughput.median, 4.0),
            cells,
            result=f"median {throughput.median:.2f}, {throughput.min:.2f} to {throughput.max:.2f} "
            f"(temporal sharing with our admission; without it median {temporal.throughput.median:.2f})",
            reason=f"temporal sharing with our admission is a stronger baseline than the paper's; {law}",
        ),
        claim_of(
            PAPER,
            "utilization up to 1.6 times",
            ("utilization", utilization.median, 1.6),
            cells,
            result=f"median {utilization.median:.2f}, {utilization.min:.2f} to {utilization.max:.2f}",
            reason=f"SMs that a run holds up to its knee count as used; {law}",
        ),
        claim_of(
            PAPER,
            "more than 0.9 of an ideal scheduler",
            ("of_ideal", of_ideal.median, 0.9),
            cells,
            result=f"median {of_ideal.median:.2f}, {of_ideal.min:.2f} to {of_ideal.max:.2f} of an ideal scheduler "
            "at capacity",
            reason="the ideal scheduler divides the device again at any instant without cost, as the paper's does; "
            f"{law}",
        ),
    ]
