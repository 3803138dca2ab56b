"""A dedicated device for each tenant, as Kubernetes assigns them by default: the reference for all sharing."""

from __future__ import annotations

import msgspec

from cotenant.softgpu.sim.host import OpenGate
from cotenant_lab.baselines.sharing import RunSpec, SharingOutcome, clients_of, simulate_run, simulation_of


def exclusive(run: RunSpec) -> SharingOutcome:
    """Run each tenant on its own device; hosts have the same jitter as on a shared device."""
    outcomes = []
    for guest, client in zip(run.guests, clients_of(run, sliced=False), strict=True):
        own = msgspec.structs.replace(run, guests=(guest,))
        outcomes.append(simulate_run("exclusive", own, simulation_of(own, [client], [OpenGate()])))
    return SharingOutcome(
        mode="exclusive",
        gpus=len(outcomes),
        begin_ns=run.warm_ns,
        end_ns=run.for_ns,
        busy_ns=sum(outcome.busy_ns for outcome in outcomes),
        sm_ns=sum(outcome.sm_ns for outcome in outcomes),
        guests=tuple(result for outcome in outcomes for result in outcome.guests),
    )
