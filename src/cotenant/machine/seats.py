"""Who is on which device, as the others there know it?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cotenant.domain.action import Action, Rise, Roster, Sit
from cotenant.domain.control import Dial
from cotenant.domain.gate import SEATS_LIMIT, GateRules, GateSeat, Limit
from cotenant.domain.protect import Stage
from cotenant.domain.tenant import PRIORITY_LOWEST, Kind, Tenant
from cotenant.policy.limit.share import delay_of

_HELD: Final = frozenset(
    {Stage.DRAINING, Stage.FINISHING, Stage.KILLED, Stage.SUSPENDING, Stage.SUSPENDED, Stage.RESTORING}
)
"""Stages in which a tenant launches nothing."""


def user_limit_ppm(tenant: Tenant) -> int:
    """The share among equals that its user gave it; 0: none."""
    return 0 if tenant.spec.limit is Limit.OFF else tenant.terms.share_ppm


def seat_of(tenant: Tenant, share_ppm: int = 0) -> GateSeat:
    """A tenant as its neighbours know it. Its share is its least below others, for online work too: it was promised.

    `share_ppm` is what the node gives it among its equals, where its user gave it no limit.

    One that was asked to end comes after everybody else, whatever it was before, and nobody's wish holds it back: it
    launches only to be done.
    """
    terms, stage = tenant.terms, tenant.standing.stage
    online = terms.kind is Kind.ONLINE
    if stage is Stage.TERMINATING:
        return GateSeat(terms.slot, terms.generation, PRIORITY_LOWEST, False, False, terms.share_ppm, True)
    paused = tenant.paused or stage in _HELD
    limit_ppm = user_limit_ppm(tenant) or share_ppm
    static = tenant.spec.limit is Limit.STATIC and limit_ppm > 0
    promised = (paused, terms.share_ppm, False, limit_ppm, static)
    return GateSeat(terms.slot, terms.generation, terms.priority, online, *promised)


class Seats:
    """Seats by device; device -1: those that got none may all be on the same.

    In no order: who is there changes with every turn, and is listed only when a whole roster is said. What a turn
    changes is noted, for the actions that say so.
    """

    __slots__ = ("_seats", "_shares", "dials", "stirred")

    def __init__(self, tenants: Iterable[Tenant] = (), dials: Iterable[Dial] = ()) -> None:
        """Everybody who is there, and what was said of their devices."""
        self.dials: dict[int, Dial] = {}
        self._shares: dict[int, int] = {}  # by slot, those of all dials
        for dial in dials:
            self.turn_to(dial)
        self._seats: dict[int, dict[int, GateSeat]] = {}
        self.stirred: dict[int, GateSeat | int | None] = {}  # a seat, a slot that nobody sits in now, or all of it
        for tenant in tenants:
            self.put(tenant)
        self.stirred.clear()

    def turn_to(self, dial: Dial) -> None:
        """What online work of a device keeps from now on; zero: nothing is said of it any more."""
        before = self.dials.pop(dial.gpu, None)
        for slot, _ in before.shares if before else ():
            self._shares.pop(slot, None)
        if dial.online_ppm:
            self.dials[dial.gpu] = dial
            self._shares.update(dial.shares)

    def share_among_equals(self, slot: int) -> int:
        """What the node gives this one; 0: nothing."""
        return self._shares.get(slot, 0)

    def put(self, tenant: Tenant) -> None:
        """Seat a tenant, or change what its seat says."""
        gpu, seat = tenant.terms.gpu, seat_of(tenant, self._shares.get(tenant.terms.slot, 0))
        seats = self._seats.setdefault(gpu, {})
        if seats.get(seat.slot) != seat:
            seats[seat.slot] = seat
            self._note(gpu, seat)

    def clear(self, tenant: Tenant) -> None:
        """Nobody sits there any more."""
        gpu, slot = tenant.terms.gpu, tenant.terms.slot
        del self._seats[gpu][slot]
        self._note(gpu, slot)

    def say_all(self, gpu: int) -> None:
        """The whole roster of a device must be said."""
        self._note(gpu, None)

    def _note(self, gpu: int, change: GateSeat | int | None) -> None:
        """Two changes in one turn are said at once, with all the rest; who has no device sits at no gate."""
        if gpu >= 0:
            self.stirred[gpu] = None if gpu in self.stirred else change

    def changes(self, turn: int, rules: GateRules) -> list[Action]:
        """What this turn changes of each roster, by device; asked once.

        Of a full device all is said: a journal of an older version may know more tenants than a roster holds.
        """
        said = [self._change(gpu, self.stirred[gpu], turn, rules) for gpu in sorted(self.stirred)]
        self.stirred.clear()
        return said

    def _change(self, gpu: int, change: GateSeat | int | None, turn: int, rules: GateRules) -> Action:
        if change is None or len(self._seats.get(gpu, ())) >= SEATS_LIMIT:
            return Roster(turn, gpu, self.roster(gpu, rules))
        return Sit(turn, gpu, change) if isinstance(change, GateSeat) else Rise(turn, gpu, change)

    def seats(self, gpu: int) -> tuple[GateSeat, ...]:
        """All seats of a device, by slot."""
        seats = self._seats.get(gpu, {})
        return tuple(seats[slot] for slot in sorted(seats))

    def count(self, gpu: int) -> int:
        """How many are on a device."""
        return len(self._seats.get(gpu, ()))

    def devices(self) -> list[int]:
        """The devices on which somebody is."""
        return sorted(gpu for gpu, seats in self._seats.items() if seats)

    def roster(self, gpu: int, rules: GateRules) -> GateRules:
        """The rules with the seats of a device, as many as a roster holds; what online may lose is its own matter."""
        dial = self.dials.get(gpu)
        return GateRules(
            rules.policy,
            rules.bound_ns,
            rules.delay_ppm if dial is None else delay_of(dial.online_ppm),
            rules.patience_ns,
            rules.switch_ns,
            rules.spin_ppm,
            self.seats(gpu)[:SEATS_LIMIT],
        )
