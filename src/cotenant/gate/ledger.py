"""The memory ledger of a device: what each process of each tenant holds."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class LedgerLine(msgspec.Struct, frozen=True):
    """The line of one process, by the names in native/ledger/ledger.h."""

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
    """The bytes that count towards the quota."""
    contexts: int = 0
    code_bytes: int = 0


class LedgerAccount(msgspec.Struct, frozen=True):
    """The account of one tenant."""

    slot: int
    generation: int
    held_bytes: int
    lines: tuple[LedgerLine, ...] = ()
    denied_before: int = 0
    """The allocations of ended processes that the quota refused, and their bytes."""
    denied_bytes_before: int = 0

    @property
    def denied(self) -> int:
        """Return the number of allocations that the quota refused."""
        return self.denied_before + sum(line.denied for line in self.lines)

    @property
    def denied_bytes(self) -> int:
        """Return the bytes of the refused allocations."""
        return self.denied_bytes_before + sum(line.denied_bytes for line in self.lines)

    @property
    def wanted_bytes(self) -> int:
        """Return the largest allocation that waits for device memory; 0 if none does."""
        return max((line.wanted_bytes for line in self.lines), default=0)


class LedgerSnapshot(msgspec.Struct, frozen=True):
    """The ledger of a device at one instant; accounts by slot, also of slots that are free now."""

    gpu: int
    context_bytes: int
    accounts: Mapping[int, LedgerAccount]
