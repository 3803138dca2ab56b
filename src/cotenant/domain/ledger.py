"""What does each process of a tenant hold of a device's memory?"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class LedgerLine(msgspec.Struct, frozen=True):
    """One process, by the names in native/ledger/ledger.h."""

    slot: int
    generation: int
    line: int
    owner: int
    booked_bytes: int
    own_bytes: int
    own_version: int
    managed_bytes: int
    begun: int
    ended: int
    denied: int
    denied_bytes: int
    wanted_bytes: int
    fault: int
    excess_bytes: int
    measured_version: int
    held_bytes: int
    """What it counts for in all."""
    contexts: int = 0
    code_bytes: int = 0


class LedgerAccount(msgspec.Struct, frozen=True):
    """One tenant."""

    slot: int
    generation: int
    held_bytes: int
    lines: tuple[LedgerLine, ...] = ()
    denied_before: int = 0
    """Allocations of processes that are gone which were refused for the quota's sake, and their bytes."""
    denied_bytes_before: int = 0

    @property
    def denied(self) -> int:
        """Allocations that were refused for the quota's sake, so far."""
        return self.denied_before + sum(line.denied for line in self.lines)

    @property
    def denied_bytes(self) -> int:
        """What these asked for."""
        return self.denied_bytes_before + sum(line.denied_bytes for line in self.lines)

    @property
    def wanted_bytes(self) -> int:
        """The largest allocation that waits for room on the device; 0: none does."""
        return max((line.wanted_bytes for line in self.lines), default=0)


class LedgerLook(msgspec.Struct, frozen=True):
    """What the ledger of a device says at one instant: the accounts of those who were ever there, by slot."""

    gpu: int
    context_bytes: int
    accounts: Mapping[int, LedgerAccount]
