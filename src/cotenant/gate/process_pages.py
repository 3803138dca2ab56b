"""Read the pages that a process publishes, and write a tenant's account, through the native code.

A process may change its pages at any instant and may write anything: a reader copies the bytes once and parses them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from cotenant import _native

PROCESSES: Final = _native.PROCESSES
"""The maximum number of processes of one device."""
PROCESS_BYTES: Final = _native.PROCESS_BYTES
"""The size of the pages of one process: its gate page, then its ledger page."""
WritableBuffer: TypeAlias = "bytearray | memoryview"


class ShareRole(enum.IntEnum):
    """What a process does with shared memory; enum ct_ledger_role in native/ledger/ledger.h."""

    EXPORT = 1
    """Its own memory that other processes may open."""
    IMPORT = 2
    """Memory of another process that it has open."""
    ORPHANED = 3
    """Memory that it exported and then freed."""


class ProcessLedger(msgspec.Struct, frozen=True):
    """The ledger page of a process, by the names in native/ledger/ledger.h."""

    generation: int
    allocated_bytes: int
    own_bytes: int
    own_version: int
    managed_bytes: int
    begun: int
    ended: int
    denied: int
    denied_bytes: int
    wanted_bytes: int
    fault: int
    contexts: int
    code_bytes: int
    shares: tuple[tuple[ShareRole, int, int], ...] = ()
    """Role, key and size in bytes of the memory that it shares with other processes."""


class Measurement(msgspec.Struct, frozen=True):
    """What the device reports for a process beyond what the process recorded."""

    generation: int
    """Of the process."""
    excess_bytes: int
    """May be negative; then it counts only while `own_version` plus one is `measured_version`."""
    measured_version: int


class Account(msgspec.Struct, frozen=True):
    """What the node adds to the records of a tenant's processes, by the names in native/ledger/ledger.h."""

    context_bytes: int = 0
    unattached_bytes: int = 0
    reclaimable_bytes: int = 0
    measurements: Mapping[int, Measurement] = {}
    """By index of the process."""


def read_gate_page(pages: bytes) -> dict[str, int | list[int]]:
    """Return the gate page in a copy of a process's pages, by the field names of native/gate/pages.h."""
    return _native.page_read(pages)


def read_ledger_page(pages: bytes) -> ProcessLedger:
    """Return the ledger page in a copy of a process's pages."""
    generation, line, shares = _native.ledger_page_read(pages)
    return ProcessLedger(generation, *line, tuple((ShareRole(role), key, size) for role, key, size in shares))


def write_account(
    memory: WritableBuffer,
    context_bytes: int,
    unattached_bytes: int,
    reclaimable_bytes: int,
    measurements: Mapping[int, Measurement],
) -> None:
    """Write a tenant's account, which follows its grant page; a measurement that is not given is removed."""
    _native.account_write(memory, context_bytes, unattached_bytes, reclaimable_bytes)
    for index, *_ in _native.account_read(memory)[3]:
        if index not in measurements:
            _native.measurement_write(memory, index, 0, 0, 0)
    for index, measured in measurements.items():
        _native.measurement_write(memory, index, measured.generation, measured.excess_bytes, measured.measured_version)


def read_account(memory: bytes | WritableBuffer) -> Account:
    """Return a tenant's account."""
    context_bytes, unattached_bytes, reclaimable_bytes, measurements = _native.account_read(memory)
    return Account(
        context_bytes,
        unattached_bytes,
        reclaimable_bytes,
        {index: Measurement(*measured) for index, *measured in measurements},
    )
