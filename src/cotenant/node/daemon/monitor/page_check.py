"""Checks of the pages that processes write: contents that no correct hook can write are the tenant's fault.

A copy of a page may show a change half done, so what two words say together counts only if two copies agree.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from cotenant.gate.live_ledgers import MAX_BYTES
from cotenant.gate.process_pages import ProcessLedger, ShareRole
from cotenant.gate.tenant_table import PAGE_BYTES
from cotenant.node.model.fault import PageFault
from cotenant.units.instant import SECOND_NS, Instant

_NEVER: Final = (1 << 64) - 1  # CT_GATE_NEVER
_LATEST_NS: Final = 3600 * SECOND_NS
"""No hook announces work or a wait further ahead; its predictions reach 60 s (native/gate/gate.h)."""
_INSTANTS: Final = ("at_ns", "busy_ns", "waits_ns", "asked_ns", "unknown_ns", "requests_began_ns")
_GATE_COUNTERS: Final = ("sequence", "waits", "overruns", "forecasts", "requests_ended", "spun_ns", "slept_ns")
"""Counters that only increase while the generation of the page stays; that of launches does not."""
_LEDGER_COUNTERS: Final = ("begun", "ended", "denied", "own_version")
_MAX_CODE: Final = (1 << 31) - 1
_MAX_CONTEXTS: Final = 1 << 16
_WRITING: Final = 4  # CT_LEDGER_WRITING, the largest role
_SHARES: Final = 256
_ROLES: Final = struct.Struct("<" + "Q24x" * _SHARES)
_ROLES_OFFSET: Final = PAGE_BYTES + 64 + 128
"""The shares of struct ct_ledger_page follow its header and its line; the role is the first word of each."""


class PageCheck:
    """The checks of one process's pages between two copies."""

    def __init__(self, generation: int, device_bytes: int) -> None:
        """`generation` is that of the process, `device_bytes` the memory of its device; 0: unknown."""
        self._generation = generation
        self._max_bytes = 2 * device_bytes or MAX_BYTES
        self._gate: Mapping[str, object] | None = None
        self._ledger: ProcessLedger | None = None
        self._is_gate_used = False
        self._is_ledger_used = False
        self._suspected: tuple[PageFault, int] | None = None

    @property
    def is_suspicious(self) -> bool:
        """Return whether the latest copy of the ledger page is invalid if the next one agrees with it."""
        return self._suspected is not None

    def gate_fault(self, page: Mapping[str, int | list[int]], now: Instant) -> PageFault | None:
        """Return what is wrong with a copy of the gate page."""
        before, self._gate = self._gate, page
        generation = page["generation"]
        if generation != self._generation:
            return PageFault.WRONG_GENERATION if generation and self._is_gate_used else None
        is_comparable, self._is_gate_used = self._is_gate_used, True
        if any(_word(page, name) not in (0, _NEVER) and _word(page, name) > now + _LATEST_NS for name in _INSTANTS):
            return PageFault.IMPOSSIBLE_INSTANT
        if not is_comparable or before is None or before["generation"] != generation:
            return None
        decreased = any(_word(page, name) < _word(before, name) for name in _GATE_COUNTERS)
        return PageFault.COUNTER_DECREASED if decreased else None

    def ledger_fault(self, ledger: ProcessLedger, copy: bytes) -> PageFault | None:
        """Return what is wrong with the ledger page in a copy of all pages."""
        before, self._ledger = self._ledger, ledger
        if ledger.generation != self._generation:
            return PageFault.WRONG_GENERATION if ledger.generation and self._is_ledger_used else None
        is_comparable, self._is_ledger_used = self._is_ledger_used, True
        if is_comparable and before is not None and _is_decreased(before, ledger):
            return PageFault.COUNTER_DECREASED
        if ledger.fault > _MAX_CODE or ledger.contexts > _MAX_CONTEXTS:
            return PageFault.IMPOSSIBLE_AMOUNT
        if any(role > _WRITING for role in _ROLES.unpack_from(copy, _ROLES_OFFSET)):
            return PageFault.IMPOSSIBLE_SHARE
        return self._amount_fault(ledger)

    def _amount_fault(self, ledger: ProcessLedger) -> PageFault | None:
        """Return an impossible amount that two copies show between the same two calls of the hook.

        During a call the hook may add an amount that it then refuses.
        """
        fault = None
        if ledger.begun == ledger.ended:
            amounts = ledger.allocated_bytes, ledger.own_bytes, ledger.wanted_bytes
            sizes = [
                size_bytes for role, _, size_bytes in ledger.shares if role in (ShareRole.EXPORT, ShareRole.ORPHANED)
            ]
            if max(amounts) > self._max_bytes or ledger.managed_bytes > MAX_BYTES:
                fault = PageFault.IMPOSSIBLE_AMOUNT
            elif max(sizes, default=0) > self._max_bytes or any(role and not key for role, key, _ in ledger.shares):
                fault = PageFault.IMPOSSIBLE_SHARE
        elif ledger.ended > ledger.begun:
            fault = PageFault.COUNTER_DECREASED
        suspected = None if fault is None else (fault, ledger.begun)
        before, self._suspected = self._suspected, suspected
        return fault if suspected is not None and suspected == before else None


def _is_decreased(before: ProcessLedger, after: ProcessLedger) -> bool:
    is_same = before.generation == after.generation
    return is_same and any(getattr(after, name) < getattr(before, name) for name in _LEDGER_COUNTERS)


def _word(page: Mapping[str, object], name: str) -> int:
    word = page[name]
    return word if isinstance(word, int) else 0
