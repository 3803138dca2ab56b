"""Everybody a device of its own, as Kubernetes gives them out by default: what all sharing is measured against."""

from __future__ import annotations

import msgspec

from cotenant.experiment.together import Outcome, Run, clients_of, live_through, world_of
from cotenant.sim.kernels_host import Open


def exclusive(run: Run) -> Outcome:
    """As many devices as there are tenants; each host varies as it does where devices are shared."""
    outcomes = []
    for guest, client in zip(run.guests, clients_of(run, sliced=False), strict=True):
        own = msgspec.structs.replace(run, guests=(guest,))
        outcomes.append(live_through("exclusive", own, world_of(own, [client], [Open()])))
    return Outcome(
        way="exclusive",
        gpus=len(outcomes),
        begin_ns=run.warm_ns,
        end_ns=run.for_ns,
        busy_ns=sum(one.busy_ns for one in outcomes),
        sm_ns=sum(one.sm_ns for one in outcomes),
        guests=tuple(lived for one in outcomes for lived in one.guests),
    )
