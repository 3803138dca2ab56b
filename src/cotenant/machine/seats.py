"""Who is on which device, as the others there know it?"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from cotenant.domain.gate import SEATS_LIMIT, GateRules, GateSeat
from cotenant.domain.tenant import Kind, Tenant


def seat_of(tenant: Tenant) -> GateSeat:
    """A tenant as its neighbours know it. Online work is served first anyway; offline work has its share as a least."""
    terms = tenant.terms
    online = terms.kind is Kind.ONLINE
    least_ppm = 0 if online else terms.share_ppm
    return GateSeat(terms.slot, terms.generation, terms.priority, online, tenant.paused, least_ppm)


class Seats:
    """Seats by device, in the order of their slots; device -1: those that got none may all be on the same.

    A change makes a new tuple of the old one's parts: rosters are said far more often than devices are full.
    """

    __slots__ = ("_seats", "_slots")

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        """Everybody who is there."""
        self._slots: dict[int, list[int]] = {}
        self._seats: dict[int, tuple[GateSeat, ...]] = {}
        for tenant in tenants:
            self.put(tenant)

    def put(self, tenant: Tenant) -> None:
        """Seat a tenant, or change what its seat says."""
        gpu, slot = tenant.terms.gpu, tenant.terms.slot
        slots, seats = self._slots.setdefault(gpu, []), self._seats.get(gpu, ())
        place = bisect.bisect_left(slots, slot)
        is_known = place < len(slots) and slots[place] == slot
        if not is_known:
            slots.insert(place, slot)
        self._seats[gpu] = (*seats[:place], seat_of(tenant), *seats[place + is_known :])

    def clear(self, tenant: Tenant) -> None:
        """Nobody sits there any more."""
        gpu = tenant.terms.gpu
        place = bisect.bisect_left(self._slots[gpu], tenant.terms.slot)
        del self._slots[gpu][place]
        seats = self._seats[gpu]
        self._seats[gpu] = seats[:place] + seats[place + 1 :]

    def slots(self, gpu: int) -> tuple[int, ...]:
        """The slots of all who are on a device."""
        return tuple(self._slots.get(gpu, ()))

    def seats(self, gpu: int) -> tuple[GateSeat, ...]:
        """All seats of a device, by slot."""
        return self._seats.get(gpu, ())

    def count(self, gpu: int) -> int:
        """How many are on a device."""
        return len(self._slots.get(gpu, ()))

    def devices(self) -> list[int]:
        """The devices on which somebody is."""
        return sorted(gpu for gpu, slots in self._slots.items() if slots)

    def roster(self, gpu: int, rules: GateRules) -> GateRules:
        """The rules with the seats of a device. A journal of an older version may know more than a roster holds."""
        seats = self._seats.get(gpu, ())
        return GateRules(
            rules.policy,
            rules.bound_ns,
            rules.delay_ppm,
            rules.patience_ns,
            rules.switch_ns,
            rules.spin_ppm,
            seats if len(seats) <= SEATS_LIMIT else seats[:SEATS_LIMIT],
        )
