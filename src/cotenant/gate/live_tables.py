"""The tenant tables and arbitration pages of the node's devices, in sealed memory that processes map."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from cotenant.gate import tenant_table
from cotenant.gate.node_page import NodePage
from cotenant.gate.rules import GateEntry, GateRules, ProcessEntry
from cotenant.gate.shared_pages import ArbitrationPage


class _AttachedIndex(NamedTuple):
    """A process of a device."""

    generation: int
    slot: int


class _Device:
    """The pages of one device and the state from which they are written."""

    def __init__(self, gpu: int) -> None:
        self.table = NodePage(f"cotenant-table-{gpu}", tenant_table.TABLE_BYTES)
        self.arbitration = ArbitrationPage.create(f"cotenant-arbitration-{gpu}")
        self.rules: GateRules | None = None
        self.clock_ppm = 0
        self.entries: dict[int, GateEntry] = {}
        self.processes: dict[int, _AttachedIndex] = {}
        self.table.write(tenant_table.format_tenant_table)

    def write(self) -> None:
        rules = self.rules or GateRules()
        processes = tuple(
            ProcessEntry(index, process.generation, process.slot, self.entries[process.slot])
            for index, process in sorted(self.processes.items())
            if process.slot in self.entries
        )
        self.table.write(lambda memory: tenant_table.write_tenant_table(memory, rules, processes))

    def close(self) -> None:
        self.table.close()
        self.arbitration.close()


class LiveTenantTables:
    """The state machine keeps an entry per tenant; a table has one for each attached process of the tenant."""

    def __init__(self) -> None:
        """Begin without tables."""
        self._devices: dict[int, _Device] = {}

    def set_table(self, gpu: int, rules: GateRules) -> None:
        """Replace the tenant table of a device."""
        device = self._device(gpu)
        device.rules = msgspec.structs.replace(rules, entries=())
        device.entries = {entry.slot: entry for entry in rules.entries}
        device.write()

    def upsert(self, gpu: int, entry: GateEntry) -> None:
        """Add the entry of one tenant, or replace it."""
        device = self._device(gpu)
        device.entries[entry.slot] = entry
        device.write()

    def remove(self, gpu: int, slot: int) -> None:
        """Remove the entry of one tenant."""
        device = self._device(gpu)
        device.entries.pop(slot, None)
        device.write()

    def attach(self, gpu: int, index: int, generation: int, slot: int) -> None:
        """Add a process of the tenant in a slot."""
        device = self._device(gpu)
        device.processes[index] = _AttachedIndex(generation, slot)
        device.write()

    def detach(self, gpu: int, index: int) -> None:
        """Remove a process."""
        device = self._device(gpu)
        device.processes.pop(index, None)
        device.write()

    def set_clock(self, gpu: int, clock_ppm: int) -> None:
        """Publish the clock of a device as a fraction of its highest one; 0: unknown."""
        device = self._devices.get(gpu)
        if device is not None and device.clock_ppm != clock_ppm:
            device.clock_ppm = clock_ppm
            device.table.write(lambda memory: tenant_table.set_clock(memory, clock_ppm))

    def read(self, gpu: int) -> GateRules | None:
        """Return the rules and the tenants of a device; None if it has no table."""
        device = self._devices.get(gpu)
        if device is None or device.rules is None:
            return None
        entries = tuple(device.entries[slot] for slot in sorted(device.entries))
        return msgspec.structs.replace(device.rules, entries=entries)

    def generation_of(self, gpu: int, slot: int) -> int | None:
        """Return the generation of the tenant in a slot of a device; None if there is none."""
        device = self._devices.get(gpu)
        entry = None if device is None or device.rules is None else device.entries.get(slot)
        return None if entry is None else entry.generation

    def copy(self, gpu: int) -> bytes | None:
        """Return a copy of the tenant table of a device; None if it has none."""
        device = self._devices.get(gpu)
        return None if device is None else device.table.copy()

    def is_online(self, gpu: int, slot: int) -> bool:
        """Return whether the tenant in a slot of a device is online."""
        device = self._devices.get(gpu)
        entry = None if device is None else device.entries.get(slot)
        return entry is not None and entry.online

    def handles(self, gpu: int) -> tuple[int, ...]:
        """Return the descriptors of the table and the arbitration page; none without a device."""
        if gpu < 0:
            return ()
        device = self._device(gpu)
        return device.table.descriptor, device.arbitration.descriptor

    def repair(self) -> list[int]:
        """Compare the tables with the state, rewrite those that differ, and return their devices."""
        return [gpu for gpu, device in self._devices.items() if device.table.repair()]

    def close(self) -> None:
        """Unmap the pages; processes that have mapped them keep the last rules."""
        for device in self._devices.values():
            device.close()
        self._devices.clear()

    def _device(self, gpu: int) -> _Device:
        device = self._devices.get(gpu)
        if device is None:
            device = self._devices[gpu] = _Device(gpu)
        return device
