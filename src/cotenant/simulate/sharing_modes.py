"""Sharing by the driver alone: a device for each tenant, time slices, and MPS with and without client priorities."""

from __future__ import annotations

import msgspec

from cotenant.simulate.sharing import RunSpec, SharingOutcome, clients_of, simulate_run, simulation_of
from cotenant.softgpu.sim.host import OpenGate


def exclusive(run: RunSpec) -> SharingOutcome:
    """Run each tenant on its own device, as Kubernetes assigns them; hosts jitter as on a shared one."""
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


def slices(run: RunSpec) -> SharingOutcome:
    """Give equal time slices of the driver to tenants that have work, as without MPS."""
    return simulate_run(
        "slices", run, simulation_of(run, clients_of(run, sliced=True), [OpenGate() for _ in run.guests])
    )


def mps(run: RunSpec) -> SharingOutcome:
    """Share under MPS: blocks of all clients are placed where they fit, in the order of ready kernels."""
    return simulate_run("mps", run, simulation_of(run, clients_of(run, sliced=False), [OpenGate() for _ in run.guests]))


def mps_priority(run: RunSpec) -> SharingOutcome:
    """Share under MPS with offline clients at a lower priority and no gate; running blocks are never preempted."""
    clients = [
        msgspec.structs.replace(client, priority=-1 if guest.online else 0)
        for guest, client in zip(run.guests, clients_of(run, sliced=False), strict=True)
    ]
    return simulate_run("mps-priority", run, simulation_of(run, clients, [OpenGate() for _ in run.guests]))
