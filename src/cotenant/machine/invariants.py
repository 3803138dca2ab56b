"""Does a node keep its promises? What must be true after every turn, whatever happened."""

from __future__ import annotations

from cotenant.domain.gate import GateSeat
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import NEVER
from cotenant.domain.plan import Plan, Seat
from cotenant.domain.protect import EVICTIONS_LIMIT, GpuWatch, Health, Stage
from cotenant.domain.tenant import Kind
from cotenant.errors import InvariantError
from cotenant.machine.devices import Devices
from cotenant.machine.dials import equals_of, has_objective
from cotenant.machine.pressure import WAITING_LIMIT, Pressure
from cotenant.machine.roll import Roll
from cotenant.machine.seats import seat_of
from cotenant.policy.limit.share import delay_of

_TIMELESS = (Stage.RUNNING, Stage.SUSPENDED)
"""Stages that end by themselves only: no deadline belongs to them."""


def plan_of(roll: Roll) -> Plan:
    """Who holds what of which device; whoever is aside holds nothing."""
    seats = [
        Seat(
            tenant.name,
            tenant.terms.gpu,
            0 if tenant.standing.aside else tenant.spec.memory_bytes,
            0 if tenant.standing.aside else tenant.spec.share_ppm,
        )
        for tenant in roll.holders.values()
        if tenant.terms.gpu < len(roll.settings.gpus)
    ]
    return Plan(roll.settings.gpus, tuple(seats))


def check(roll: Roll, devices: Devices, pressure: Pressure) -> None:
    """Raise `InvariantError` with the story if any promise is broken."""
    expected = [
        *_of_slots(roll),
        *_of_devices(roll, devices),
        *_of_dials(roll),
        *_of_standings(roll),
        *_of_waiting(roll, pressure),
    ]
    wrong = [f"{what} are {found}, not {right}" for what, found, right in expected if found != right]
    if wrong:
        raise InvariantError(f"after turn {roll.turn}: " + "; ".join(wrong))


def _of_slots(roll: Roll) -> list[tuple[str, object, object]]:
    held = {slot: tenant.terms for slot, tenant in roll.holders.items()}
    return [
        ("slots of the terms", {slot: terms.slot for slot, terms in held.items()}, {slot: slot for slot in held}),
        (
            "generations in force",
            {slot: terms.generation for slot, terms in held.items()},
            {slot: roll.generations[slot] for slot in held},
        ),
        ("free slots", sorted(roll.free), [slot for slot in range(roll.settings.slots) if slot not in held]),
        ("peers by slot", {peer: slot for slot, peer in roll.peer_of.items()}, roll.slot_of_peer),
        ("connected slots", [slot for slot in roll.peer_of if slot not in held], []),
        ("names", {tenant.name: slot for slot, tenant in roll.holders.items()}, roll.slot_of_name),
        ("waiting for somebody", roll.away_until != NEVER, len(roll.peer_of) < len(held)),
    ]


def _of_devices(roll: Roll, devices: Devices) -> list[tuple[str, object, object]]:
    held = {slot: tenant.terms for slot, tenant in roll.holders.items()}
    plan = plan_of(roll)
    watches = list(enumerate(devices.watches))
    disabled = [gpu for gpu, watch in watches if watch.health is Health.DISABLED]
    over = [gpu for gpu, watch in watches if watch.health is Health.OVERLIMIT]
    offline = [tenant for tenant in roll.holders.values() if tenant.terms.kind is Kind.OFFLINE]
    return [
        (
            "seats",
            {gpu: roll.seats.seats(gpu) for gpu in roll.seats.devices()},
            {
                gpu: tuple(_seat(roll, slot) for slot in sorted(held) if held[slot].gpu == gpu)
                for gpu in sorted({terms.gpu for terms in held.values()})
            },
        ),
        ("rooms", roll.rooms.rooms, [plan.room(room.index) for room in roll.rooms.rooms]),
        ("watched devices", len(watches), len(roll.settings.gpus)),
        ("blocked devices", [gpu for gpu, watch in watches if watch.blocked], disabled),
        ("evictions too many to remember", [gpu for gpu, watch in watches if _remembers_too_much(watch)], []),
        ("devices that are well", devices.is_well, devices.looks_well()),
        (
            "online tenants that nobody waits for",
            [gpu for gpu, one in devices.online_first.items() if not one.names],
            [],
        ),
        (
            "offline tenants that run beyond the limit",
            [one.name for one in offline if one.terms.gpu in over and one.standing.stage is Stage.RUNNING],
            [],
        ),
    ]


def _seat(roll: Roll, slot: int) -> GateSeat:
    return seat_of(roll.holders[slot], roll.seats.share_among_equals(slot))


def _of_dials(roll: Roll) -> list[tuple[str, object, object]]:
    dials = roll.seats.dials
    kept = {gpu: [one for one in roll.on(gpu) if has_objective(one)] for gpu in dials}
    equals = {gpu: equals_of(tenants) for gpu, tenants in kept.items()}
    shares = {slot: share_ppm for dial in dials.values() for slot, share_ppm in dial.shares}
    return [
        ("devices adjusted for nobody", [gpu for gpu, tenants in kept.items() if not tenants], []),
        ("devices adjusted though nothing is", bool(dials) and not roll.settings.control.enabled, False),
        (
            "devices that keep nothing or too much",
            [gpu for gpu, one in dials.items() if not _is_part(one.online_ppm)],
            [],
        ),
        (
            "shares of those who are gone",
            [s for gpu, one in dials.items() for s, _ in one.shares if s not in equals[gpu]],
            [],
        ),
        (
            "shares of nothing, or of too much",
            [slot for slot, share_ppm in shares.items() if not _is_part(share_ppm)],
            [],
        ),
        (
            "delays of the rosters",
            {gpu: roll.seats.roster(gpu, roll.rules).delay_ppm for gpu in dials},
            {gpu: delay_of(dial.online_ppm) for gpu, dial in dials.items()},
        ),
    ]


def _is_part(ppm: int) -> bool:
    return 0 < ppm <= WHOLE_PPM


def _remembers_too_much(watch: GpuWatch) -> bool:
    return len(watch.evictions) > EVICTIONS_LIMIT


def _of_standings(roll: Roll) -> list[tuple[str, object, object]]:
    standings = {slot: tenant.standing for slot, tenant in sorted(roll.holders.items())}
    suspended = [slot for slot, one in standings.items() if one.stage is Stage.SUSPENDED]
    timeless = [slot for slot, one in standings.items() if one.stage in _TIMELESS or slot not in roll.peer_of]
    return [
        (
            "deadlines",
            dict(sorted(roll.deadlines.items())),
            {slot: one.until_ns for slot, one in standings.items() if one.until_ns != NEVER},
        ),
        (
            "slots without a deadline",
            [slot for slot in standings if slot not in roll.deadlines and slot not in timeless],
            [],
        ),
        (
            "deadlines of those who have none",
            [slot for slot, one in standings.items() if one.stage in _TIMELESS and slot in roll.deadlines],
            [],
        ),
        (
            "suspended slots",
            sorted(roll.aside),
            [slot for slot, one in standings.items() if one.stage is Stage.SUSPENDED],
        ),
        ("slots aside that run", [slot for slot, one in standings.items() if one.aside and _runs(one.stage)], []),
        (
            "suspended slots with a reservation",
            [slot for slot in suspended if not standings[slot].aside],
            [],
        ),
    ]


def _runs(stage: Stage) -> bool:
    return stage in (Stage.RUNNING, Stage.SUSPENDING, Stage.RESTORING)


def _of_waiting(roll: Roll, pressure: Pressure) -> list[tuple[str, object, object]]:
    peers = [one.peer for one in pressure.waiting]
    return [
        ("peers that wait twice", len(set(peers)), len(peers)),
        ("peers that wait and are here", [peer for peer in peers if peer in roll.slot_of_peer], []),
        ("peers too many to wait", peers[WAITING_LIMIT:], []),
        ("offline tenants that wait", [one.peer for one in pressure.waiting if one.spec.kind is Kind.OFFLINE], []),
    ]
