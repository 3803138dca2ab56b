"""Static percentages of the SMs under MPS: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, set once when the programs start.

Two ways to choose them: the same for everybody, or by the knee (each online tenant what it needs to be nearly as fast
as alone, as measured beforehand; offline tenants the rest in equal parts).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.domain.curve import knee_pct
from cotenant.domain.load import BACK_TO_BACK
from cotenant.experiment.kernels import Setting
from cotenant.experiment.together import Guest, Outcome, Run, clients_of, live_through, world_of
from cotenant.sim.kernels import World
from cotenant.sim.kernels_host import Client, Open

OFFLINE_LEAST_PCT: Final = 10
"""What all offline tenants together are left at least, where online knees would take everything."""
_SHARES: Final = (5, *range(10, 101, 10))


def percent_equal(run: Run) -> Outcome:
    """Everybody the same share of the SMs."""
    return _limited("mps-percent", run, [100 // len(run.guests)] * len(run.guests))


def percent_knee(run: Run) -> Outcome:
    """Online tenants their knee, offline tenants the rest."""
    return _limited("mps-percent-knee", run, knee_percentages(run.guests, run.setting))


def knee_percentages(guests: Sequence[Guest], setting: Setting) -> list[int]:
    """In the order of the tenants; 100 in sum, or less where nobody is offline."""
    knees = [knee_of(guest, setting) if guest.online else 0 for guest in guests]
    below = sum(not guest.online for guest in guests)
    room = 100 - (OFFLINE_LEAST_PCT if below else 0)
    if sum(knees) > room:
        knees = [knee * room // sum(knees) for knee in knees]
    rest = (100 - sum(knees)) // below if below else 0
    return [max(knee if guest.online else rest, 1) for guest, knee in zip(guests, knees, strict=True)]


def knee_of(guest: Guest, setting: Setting) -> int:
    """By one request alone at every share."""
    load = msgspec.structs.replace(guest.load, arrival=BACK_TO_BACK, requests=1)
    costs = msgspec.structs.replace(setting.costs, jitter_ppm=0)
    curve = {}
    for share in _SHARES:
        client = Client(load, 0, sm_cap=sms_of(share, setting.device.sm_count))
        played = World(setting.device, [client], [Open()], costs, 0).play()
        curve[share] = float(played.clients[0].latencies_ns[0])
    return knee_pct(curve)


def sms_of(percent: int, sm_count: int) -> int:
    """Whole SMs, at least one; of everything there is no cap."""
    return 0 if percent >= 100 else max(percent * sm_count // 100, 1)


def _limited(way: str, run: Run, percentages: Sequence[int]) -> Outcome:
    clients = [
        msgspec.structs.replace(client, sm_cap=sms_of(percent, run.setting.device.sm_count))
        for client, percent in zip(clients_of(run, sliced=False), percentages, strict=True)
    ]
    outcome = live_through(way, run, world_of(run, clients, [Open() for _ in run.guests]))
    return msgspec.structs.replace(
        outcome, figures={f"percent {place}": percent for place, percent in enumerate(percentages)}
    )
