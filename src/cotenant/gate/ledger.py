"""The memory ledger of a device: what each process of each tenant holds."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class LedgerLine(msgspec.Struct, frozen=True):
    """The line of one attached process, by the names in native/ledger/ledger.h, and what the node knows about it."""

    index: int
    pid: int
    allocated_bytes: int
    own_bytes: int
    managed_bytes: int
    denied: int
    denied_bytes: int
    wanted_bytes: int
    contexts: int
    code_bytes: int
    excess_bytes: int
    """What the device reports beyond `allocated_bytes` and `own_bytes`; may be negative."""
    held_bytes: int
    """The bytes that count towards the quota."""


class LedgerAccount(msgspec.Struct, frozen=True):
    """The account of one tenant."""

    slot: int
    generation: int
    held_bytes: int
    lines: tuple[LedgerLine, ...] = ()
    denied_before: int = 0
    """The allocations of ended processes that the quota refused, and their bytes."""
    denied_bytes_before: int = 0
    unattached_bytes: int = 0
    """The part of `held_bytes` that no attached process has recorded."""
    imported_bytes: int = 0
    """Memory of other tenants that its processes have open; it counts for its owner."""
    measured_bytes: int | None = None
    """What the device attributes to its processes; None: unknown."""
    unseen_bytes: int = 0
    """Memory that its hook did not see."""
    over_bytes: int = 0
    """Measured memory beyond its quota."""

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
    """The ledger of a device at one instant; accounts by slot."""

    gpu: int
    context_bytes: int
    accounts: Mapping[int, LedgerAccount]
    foreign_bytes: int = 0
    """Memory of processes that belong to no tenant."""
    unmatched_bytes: int = 0
    """Memory of processes that the node cannot find, because they are in another pid namespace."""
