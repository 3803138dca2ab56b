"""Table of sharing modes by name: the product's own and those of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cotenant.simulate.sharing import RunSpec, SharingOutcome
from cotenant.simulate.sharing_modes import exclusive, mps, mps_priority, slices
from cotenant.simulate.steering import cotenant, cotenant_slice
from cotenant_lab.baselines.grid import grid, grid_mps
from cotenant_lab.baselines.percent import percent_equal, percent_knee
from cotenant_lab.baselines.tgs import tgs, tgs_mps

MODES: Final[dict[str, Callable[[RunSpec], SharingOutcome]]] = {
    "cotenant": cotenant,
    "cotenant-slice": cotenant_slice,
    "exclusive": exclusive,
    "mps": mps,
    "mps-priority": mps_priority,
    "mps-percent": percent_equal,
    "mps-percent-knee": percent_knee,
    "slices": slices,
    "grid": grid,
    "grid-mps": grid_mps,
    "tgs": tgs,
    "tgs-mps": tgs_mps,
}


def share(mode: str, run: RunSpec) -> SharingOutcome:
    """Run in one of the modes; the result depends on both arguments alone."""
    return MODES[mode](run)
