"""Static percentages of the SMs under MPS: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, set once when the programs start.

Percentages are equal, or by the knee: each online tenant gets what it needs to be nearly as fast as alone, measured
beforehand; offline tenants get equal parts of the remainder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.predict.curve import knee_pct
from cotenant.simulate.kernels import RunSettings
from cotenant.simulate.sharing import Guest, RunSpec, SharingOutcome, clients_of, simulate_run, simulation_of
from cotenant.softgpu.sim.host import Client, OpenGate
from cotenant.softgpu.sim.kernels import DeviceSimulation
from cotenant.workload.load import BACK_TO_BACK

OFFLINE_LEAST_PCT: Final = 10
"""Minimum for all offline tenants together, if online knees would take everything."""
_SHARES: Final = (5, *range(10, 101, 10))


def percent_equal(run: RunSpec) -> SharingOutcome:
    """Give every tenant the same percentage."""
    return _limited("mps-percent", run, [100 // len(run.guests)] * len(run.guests))


def percent_knee(run: RunSpec) -> SharingOutcome:
    """Give online tenants their knee, and offline tenants the remainder."""
    return _limited("mps-percent-knee", run, knee_percentages(run.guests, run.setting))


def knee_percentages(guests: Sequence[Guest], setting: RunSettings) -> list[int]:
    """Return percentages in the order of the tenants; the sum is 100, or less without offline tenants."""
    knees = [knee_of(guest, setting) if guest.online else 0 for guest in guests]
    offline = sum(not guest.online for guest in guests)
    available = 100 - (OFFLINE_LEAST_PCT if offline else 0)
    if sum(knees) > available:
        knees = [knee * available // sum(knees) for knee in knees]
    remainder = (100 - sum(knees)) // offline if offline else 0
    return [max(knee if guest.online else remainder, 1) for guest, knee in zip(guests, knees, strict=True)]


def knee_of(guest: Guest, setting: RunSettings) -> int:
    """Measure one request alone at every share."""
    load = msgspec.structs.replace(guest.load, arrival=BACK_TO_BACK, requests=1)
    costs = msgspec.structs.replace(setting.costs, jitter_ppm=0)
    curve = {}
    for share in _SHARES:
        client = Client(load, 0, sm_cap=sms_of(share, setting.device.sm_count))
        played = DeviceSimulation(setting.device, [client], [OpenGate()], costs, 0).play()
        curve[share] = float(played.clients[0].latencies_ns[0])
    return knee_pct(curve)


def sms_of(percent: int, sm_count: int) -> int:
    """Return whole SMs, at least one; 100 % is no cap."""
    return 0 if percent >= 100 else max(percent * sm_count // 100, 1)


def _limited(mode: str, run: RunSpec, percentages: Sequence[int]) -> SharingOutcome:
    clients = [
        msgspec.structs.replace(client, sm_cap=sms_of(percent, run.setting.device.sm_count))
        for client, percent in zip(clients_of(run, sliced=False), percentages, strict=True)
    ]
    outcome = simulate_run(mode, run, simulation_of(run, clients, [OpenGate() for _ in run.guests]))
    return msgspec.structs.replace(
        outcome, metrics={f"percent {index}": percent for index, percent in enumerate(percentages)}
    )
