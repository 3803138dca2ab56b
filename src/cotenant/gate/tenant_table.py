"""Read and write tenant tables and gate pages in any buffer, through the gate's C code."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from cotenant import _native
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules, ProcessEntry

PAGE_BYTES: Final = _native.GATE_PAGE_BYTES
TABLE_BYTES: Final = _native.TABLE_BYTES
_NEVER: Final = (1 << 64) - 1  # CT_GATE_NEVER in native/gate/pages.h
_POLICIES: Final = (GatePolicy.OPEN, GatePolicy.STRICT, GatePolicy.FILL)
_PAUSED: Final = 1
_ONLINE: Final = 2
_ENDING: Final = 4
_STATIC: Final = 8
WritableBuffer: TypeAlias = "bytearray | memoryview"


def device_memory() -> memoryview:
    """Return the pages of a simulated device in one buffer: an empty tenant table and the pages of all processes."""
    memory = memoryview(mmap.mmap(-1, _native.PROCESSES_OFFSET + _native.PROCESSES * _native.PROCESS_BYTES))
    format_tenant_table(memory)
    return memory


def page_offset(index: int) -> int:
    """Return the offset of a process's gate page in the memory of a simulated device."""
    return _native.PROCESSES_OFFSET + index * _native.PROCESS_BYTES


def process_pages(memory: bytes | WritableBuffer, index: int) -> bytes:
    """Return a copy of all pages of a process in the memory of a simulated device."""
    return bytes(memory[page_offset(index) : page_offset(index + 1)])


def assemble_memory(table: bytes, pages: Mapping[int, bytes]) -> memoryview:
    """Return the memory of a simulated device with a copy of a tenant table and of the pages of processes, by index."""
    memory = device_memory()
    memory[:TABLE_BYTES] = table
    for index, copied in pages.items():
        memory[page_offset(index) : page_offset(index + 1)] = copied
    return memory


def gate_page(memory: bytes | WritableBuffer, index: int) -> bytes:
    """Return a copy of a process's gate page in the memory of a simulated device."""
    return bytes(memory[page_offset(index) : page_offset(index) + PAGE_BYTES])


def format_tenant_table(memory: WritableBuffer) -> None:
    """Make zeroed memory an empty tenant table; an existing table keeps its contents."""
    _native.tenant_table_init(memory)


def one_process_each(entries: Sequence[GateEntry]) -> tuple[ProcessEntry, ...]:
    """Return one process for each tenant, with the tenant's slot as its index, as in simulations."""
    return tuple(ProcessEntry(entry.slot, entry.generation, entry.slot, entry) for entry in entries)


def write_tenant_table(
    memory: WritableBuffer, rules: GateRules, processes: Sequence[ProcessEntry] | None = None
) -> None:
    """Replace the tenant table atomically for every reader; None: each tenant of the rules has one process."""
    header = (
        _POLICIES.index(rules.policy),
        rules.bound_ns,
        rules.delay_ppm,
        rules.patience_ns,
        rules.switch_ns,
        rules.spin_ppm,
        _NEVER if rules.sm_ppm is None else rules.sm_ppm,
        rules.ignored_priority_ppm,
    )
    listed = one_process_each(rules.entries) if processes is None else processes
    _native.tenant_table_write(memory, header, [_words_of(process) for process in listed])


def _words_of(process: ProcessEntry) -> tuple[int, int, int, int, int, int, int, int]:
    entry = process.entry
    shares = entry.guaranteed_ppm, entry.limit_ppm
    return (
        *(process.index, process.generation, entry.priority, _flags_of(entry)),
        *(*shares, process.tenant, entry.generation),
    )


def _flags_of(entry: GateEntry) -> int:
    return entry.paused * _PAUSED + entry.online * _ONLINE + entry.ending * _ENDING + entry.static * _STATIC


def set_clock(memory: WritableBuffer, clock_ppm: int) -> None:
    """Publish the clock of the device as a fraction of its highest one, as measured while it is busy; 0: unknown."""
    _native.tenant_table_set_clock(memory, clock_ppm)


def read_tenant_table(memory: bytes | WritableBuffer) -> GateRules:
    """Return the rules and the tenants that have processes; raise `ValueError` if the buffer holds no table."""
    header, _ = _native.tenant_table_read(memory)
    tenants = {process.tenant: process.entry for process in read_processes(memory)}
    sm_ppm = None if header[-2] == _NEVER else header[-2]
    return GateRules(_POLICIES[header[0]], *header[1:-2], tuple(tenants.values()), sm_ppm, header[-1])


def read_processes(memory: bytes | WritableBuffer) -> tuple[ProcessEntry, ...]:
    """Return the processes in a tenant table; raise `ValueError` if the buffer holds none."""
    return tuple(
        ProcessEntry(
            index,
            generation,
            tenant,
            GateEntry(
                *(tenant, tenant_generation, priority, bool(flags & _ONLINE), bool(flags & _PAUSED), least),
                *(bool(flags & _ENDING), limit, bool(flags & _STATIC)),
            ),
        )
        for index, generation, priority, flags, least, limit, tenant, tenant_generation in _native.tenant_table_read(
            memory
        )[1]
    )


def read_page(page: bytes | WritableBuffer) -> dict[str, int | list[int]]:
    """Return a gate page by the field names of native/gate/pages.h."""
    return _native.page_read(page)
