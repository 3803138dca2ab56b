"""The product's own way to share: its gate before every launch, and its controller over the pages of the gate.

Nothing here decides. Launches ask the gate's own code, windows are read from the same pages by the same code as those
of a node, and the machine's own seats say what an adjustment makes of the roster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.domain.control import Adjustment, ControlLimits, Dial
from cotenant.domain.gate import GatePolicy
from cotenant.domain.tenant import Kind, Tenant, TenantSpec, Terms
from cotenant.experiment.kernels import works_of
from cotenant.experiment.together import Guest, Outcome, Run, Turn, clients_of, live_through, world_of
from cotenant.machine.control import Control
from cotenant.machine.seats import Seats
from cotenant.machine.windows import Occupant, Windows
from cotenant.policy.schedule.passage import Passage
from cotenant.policy.schedule.roster import file_bytes, format_roster, page_offset, read_page, write_roster
from cotenant.sim.kernels_host import Client

_GPU: Final = 0
_GENERATION: Final = 1
_ABOVE: Final = -1
"""Under MPS, `cotenant run` starts offline programs below the normal priority of clients: here online is above."""


class Steering:
    """A device's gate file and what steers it. A tenant's slot is its place in the run."""

    def __init__(self, run: Run, limits: ControlLimits, *, sliced: bool) -> None:
        """Everybody sits; nothing was seen yet."""
        self._tenants = [_tenant(guest, place) for place, guest in enumerate(run.guests)]
        self._occupants = [
            Occupant(place, _GENERATION, guest.online, guest.slo_ns) for place, guest in enumerate(run.guests)
        ]
        switch_ns = run.setting.device.switch_ns if sliced else 0
        self._rules = msgspec.structs.replace(run.setting.rules, policy=GatePolicy.FILL, switch_ns=switch_ns)
        self._seats = Seats(self._tenants)
        self._control = Control(limits)
        self._windows = Windows(_GPU, 0)
        self.file = bytearray(file_bytes(len(run.guests)))
        self.turns: list[Turn] = []
        format_roster(self.file, len(run.guests))
        self._write()

    def look(self, now_ns: int) -> None:
        """One period is over."""
        pages = {one.slot: self.page(one.slot) for one in self._occupants}
        adjustment = self._control.seen(self._windows.window(now_ns, self._occupants, pages), now_ns)
        if adjustment is not None:
            self._adjust(adjustment, now_ns)

    def page(self, slot: int) -> dict[str, int | list[int]]:
        """What a tenant's page says now."""
        return read_page(bytes(self.file[page_offset(slot) : page_offset(slot + 1)]))

    def _adjust(self, adjustment: Adjustment, now_ns: int) -> None:
        self._seats.turn_to(Dial(_GPU, adjustment.online_ppm, adjustment.shares))
        for tenant in self._tenants:
            self._seats.put(tenant)
        self._write()
        self.turns.append(
            Turn(
                at_ns=now_ns,
                online_ppm=adjustment.online_ppm,
                cause=adjustment.cause.value,
                detail=adjustment.detail,
                shares=adjustment.shares,
            )
        )

    def _write(self) -> None:
        write_roster(self.file, self._seats.roster(_GPU, self._rules))


def cotenant(run: Run) -> Outcome:
    """Under MPS, with client priorities."""
    return steered("cotenant", run, ControlLimits(), sliced=False)


def cotenant_slice(run: Run) -> Outcome:
    """Where processes take turns by time slice."""
    return steered("cotenant-slice", run, ControlLimits(), sliced=True)


def steered(way: str, run: Run, limits: ControlLimits, *, sliced: bool) -> Outcome:
    """Within these limits; a controller that is off leaves what the setting's rules say."""
    steering = Steering(run, limits, sliced=sliced)
    sms = 0 if sliced else run.setting.device.sm_count
    doors = [
        Passage(steering.file, (place, _GENERATION), *works_of(guest.load, sms), guest.slo_ns)
        for place, guest in enumerate(run.guests)
    ]
    world = world_of(run, _clients(run.guests, clients_of(run, sliced=sliced)), doors)
    world.every(limits.period_ns, steering.look)
    return live_through(way, run, world, steering.turns)


def _clients(guests: Sequence[Guest], clients: Sequence[Client]) -> list[Client]:
    return [
        msgspec.structs.replace(client, priority=_ABOVE if guest.online else 0)
        for guest, client in zip(guests, clients, strict=True)
    ]


def _tenant(guest: Guest, slot: int) -> Tenant:
    kind = Kind.ONLINE if guest.online else Kind.OFFLINE
    spec = TenantSpec(kind, guest.priority, slo_ns=guest.slo_ns, share_ppm=guest.share_ppm, limit=guest.limit)
    terms = Terms(slot, _GENERATION, kind, guest.priority, guest.share_ppm, 0, guest.slo_ns, _GPU)
    return Tenant(guest.load.name, terms, spec, slot + 1, 0, 0)
