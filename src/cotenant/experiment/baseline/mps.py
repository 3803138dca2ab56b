"""Everybody at once under MPS: blocks of all clients go where there is room, in the order in which kernels are ready.

With client priorities, those of online tenants are placed first; what runs is never preempted.
"""

from __future__ import annotations

import msgspec

from cotenant.experiment.together import Outcome, Run, clients_of, live_through, world_of
from cotenant.sim.kernels_host import Open


def mps(run: Run) -> Outcome:
    """As MPS is when nobody sets anything."""
    return live_through("mps", run, world_of(run, clients_of(run, sliced=False), [Open() for _ in run.guests]))


def mps_priority(run: Run) -> Outcome:
    """With offline clients started below the normal priority, and no gate: what the driver alone can do for online."""
    clients = [
        msgspec.structs.replace(client, priority=-1 if guest.online else 0)
        for guest, client in zip(run.guests, clients_of(run, sliced=False), strict=True)
    ]
    return live_through("mps-priority", run, world_of(run, clients, [Open() for _ in run.guests]))
