"""In which ways can tenants share? The product's own and those of others, all in one harness, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cotenant.experiment.baseline.exclusive import exclusive
from cotenant.experiment.baseline.grid import grid, grid_mps
from cotenant.experiment.baseline.mps import mps, mps_priority
from cotenant.experiment.baseline.percent import percent_equal, percent_knee
from cotenant.experiment.baseline.slices import slices
from cotenant.experiment.baseline.tgs import tgs, tgs_mps
from cotenant.experiment.control import cotenant, cotenant_slice
from cotenant.experiment.together import Outcome, Run

WAYS: Final[dict[str, Callable[[Run], Outcome]]] = {
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


def share(way: str, run: Run) -> Outcome:
    """Play a run in one of the ways; a function of both alone."""
    return WAYS[way](run)
