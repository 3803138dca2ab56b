"""Pressure: when online needs memory, who gives it up? Lowest priority first, then whoever came last."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.domain.instant import Instant
from cotenant.domain.protect import OnPressure
from cotenant.domain.tenant import Kind
from cotenant.domain.value import Value


class Candidate(Value, frozen=True):
    """A tenant of the device, and what would come free if it gave way."""

    slot: int
    kind: Kind
    priority: int
    held_bytes: int
    mode: OnPressure
    joined_ns: Instant


def victims(candidates: Sequence[Candidate], needed_bytes: int) -> list[int] | None:
    """The slots that give way, first the first to go; None: not even all of them would do.

    Nobody is in it without need. A tenant that has run for longer has more to lose; of two that came at once the one
    that is only suspended goes first.
    """
    offline = [one for one in candidates if one.kind is Kind.OFFLINE and one.held_bytes > 0]
    offline.sort(key=lambda one: (-one.priority, -one.joined_ns, one.mode is OnPressure.EVICT, one.slot))
    chosen: list[Candidate] = []
    freed_bytes = 0
    for one in offline:
        if freed_bytes >= needed_bytes:
            break
        chosen.append(one)
        freed_bytes += one.held_bytes
    if freed_bytes < needed_bytes:
        return None
    for one in reversed(chosen.copy()):  # a later one may be large enough to spare an earlier; spare the best first
        if freed_bytes - one.held_bytes >= needed_bytes:
            chosen.remove(one)
            freed_bytes -= one.held_bytes
    return [one.slot for one in chosen]
