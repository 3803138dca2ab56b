"""Who is on which device, as the others there know it?"""

from __future__ import annotations

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
    """Seats by device; device -1: those that got none may all be on the same.

    In no order: who is there changes with every turn, and is listed only when a whole roster is said.
    """

    __slots__ = ("_seats",)

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        """Everybody who is there."""
        self._seats: dict[int, dict[int, GateSeat]] = {}
        for tenant in tenants:
            self.put(tenant)

    def put(self, tenant: Tenant) -> GateSeat:
        """Seat a tenant, or change what its seat says."""
        seat = seat_of(tenant)
        self._seats.setdefault(tenant.terms.gpu, {})[seat.slot] = seat
        return seat

    def clear(self, tenant: Tenant) -> None:
        """Nobody sits there any more."""
        del self._seats[tenant.terms.gpu][tenant.terms.slot]

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
        """The rules with the seats of a device. A journal of an older version may know more than a roster holds."""
        return GateRules(
            rules.policy,
            rules.bound_ns,
            rules.delay_ppm,
            rules.patience_ns,
            rules.switch_ns,
            rules.spin_ppm,
            self.seats(gpu)[:SEATS_LIMIT],
        )
