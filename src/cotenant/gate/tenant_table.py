"""Read and write tenant tables and tenant pages in any buffer, through the gate's C code."""

from __future__ import annotations

from typing import Final, TypeAlias

from cotenant import _native
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules

PAGE_BYTES: Final = _native.GATE_PAGE_BYTES
HEADER_PAGES: Final = 2
"""The tenant table and the arbitration page precede the pages of the slots."""
_POLICIES: Final = (GatePolicy.OPEN, GatePolicy.STRICT, GatePolicy.FILL)
_PAUSED: Final = 1
_ONLINE: Final = 2
_ENDING: Final = 4
_STATIC: Final = 8
WritableBuffer: TypeAlias = "bytearray | memoryview"


def file_bytes(slots: int) -> int:
    """Return the size of a gate file with this many slots."""
    return PAGE_BYTES * (HEADER_PAGES + slots)


def page_offset(slot: int) -> int:
    """Return the offset of a slot's page."""
    return PAGE_BYTES * (HEADER_PAGES + slot)


def format_tenant_table(file: WritableBuffer, slots: int) -> None:
    """Format the header of a file; an existing tenant table keeps its content."""
    _native.tenant_table_init(file, slots)


def write_tenant_table(file: WritableBuffer, rules: GateRules) -> None:
    """Replace the tenant table atomically for every reader."""
    header = (
        _POLICIES.index(rules.policy),
        rules.bound_ns,
        rules.delay_ppm,
        rules.patience_ns,
        rules.switch_ns,
        rules.spin_ppm,
    )
    entries = [
        (entry.slot, entry.generation, entry.priority, _flags_of(entry), entry.guaranteed_ppm, entry.limit_ppm)
        for entry in rules.entries
    ]
    _native.tenant_table_write(file, header, entries)


def _flags_of(entry: GateEntry) -> int:
    return entry.paused * _PAUSED + entry.online * _ONLINE + entry.ending * _ENDING + entry.static * _STATIC


def read_tenant_table(file: bytes | WritableBuffer) -> GateRules:
    """Return the tenant table; raise `ValueError` if the buffer holds none."""
    header, entries = _native.tenant_table_read(file)
    return GateRules(
        _POLICIES[header[0]],
        *header[1:],
        tuple(
            GateEntry(
                *(slot, generation, priority, bool(flags & _ONLINE), bool(flags & _PAUSED), least),
                *(bool(flags & _ENDING), limit, bool(flags & _STATIC)),
            )
            for slot, generation, priority, flags, least, limit in entries
        ),
    )


def read_page(page: bytes | WritableBuffer) -> dict[str, int | list[int]]:
    """Return a tenant's page by the field names of native/gate/pages.h."""
    return _native.page_read(page)
