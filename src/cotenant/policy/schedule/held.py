"""Why does a tenant wait at the gate? Asks the gate itself, over a copy of its pages: nothing real is touched."""

from __future__ import annotations

import enum
from typing import Final

from cotenant import _native
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.domain.value import Value
from cotenant.policy.schedule.roster import PAGE_BYTES, page_offset, read_page, read_roster

_NEVER: Final = (1 << 64) - 1  # CT_GATE_NEVER in native/gate/pages.h: no gap lets it pass
_LOOKS_WITHIN_NS: Final = SECOND_NS
"""Whoever waits asks again every few milliseconds: one that has not for so long is stopped, or died."""


class Hold(enum.Enum):
    """What holds a launch back, by enum ct_gate_reason in native/gate/gate.h."""

    BUSY = 8
    TIGHT = 9
    DUE = 10
    BOUND = 11
    OTHER = 12
    PAUSED = 13
    CHANGED = 14
    DEBT = 15
    LIMIT = 16
    SHARE = 17


class Held(Value, frozen=True):
    """A launch that waits."""

    hold: Hold
    again_ns: Instant
    """When the gate would look again at the latest."""
    above: tuple[int, ...]
    """The slots of those above who are active."""


def held_at(file: bytes, slot: int, generation: int, now: Instant) -> Held | None:
    """What holds a tenant back at this instant, as the gate itself would answer; None: it does not wait.

    What its own process keeps to itself is not in the pages: how much of its work is submitted. A launch that waits
    although the pages would let it pass therefore waits for that.
    """
    page = _page(file, slot)
    wanted_ns = page["wanted_ns"]
    if page["generation"] != generation or not wanted_ns or now - page["asked_ns"] > _LOOKS_WITHIN_NS:
        return None
    may_fill = wanted_ns != _NEVER
    needed_ns = wanted_ns - 1 if may_fill else 0
    gate = _native.Gate(bytearray(file), slot, generation)
    passes, reason, again_ns = gate.ask((needed_ns, needed_ns, 0, 0, int(may_fill)), now, now)
    seats = read_roster(file).seats
    own = next((seat.priority for seat in seats if seat.slot == slot), -1)
    above = [seat for seat in seats if seat.priority < own]
    active = [seat.slot for seat in above if _is_active(_page(file, seat.slot), seat.generation, now)]
    return Held(Hold.BOUND if passes else Hold(reason), again_ns, tuple(active))


def _is_active(page: dict[str, int], generation: int, now: Instant) -> bool:
    return page["generation"] == generation and now < max(page["quiet_ns"], page["busy_ns"])


def _page(file: bytes, slot: int) -> dict[str, int]:
    begin = page_offset(slot)
    found = read_page(file[begin : begin + PAGE_BYTES])
    return {name: word for name, word in found.items() if isinstance(word, int)}
