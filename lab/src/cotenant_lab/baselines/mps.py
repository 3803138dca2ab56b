"""Concurrent execution under MPS: blocks of all clients are placed where they fit, in the order of ready kernels.

With client priorities, blocks of online tenants are placed first; running blocks are never preempted.
"""

from __future__ import annotations

import msgspec

from cotenant.softgpu.sim.host import OpenGate
from cotenant_lab.baselines.sharing import RunSpec, SharingOutcome, clients_of, simulate_run, simulation_of


def mps(run: RunSpec) -> SharingOutcome:
    """Share with the default settings of MPS."""
    return simulate_run("mps", run, simulation_of(run, clients_of(run, sliced=False), [OpenGate() for _ in run.guests]))


def mps_priority(run: RunSpec) -> SharingOutcome:
    """Share with offline clients at a lower priority and no gate: what the driver alone does for online tenants."""
    clients = [
        msgspec.structs.replace(client, priority=-1 if guest.online else 0)
        for guest, client in zip(run.guests, clients_of(run, sliced=False), strict=True)
    ]
    return simulate_run("mps-priority", run, simulation_of(run, clients, [OpenGate() for _ in run.guests]))
