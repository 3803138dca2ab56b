"""Read and write grant pages in any buffer, through the gate's C code."""

from __future__ import annotations

from typing import Final, TypeAlias

from cotenant import _native
from cotenant.gate.grant import Grant, Kind

PAGE_BYTES: Final = _native.GRANT_BYTES
PAGE_VERSION: Final = _native.GRANT_VERSION
_GRANTED: Final = 1
_REVOKED: Final = 2
WritableBuffer: TypeAlias = "bytearray | memoryview"


def format_page(page: WritableBuffer) -> None:
    """Format zeroed memory as a grant page; an existing page keeps its content."""
    _native.grant_init(page)


def write_grant(page: WritableBuffer, grant: Grant, neighbours: int) -> None:
    """Replace the grant on the page atomically for every reader."""
    _native.grant_write(
        page,
        (
            _GRANTED,
            grant.slot,
            grant.generation,
            int(grant.kind is Kind.ONLINE),
            grant.priority,
            grant.share_ppm,
            grant.memory_bytes,
            grant.slo_ns,
            grant.gpu + 1,
            neighbours + 1,
        ),
    )


def write_revoked(page: WritableBuffer, slot: int, generation: int) -> None:
    """Mark the grant of this generation as revoked."""
    _native.grant_write(page, (_REVOKED, slot, generation, 0, 0, 0, 0, 0, 0, 0))


def read_generation(page: bytes | WritableBuffer) -> int:
    """Return the generation on a page, granted or revoked."""
    return _native.grant_read(page)[2]


def read_grant(page: bytes | WritableBuffer) -> Grant | None:
    """Return the grant on a page; None if the slot is free. Raise `ValueError` if this is no grant page."""
    state, slot, generation, online, priority, share, memory, slo, gpu, _ = _native.grant_read(page)
    if state != _GRANTED:
        return None
    kind = Kind.ONLINE if online else Kind.OFFLINE
    return Grant(slot, generation, kind, priority, share, memory, slo, gpu - 1)


def read_neighbours(page: bytes | WritableBuffer) -> int:
    """Return the number of other tenants on the holder's device; -1 if unknown."""
    return _native.grant_read(page)[9] - 1
