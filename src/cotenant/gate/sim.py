"""Simulated grant pages, tenant tables and ledgers: dictionaries in place of files."""

from __future__ import annotations

import msgspec

from cotenant.gate.grant import Grant
from cotenant.gate.rules import GateEntry, GateRules


class SimGrantPages:
    """Grant pages; the handle of a page is its slot."""

    __slots__ = ("_grants", "_neighbours")

    def __init__(self) -> None:
        """Begin with all slots free."""
        self._grants: dict[int, dict[int, Grant]] = {}  # by slot, then by device in the order of the tenant
        self._neighbours: dict[int, int] = {}  # by device: its tenants all have the same number

    def publish(self, grant: Grant, neighbours: int) -> int:
        """Store the grant of a slot on one device."""
        held = self._grants.setdefault(grant.slot, {})
        if any(each.generation != grant.generation for each in held.values()):
            held.clear()
        held[grant.gpu] = grant
        self._neighbours[grant.gpu] = neighbours
        return grant.slot

    def revoke(self, slot: int, generation: int) -> None:
        """Free the slot if this generation holds it."""
        if any(each.generation == generation for each in self._grants.get(slot, {}).values()):
            del self._grants[slot]

    def set_neighbour_count(self, gpu: int, neighbours: int) -> None:
        """Change the number of other tenants on a device."""
        self._neighbours[gpu] = neighbours

    def read(self, slot: int) -> Grant | None:
        """Return the grant of a slot with all of its devices; None if it is free."""
        held = self._grants.get(slot)
        if not held:
            return None
        gpu, *more_gpus = held
        return msgspec.structs.replace(held[gpu], more_gpus=tuple(more_gpus))

    def neighbours(self, slot: int) -> int:
        """Return the number of other tenants on the slot's first device; -1 if the slot is free."""
        held = self._grants.get(slot)
        return -1 if not held else self._neighbours[next(iter(held))]


class SimTenantTables:
    """Tenant tables; both handles of a device are its number."""

    __slots__ = ("_entries", "_rules")

    def __init__(self) -> None:
        """Begin without tables."""
        self._rules: dict[int, GateRules] = {}
        self._entries: dict[int, dict[int, GateEntry]] = {}

    def set_table(self, gpu: int, rules: GateRules) -> None:
        """Replace the tenant table of a device."""
        self._rules[gpu] = rules
        self._entries[gpu] = {entry.slot: entry for entry in rules.entries}

    def upsert(self, gpu: int, entry: GateEntry) -> None:
        """Add one entry, or replace it."""
        self._entries[gpu][entry.slot] = entry

    def remove(self, gpu: int, slot: int) -> None:
        """Remove one entry."""
        del self._entries[gpu][slot]

    def read(self, gpu: int) -> GateRules | None:
        """Return the tenant table of a device; None where there is none."""
        rules = self._rules.get(gpu)
        if rules is None:
            return None
        entries = self._entries[gpu]
        return msgspec.structs.replace(rules, entries=tuple(entries[slot] for slot in sorted(entries)))

    def handles(self, gpu: int) -> tuple[int, ...]:
        """Return the handles for reading and for writing; none for no device."""
        return () if gpu < 0 else (gpu, gpu)


class SimLedgers:
    """Ledgers with one account per device and slot; both handles of a device are its number."""

    __slots__ = ("_accounts",)

    def __init__(self) -> None:
        """Begin with empty accounts."""
        self._accounts: dict[tuple[int, int], tuple[int, int]] = {}

    def grant(self, gpu: int, slot: int, generation: int) -> None:
        """Open an empty account, unless this generation has one."""
        if self._accounts.get((gpu, slot), (0, 0))[0] != generation:
            self._accounts[gpu, slot] = (generation, 0)

    def held(self, gpu: int, slot: int) -> int:
        """Return the bytes that a tenant holds."""
        return self._accounts.get((gpu, slot), (0, 0))[1]

    def handles(self, gpu: int) -> tuple[int, ...]:
        """Return the handles for reading and for writing; none for no device."""
        return () if gpu < 0 else (gpu, gpu)

    def hold(self, gpu: int, slot: int, held_bytes: int) -> None:
        """Set the bytes that a tenant holds."""
        generation, _ = self._accounts[gpu, slot]
        self._accounts[gpu, slot] = (generation, held_bytes)
