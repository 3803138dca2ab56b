"""Who is on which device, as the others there know it?"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cotenant.domain.gate import SEATS_LIMIT, GateRules, GateSeat
from cotenant.domain.tenant import Kind, Tenant


def seat_of(tenant: Tenant) -> GateSeat:
    """A tenant as its neighbours know it. Online work is served first anyway; offline work has its share as a least."""
    terms = tenant.terms
    online = terms.kind is Kind.ONLINE
    least_ppm = 0 if online else terms.share_ppm
    return GateSeat(terms.slot, terms.generation, terms.priority, online, tenant.paused, least_ppm)


class Seats:
    """Seats by device and slot; device -1: those that got none may all be on the same."""

    __slots__ = ("_on",)

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        """Everybody who is there."""
        self._on: dict[int, dict[int, GateSeat]] = {}
        for tenant in tenants:
            self.put(tenant)

    def put(self, tenant: Tenant) -> None:
        """Seat a tenant, or change what its seat says."""
        self._on.setdefault(tenant.terms.gpu, {})[tenant.terms.slot] = seat_of(tenant)

    def clear(self, tenant: Tenant) -> None:
        """Nobody sits there any more."""
        del self._on[tenant.terms.gpu][tenant.terms.slot]

    def slots(self, gpu: int) -> list[int]:
        """The slots of all who are on a device."""
        return sorted(self._on.get(gpu, ()))

    def seats(self, gpu: int) -> tuple[GateSeat, ...]:
        """All seats of a device, by slot."""
        return tuple(self._on[gpu][slot] for slot in self.slots(gpu))

    def count(self, gpu: int) -> int:
        """How many are on a device."""
        return len(self._on.get(gpu, ()))

    def devices(self) -> list[int]:
        """The devices on which somebody is."""
        return sorted(gpu for gpu, seats in self._on.items() if seats)

    def roster(self, gpu: int, rules: GateRules) -> GateRules:
        """The rules with the seats of a device. A journal of an older version may know more than a roster holds."""
        return msgspec.structs.replace(rules, seats=self.seats(gpu)[:SEATS_LIMIT])
