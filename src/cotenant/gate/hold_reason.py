"""Find why a process waits at the gate, by running the gate's admission on a copy of the pages."""

from __future__ import annotations

import enum
from typing import Final

from cotenant import _native
from cotenant.gate.tenant_table import (
    TABLE_BYTES,
    assemble_memory,
    gate_page,
    process_pages,
    read_page,
    read_processes,
)
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.value import Value

_NEVER: Final = (1 << 64) - 1  # CT_GATE_NEVER in native/gate/pages.h: the launch fits no gap
_ASKS_WITHIN_NS: Final = SECOND_NS
"""A waiting tenant asks every few milliseconds; one that has not asked for this long was stopped or has died."""


class HoldReason(enum.Enum):
    """Why a launch waits; enum ct_gate_reason in native/gate/gate.h."""

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
    CLEAN = 18
    RANKS = 21


class HeldLaunch(Value, frozen=True):
    """A launch that waits."""

    hold: HoldReason
    again_ns: Instant
    """The latest instant at which the gate would check again."""
    active_slots: tuple[int, ...]
    """The slots of active tenants of higher priority."""


def find_hold(memory: memoryview, index: int, generation: int, now: Instant) -> HeldLaunch | None:
    """Return why a process waits at this instant, as the gate answers; None if it does not wait.

    `memory` is laid out as that of a simulated device; `assemble_memory` makes it from copies of shared pages. The
    pages do not show how much work the process has submitted. A launch that waits although the pages would let it pass
    therefore waits for its own submitted work.
    """
    page = _page(memory, index)
    wanted_ns = page["wanted_ns"]
    if page["generation"] != generation or not wanted_ns or now - page["asked_ns"] > _ASKS_WITHIN_NS:
        return None
    if page["ranks_ns"]:
        return HeldLaunch(HoldReason.RANKS, now, ())
    may_fill = wanted_ns != _NEVER
    needed_ns = wanted_ns - 1 if may_fill else 0
    processes = read_processes(memory)
    pages = {process.index: process_pages(memory, process.index) for process in processes}
    gate = _native.Gate(assemble_memory(bytes(memory[:TABLE_BYTES]), pages), index, generation)
    passes, reason, again_ns, *_ = gate.admit((needed_ns, needed_ns, 0, 0, int(may_fill)), now, now)
    own_priority = next((process.entry.priority for process in processes if process.index == index), -1)
    higher = [process for process in processes if process.entry.priority < own_priority]
    active = {process.tenant for process in higher if _is_active(_page(memory, process.index), process.generation, now)}
    return HeldLaunch(HoldReason.BOUND if passes else HoldReason(reason), again_ns, tuple(sorted(active)))


def _is_active(page: dict[str, int], generation: int, now: Instant) -> bool:
    return page["generation"] == generation and now < max(page["quiet_ns"], page["busy_ns"])


def _page(memory: memoryview, index: int) -> dict[str, int]:
    fields = read_page(gate_page(memory, index))
    return {name: word for name, word in fields.items() if isinstance(word, int)}
