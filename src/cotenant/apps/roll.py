"""Who is on a node? By the node itself or, where none answers, by its journal."""

from __future__ import annotations

import msgspec

from cotenant.domain.control import Dial
from cotenant.domain.gpu import Gpu
from cotenant.domain.instant import Instant
from cotenant.domain.protect import GpuWatch
from cotenant.domain.tenant import TenantView
from cotenant.errors import InvariantError
from cotenant.format.journal import TurnReader
from cotenant.host import Divergence, replay, same_promises
from cotenant.live.client import NodeAwayError, tenants_of
from cotenant.live.directory import Places
from cotenant.live.journal import Recovery
from cotenant.machine.node import NodeMachine


class Roll(msgspec.Struct, frozen=True):
    """Everybody at one instant of the node's clock: the present, or the last that is on record."""

    is_served: bool
    now_ns: Instant
    tenants: list[TenantView]
    gpus: list[Gpu]
    devices: list[GpuWatch]
    dials: list[Dial] = []


def roll_of(places: Places) -> Roll:
    """As the node says; of a node that is down, as far as its journal can be read."""
    try:
        answer = tenants_of(places.socket)
    except NodeAwayError:
        return _by_journal(places)
    return Roll(True, answer.now_ns, answer.tenants, answer.gpus, answer.devices, answer.dials)


def _by_journal(places: Places) -> Roll:
    machine = NodeMachine()
    recovery = Recovery(places.journal, TurnReader)
    try:
        replay(machine, recovery.turns(), same_promises)
    except (InvariantError, Divergence):
        return Roll(False, recovery.last_instant, [], [], [])
    gpus = list(machine.settings.gpus)
    return Roll(
        False, recovery.last_instant, machine.tenants(), gpus, machine.watches(), list(machine.seats.dials.values())
    )
