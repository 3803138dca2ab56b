"""The product's own way to share: its gate before every launch, and its controller over the pages of the gate.

Nothing here decides. Launches ask the gate's own code, windows are read from the same pages by the same code as those
of a node, and the machine's own seats say what an adjustment makes of the roster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from cotenant.domain.control import Adjustment, ControlLimits, DeviceWindow, Dial
from cotenant.domain.tenant import Kind, Tenant, TenantSpec, Terms
from cotenant.experiment.kernels import works_of
from cotenant.experiment.together import Guest, Outcome, Run, Turn, clients_of, live_through, world_of
from cotenant.machine.control import Control
from cotenant.machine.seats import Seats, user_limit_ppm
from cotenant.machine.windows import Occupant, Windows
from cotenant.policy.schedule.passage import Passage
from cotenant.policy.schedule.roster import file_bytes, format_roster, page_offset, read_page, write_roster
from cotenant.sim.kernels_host import Client, Door

Watch: TypeAlias = Callable[[DeviceWindow], None]
_GPU: Final = 0
_GENERATION: Final = 1
_ABOVE: Final = -1
"""Under MPS, `cotenant run` starts offline programs below the normal priority of clients: here online is above."""


class Steering:
    """A device's gate file and what steers it. A tenant's slot is its place in the run."""

    def __init__(self, run: Run, limits: ControlLimits, *, sliced: bool, watch: Watch | None = None) -> None:
        """Everybody sits; nothing was seen yet."""
        self._watch = watch
        self._guests, self._sms = run.guests, 0 if sliced else run.setting.device.sm_count
        self._tenants = [_tenant(guest, place) for place, guest in enumerate(run.guests)]
        self._occupants = [
            Occupant(place, _GENERATION, guest.online, guest.slo_ns, guest.priority, user_limit_ppm(tenant))
            for place, (guest, tenant) in enumerate(zip(run.guests, self._tenants, strict=True))
        ]
        switch_ns = run.setting.device.switch_ns if sliced else 0
        self._rules = msgspec.structs.replace(run.setting.rules, switch_ns=switch_ns)
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
        window = self._windows.window(now_ns, self._occupants, pages)
        if self._watch is not None:
            self._watch(window)
        adjustment = self._control.seen(window, now_ns)
        if adjustment is not None:
            self.adjust(adjustment, now_ns)

    def doors(self) -> list[Door]:
        """Each tenant before the gate, as the hook is inside its process."""
        return [
            Passage(self.file, (place, _GENERATION), *works_of(guest.load, self._sms), guest.slo_ns)
            for place, guest in enumerate(self._guests)
        ]

    def page(self, slot: int) -> dict[str, int | list[int]]:
        """What a tenant's page says now."""
        return read_page(bytes(self.file[page_offset(slot) : page_offset(slot + 1)]))

    def adjust(self, adjustment: Adjustment, now_ns: int) -> None:
        """Let a decision be in force from now on."""
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


def steered(way: str, run: Run, limits: ControlLimits, *, sliced: bool, watch: Watch | None = None) -> Outcome:
    """Within these limits; a controller that is off leaves what the setting's rules say. All windows can be watched."""
    steering = Steering(run, limits, sliced=sliced, watch=watch)
    world = world_of(run, _clients(run.guests, clients_of(run, sliced=sliced)), steering.doors())
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
