"""The choice of tenants that give up memory: lowest priority first, then the latest joined."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.gate.grant import Kind
from cotenant.node.model.protection import OnPressure
from cotenant.units.instant import Instant
from cotenant.units.value import Value


class Candidate(Value, frozen=True):
    """A tenant of the device, and the memory that it would free."""

    slot: int
    kind: Kind
    priority: int
    held_bytes: int
    mode: OnPressure
    joined_ns: Instant


def victims(candidates: Sequence[Candidate], needed_bytes: int) -> list[int] | None:
    """Return the slots that give up memory, in order; None: all together would not suffice.

    No tenant is chosen without need. A tenant that has run longer has more to lose; of two that joined at the same
    instant, one that can be suspended goes first.
    """
    offline = [tenant for tenant in candidates if tenant.kind is Kind.OFFLINE and tenant.held_bytes > 0]
    offline.sort(key=lambda tenant: (-tenant.priority, -tenant.joined_ns, tenant.mode is OnPressure.EVICT, tenant.slot))
    chosen: list[Candidate] = []
    freed_bytes = 0
    for tenant in offline:
        if freed_bytes >= needed_bytes:
            break
        chosen.append(tenant)
        freed_bytes += tenant.held_bytes
    if freed_bytes < needed_bytes:
        return None
    for tenant in reversed(chosen.copy()):  # a later one may free enough to spare an earlier one; spare the best first
        if freed_bytes - tenant.held_bytes >= needed_bytes:
            chosen.remove(tenant)
            freed_bytes -= tenant.held_bytes
    return [tenant.slot for tenant in chosen]
