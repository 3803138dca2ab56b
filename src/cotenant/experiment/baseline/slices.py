"""Everybody in turns: time slices of the driver between processes, as without MPS."""

from __future__ import annotations

from cotenant.experiment.together import Outcome, Run, clients_of, live_through, world_of
from cotenant.sim.kernels_host import Open


def slices(run: Run) -> Outcome:
    """Equal slices for whoever has work."""
    return live_through("slices", run, world_of(run, clients_of(run, sliced=True), [Open() for _ in run.guests]))
