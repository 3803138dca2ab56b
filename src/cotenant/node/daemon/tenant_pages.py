"""The gate pages of tenants, combined over their processes: what monitors, metrics and operators read."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from cotenant.gate.activity import DeviceSnapshot, GateCounts
from cotenant.gate.combined_pages import combine
from cotenant.gate.grant import Grant
from cotenant.gate.hold_reason import HeldLaunch, find_hold
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.gate.tenant_table import assemble_memory
from cotenant.node.daemon.processes import LiveProcesses
from cotenant.node.ports import TenantKey
from cotenant.units.instant import Instant


class _LatestPage(NamedTuple):
    """The page of a tenant's only process at the latest reading, and the same as the tenant's page."""

    tenant: TenantKey
    page: dict[str, int | list[int]]
    combined: dict[str, int | list[int]]


class TenantPages:
    """Reads copies of the processes' pages; a page of another generation than the process counts as unused.

    Readers must not change a page. As long as it does not change, it is the same object.
    """

    def __init__(self, processes: LiveProcesses, tables: LiveTenantTables) -> None:
        """Read the pages of these processes."""
        self._processes = processes
        self._tables = tables
        self._latest: dict[tuple[int, int], _LatestPage] = {}  # by device and slot, of tenants with one process there

    def page(self, gpu: int, slot: int) -> dict[str, int | list[int]]:
        """Return the combined page of the present tenant in a slot; empty if none of its processes has launched."""
        generation = self._tables.generation_of(gpu, slot)
        return {} if generation is None else self._combined(gpu, (slot, generation))

    def counts(self, grant: Grant) -> GateCounts:
        """Return the counters of a tenant on the device of a grant; the tenant may just have left."""
        return msgspec.convert(self._combined(grant.gpu, (grant.slot, grant.generation)), GateCounts)

    def snapshot(self, gpu: int, now: Instant) -> DeviceSnapshot | None:
        """Return the rules of a device and the counters of its tenants; None if the device has no table."""
        rules = self._tables.read(gpu)
        if rules is None:
            return None
        tenants = {entry.slot: (entry.slot, entry.generation) for entry in rules.entries}
        counts = {slot: msgspec.convert(self._combined(gpu, key), GateCounts) for slot, key in tenants.items()}
        return DeviceSnapshot(gpu, now, rules, counts)

    def holds(self, gpu: int, now: Instant) -> dict[int, HeldLaunch]:
        """Return the launches that wait at the gate now, by slot; of several of a tenant, one."""
        table = self._tables.copy(gpu)
        if table is None:
            return {}
        processes = self._processes.on(gpu)
        memory = assemble_memory(table, {process.index: process.copy() for process in processes})
        found = {}
        for process in processes:
            held = find_hold(memory, process.index, process.generation, now)
            if held is not None:
                found[process.tenant[0]] = held
        return found

    def _combined(self, gpu: int, tenant: TenantKey) -> dict[str, int | list[int]]:
        read = [process.gate_page() for process in self._processes.of_tenant(tenant) if process.gpu == gpu]
        pages = [*filter(None, read), *self._processes.ended_counters(tenant, gpu)]
        if len(pages) != 1:
            return combine(pages, tenant[1])
        place = (gpu, tenant[0])
        latest = self._latest.get(place)
        if latest is None or latest.tenant != tenant or latest.page is not pages[0]:
            latest = self._latest[place] = _LatestPage(tenant, pages[0], combine(pages, tenant[1]))
        return latest.combined
