"""Time slices of the driver between processes, as without MPS."""

from __future__ import annotations

from cotenant.softgpu.sim.host import OpenGate
from cotenant_lab.baselines.sharing import RunSpec, SharingOutcome, clients_of, simulate_run, simulation_of


def slices(run: RunSpec) -> SharingOutcome:
    """Give equal slices to tenants that have work."""
    return simulate_run(
        "slices", run, simulation_of(run, clients_of(run, sliced=True), [OpenGate() for _ in run.guests])
    )
