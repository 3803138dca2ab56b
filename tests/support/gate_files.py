"""The gate of a device with two tenants, without a node."""

from __future__ import annotations

from pathlib import Path

from cotenant.gate import tenant_table
from cotenant.gate.gate_file import LiveTenantTables, gate_path
from cotenant.gate.grant_file import SLOT_VARIABLE
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules

ONLINE, OFFLINE = 0, 1
GENERATION = 1


class Gate:
    """The gate of one device with an online and an offline tenant, and the environment of their programs."""

    def __init__(self, home: Path, policy: GatePolicy = GatePolicy.FILL) -> None:
        self._gates = LiveTenantTables(home, 2)
        self.path = gate_path(home, 0)
        self.policy = policy
        self.set_entries()

    def set_entries(
        self,
        online: int | None = 2,
        offline: int = 7,
        *,
        paused: bool = False,
        static_ppm: int = 0,
        patience_ns: int = GateRules().patience_ns,
    ) -> None:
        """Write the tenant table; `online` None: there is no online tenant."""
        offline_entry = GateEntry(
            OFFLINE, GENERATION, offline, False, paused, limit_ppm=static_ppm, static=static_ppm > 0
        )
        online_entries = () if online is None else (GateEntry(ONLINE, GENERATION, online, online=True),)
        self._gates.set_table(
            0, GateRules(self.policy, patience_ns=patience_ns, entries=(*online_entries, offline_entry))
        )

    def environ(self, environ: dict[str, str], records: Path, slot: int) -> dict[str, str]:
        """Return the environment of a program in a slot, which finds the gate file next to its records."""
        link = records / "gate"
        if not link.is_symlink():
            link.symlink_to(self.path)
        return {**environ, SLOT_VARIABLE: f"{slot}/{GENERATION}"}

    def page(self, slot: int) -> dict[str, int | list[int]]:
        """Return the fields of a tenant's page."""
        with self.path.open("rb") as file:
            file.seek(tenant_table.page_offset(slot))
            return tenant_table.read_page(file.read(tenant_table.PAGE_BYTES))

    def close(self) -> None:
        self._gates.close()
