"""The product's own way to share: its gate before every launch, and its controller over the pages of the gate."""

from __future__ import annotations

import msgspec

from cotenant.domain.gate import GatePolicy, GateRules, GateSeat
from cotenant.experiment.kernels import works_of
from cotenant.experiment.together import Outcome, Run, Turn, clients_of, live_through, world_of
from cotenant.policy.schedule.passage import Passage
from cotenant.policy.schedule.roster import file_bytes, format_roster, write_roster
from cotenant.sim.kernels_host import Client

_FIRST = -1
"""Under MPS, `cotenant run` starts offline programs below the normal priority of clients: here online ones are above."""


def cotenant(run: Run) -> Outcome:
    """Under MPS, with client priorities."""
    return _controlled("cotenant", run, sliced=False)


def cotenant_slice(run: Run) -> Outcome:
    """Where processes take turns by time slice."""
    return _controlled("cotenant-slice", run, sliced=True)


def _controlled(way: str, run: Run, *, sliced: bool) -> Outcome:
    file = bytearray(file_bytes(len(run.guests)))
    format_roster(file, len(run.guests))
    write_roster(file, rules_of(run, sliced=sliced))
    sms = 0 if sliced else run.setting.device.sm_count
    doors = [Passage(file, place, 1, *works_of(guest.load, sms)) for place, guest in enumerate(run.guests)]
    turns: list[Turn] = []
    return live_through(way, run, world_of(run, _clients(run, sliced=sliced), doors), turns)


def rules_of(run: Run, *, sliced: bool) -> GateRules:
    """What the roster says at first."""
    seats = tuple(
        GateSeat(
            *(place, 1, guest.priority, guest.online),
            least_ppm=guest.least_ppm,
            limit_ppm=guest.limit_ppm,
            static=guest.static,
        )
        for place, guest in enumerate(run.guests)
    )
    switch_ns = run.setting.device.switch_ns if sliced else 0
    return msgspec.structs.replace(run.setting.rules, policy=GatePolicy.FILL, switch_ns=switch_ns, seats=seats)


def _clients(run: Run, *, sliced: bool) -> list[Client]:
    return [
        msgspec.structs.replace(client, priority=_FIRST if guest.online else 0)
        for guest, client in zip(run.guests, clients_of(run, sliced=sliced), strict=True)
    ]
