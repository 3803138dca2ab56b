"""Claims of a paper next to a study's result, also with the physics and the profiles wrong by a factor of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant.simulate.kernels import RunSettings

DURATIONS: Final = "durations"
SWITCH: Final = "switch cost"
CONTENTION: Final = "contention"
PRIORITY: Final = "priority effect"
FACTORS: Final = (0.5, 2.0)
_WHOLE_PPM: Final = 1_000_000


class Perturbation(msgspec.Struct, frozen=True):
    """A quantity that is wrong by a factor; 0: it has no effect at all."""

    what: str
    factor: float

    def __str__(self) -> str:
        """Return the name of the cell."""
        return f"{self.what} x{self.factor:g}" if self.factor else f"no {self.what}"


KERNEL_CELLS: Final = (
    *(Perturbation(what, factor) for what in (DURATIONS, SWITCH, CONTENTION, PRIORITY) for factor in FACTORS),
    Perturbation(PRIORITY, 0.0),
)
"""Cells of studies that simulate kernels."""
CURVE_CELLS: Final = tuple(Perturbation(what, factor) for what in (DURATIONS, CONTENTION) for factor in FACTORS)
"""Cells of studies that use measured curves, which have no switches between processes and no priorities."""


class PerturbedCell(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a study's reduced set of cases with one quantity wrong; the cell "nominal" has none."""

    cell: str
    metrics: dict[str, float]


NOMINAL: Final = "nominal"


class StudyClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim as published, and what was found."""

    paper: str
    claim: str
    result: str
    value: float
    """The result that is compared with the claim."""
    threshold: float
    perturbed_worst: float
    """The worst value over the perturbed cells; that of `value` is over all cases, this over fewer."""
    perturbed_worst_cell: str
    reached: bool
    reason: str
    """Why it is not reached, with the bound that shows it; or what reaching it does not show."""


def perturbed_setting(setting: RunSettings, cell: Perturbation) -> RunSettings:
    """Return a setting in which one quantity is wrong; the gate and the controller are not told."""
    if cell.what == DURATIONS:
        return msgspec.structs.replace(setting, estimate_factor=setting.estimate_factor * cell.factor)
    device, factor = setting.device, cell.factor
    changed = {
        SWITCH: {"switch_ns": round(device.switch_ns * factor)},
        CONTENTION: {
            "cache_contention_ppm": round(device.cache_contention_ppm * factor),
            "dram_contention_ppm": round(device.dram_contention_ppm * factor),
            "issue_full_ppm": min(round(device.issue_full_ppm / factor), _WHOLE_PPM) if factor else 0,
            "clock_drop_ppm": round(device.clock_drop_ppm * factor),
        },
        PRIORITY: {"priority_effect_ppm": min(round(device.priority_effect_ppm * factor), _WHOLE_PPM)},
    }[cell.what]
    return msgspec.structs.replace(setting, device=msgspec.structs.replace(device, **changed))


def claim_of(
    paper: str,
    claim: str,
    metric: tuple[str, float, float],
    cells: Sequence[PerturbedCell],
    *,
    result: str,
    reason: str,
    is_least: bool = True,
) -> StudyClaim:
    """Build a claim; `metric` is its name in the cells, its value over all cases, and what the paper published.

    `is_least`: the value must be at least what was published, otherwise at most.
    """
    name, value, threshold = metric
    perturbed = [(cell.metrics[name], cell.cell) for cell in cells if cell.cell != NOMINAL and name in cell.metrics]
    worst, worst_cell = (min(perturbed) if is_least else max(perturbed)) if perturbed else (value, "not perturbed")
    return StudyClaim(
        paper=paper,
        claim=claim,
        result=result,
        value=round(value, 4),
        threshold=threshold,
        perturbed_worst=round(worst, 4),
        perturbed_worst_cell=worst_cell,
        reached=value >= threshold if is_least else value <= threshold,
        reason=reason,
    )


def show_claims(console: Console, claims: Sequence[StudyClaim]) -> None:
    """Print the table of claims."""
    rows: list[list[str | Text]] = [
        [
            claim.paper,
            claim.claim,
            claim.result,
            f"{claim.perturbed_worst:g} ({claim.perturbed_worst_cell})",
            "yes" if claim.reached else "no",
            claim.reason,
        ]
        for claim in claims
    ]
    columns = ["PAPER", "CLAIM", "RESULT", "WORST PERTURBED CELL", "REACHED", "WHY, OR WHAT IT DOES NOT SHOW"]
    console.print(table("claims of the papers and our results", columns, rows, fold=True))


def evaluate_cells(
    cells: Sequence[Perturbation], evaluate: Callable[[Perturbation | None], Mapping[str, float]]
) -> list[PerturbedCell]:
    """Evaluate the nominal cell and every perturbed one."""
    return [
        PerturbedCell(
            cell=NOMINAL if cell is None else str(cell),
            metrics={name: round(value, 6) for name, value in evaluate(cell).items()},
        )
        for cell in (None, *cells)
    ]
