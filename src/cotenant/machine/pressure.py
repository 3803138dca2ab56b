"""Who gives way when an online tenant needs memory, and who waits for it?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cotenant.domain.action import Action, Refuse
from cotenant.domain.event import MemoryWanted, TenantJoined, WaitingJoin
from cotenant.domain.instant import Instant
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.protect import OnPressure, Stage
from cotenant.domain.tenant import Kind, Tenant, TenantSpec
from cotenant.format.quantity import format_size, round_size
from cotenant.machine.exits import ENDING, Exits
from cotenant.machine.roll import Roll
from cotenant.machine.suspensions import Suspensions
from cotenant.policy.protect.pressure import Candidate, victims

WAITING_LIMIT: Final = 64
"""Newcomers that wait at once for others to make room; one more is told to come again."""
_NO_BARS: Final[dict[int, Reject]] = {}


class Pressure:
    """Joins that wait, in the order they came, and those who give way to them."""

    __slots__ = ("_exits", "_roll", "_suspensions", "waiting")

    def __init__(self, roll: Roll, exits: Exits, suspensions: Suspensions) -> None:
        """Nobody waits."""
        self._roll = roll
        self._exits = exits
        self._suspensions = suspensions
        self.waiting: list[WaitingJoin] = []

    def make_room(self, event: TenantJoined, now: Instant, barred: dict[int, Reject]) -> list[Action] | None:
        """Let offline tenants give way to an online newcomer, which waits; None: not even that would help.

        On the device where the fewest must, unless the newcomer wants a certain one.
        """
        spec = event.spec
        if len(self.waiting) >= WAITING_LIMIT:
            return None
        wish = self._roll.device_called(spec.gpu) if spec.gpu else None
        devices = range(len(self._roll.settings.gpus)) if wish is None else [wish]
        plans = [(gpu, plan) for gpu in devices if (plan := self._plan(spec, gpu, barred)) is not None]
        if not plans:
            return None
        gpu, plan = min(plans, key=lambda found: len(found[1]))
        until_ns = now + self._roll.settings.limits.make_room_ns
        self.waiting.append(WaitingJoin(event.peer, event.pid, event.uid, spec, gpu, until_ns))
        name = f"online tenant {spec.name}" if spec.name else "an online tenant"
        why = f"{name} needs {format_size(spec.memory_bytes)} on GPU {gpu}"
        actions: list[Action] = []
        for slot in plan:
            tenant = self._roll.holders[slot]
            actions += self.give_way(tenant, why, tenant.spec.memory_bytes, now)
        return actions

    def _plan(self, spec: TenantSpec, gpu: int, barred: dict[int, Reject]) -> list[int] | None:
        """Who else must give way for this newcomer to fit on this device, beyond those who do already."""
        objection = self._roll.rooms.objection(spec, gpu, barred)
        if objection is None or objection.reason is not Reason.NO_MEMORY:
            return None
        here = self._roll.on(gpu)
        leaving = [one for one in here if _gives_way(one)]
        promised = [one.spec for one in self.waiting if one.gpu == gpu]
        coming_bytes = _memory(one.spec for one in leaving) - _memory(promised)
        short_bytes = spec.memory_bytes - self._roll.rooms.rooms[gpu].memory_free_bytes - coming_bytes
        candidates = [_candidate(one, one.spec.memory_bytes) for one in here if one.standing.stage is Stage.RUNNING]
        chosen = victims(candidates, max(short_bytes, 0))
        if chosen is None:
            return None
        gone = [*(one.spec for one in leaving), *(self._roll.holders[slot].spec for slot in chosen)]
        coming_bytes = _memory(gone) - _memory(promised)
        coming_ppm = sum(one.share_ppm for one in gone) - sum(one.share_ppm for one in promised)
        return chosen if self._roll.rooms.would_fit(gpu, spec, coming_bytes, coming_ppm) else None

    def wanted(self, event: MemoryWanted, now: Instant) -> list[Action]:
        """An online tenant waits for memory that it may have: offline tenants give theirs up, by what they hold."""
        asking = self._roll.of_slot(event.slot, event.generation)
        if asking is None or asking.terms.kind is not Kind.ONLINE or asking.standing.stage in ENDING:
            return []
        held = dict(event.held)
        here = [one for one in self._roll.on(asking.terms.gpu) if one.terms.slot in held]
        coming_bytes = sum(held[one.terms.slot] for one in here if _gives_way(one))
        candidates = [_candidate(one, held[one.terms.slot]) for one in here if one.standing.stage is Stage.RUNNING]
        why = f"online tenant {asking.name} needs {round_size(event.bytes)} on GPU {asking.terms.gpu}"
        actions: list[Action] = []
        for slot in victims(candidates, max(event.bytes - coming_bytes, 0)) or ():
            actions += self.give_way(self._roll.holders[slot], why, held[slot], now)
        return actions

    def give_way(self, tenant: Tenant, why: str, held_bytes: int, now: Instant) -> list[Action]:
        """Aside if it may, else out."""
        if tenant.spec.on_pressure is OnPressure.SUSPEND:
            return self._suspensions.begin(tenant.terms.slot, f"suspended: {why}", held_bytes, now)
        return self._exits.begin(tenant.terms.slot, f"evicted: {why}", now)

    # -- those who wait --------------------------------------------------------------------------------------------

    def bars(self, gpu: int) -> Instant | None:
        """Until when offline newcomers must leave a device to those who wait for it."""
        return max((one.until_ns for one in self.waiting if one.gpu == gpu), default=None)

    def is_waiting(self, peer: int) -> bool:
        """Whether a peer's join was not answered yet."""
        return any(one.peer == peer for one in self.waiting)

    def forget(self, peer: int) -> None:
        """Whoever waited is gone."""
        self.waiting = [one for one in self.waiting if one.peer != peer]

    def settle(self, now: Instant) -> list[Action]:
        """Those for whom there is room by now come in, in their order; who waited too long is told to come again."""
        actions: list[Action] = []
        for one in self.waiting.copy():
            answer = self._answer(one, now)
            if answer:
                self.waiting.remove(one)
                actions += answer
        return actions

    def _answer(self, one: WaitingJoin, now: Instant) -> list[Action]:
        spec, roll = one.spec, self._roll
        if spec.name and spec.name in roll.slot_of_name:
            return roll.refuse(one.peer, Reason.NAME_TAKEN, f"the name {spec.name!r} was taken while it waited")
        if roll.free and roll.rooms.objection(spec, one.gpu, _NO_BARS) is None:
            return roll.admit(TenantJoined(one.peer, one.pid, one.uid, spec), one.gpu, now)
        return [Refuse(roll.turn, one.peer, self._too_late(one.gpu))] if now >= one.until_ns else []

    def _too_late(self, gpu: int) -> Reject:
        wait_ns = self._roll.settings.limits.make_room_ns
        detail = f"the offline tenants of GPU {gpu} were asked to make room and have not yet; try again"
        return Reject(Reason.NO_ROOM_YET, detail, wait_ns)

    def turn_away(self, gpu: int, reject: Reject) -> list[Action]:
        """Nobody joins this device any more: who waited for it is told why."""
        turned = [one for one in self.waiting if one.gpu == gpu]
        self.waiting = [one for one in self.waiting if one.gpu != gpu]
        return [Refuse(self._roll.turn, one.peer, reject) for one in turned]


def _gives_way(tenant: Tenant) -> bool:
    """Whether it holds something that will be free without anybody asking for it."""
    standing = tenant.standing
    return not standing.aside and (standing.stage in ENDING or standing.stage is Stage.SUSPENDING)


def _memory(specs: Iterable[TenantSpec]) -> int:
    return sum(spec.memory_bytes for spec in specs)


def _candidate(tenant: Tenant, held_bytes: int) -> Candidate:
    terms = tenant.terms
    return Candidate(terms.slot, terms.kind, terms.priority, held_bytes, tenant.spec.on_pressure, tenant.joined_ns)
