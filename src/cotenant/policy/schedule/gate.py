"""What does a terms page say? Binds the gate's C code over any buffer, live or not."""

from __future__ import annotations

from typing import Final, TypeAlias

from cotenant import _native
from cotenant.domain.tenant import Kind, Terms

PAGE_BYTES: Final = _native.TERMS_BYTES
PAGE_VERSION: Final = _native.TERMS_VERSION
_GRANTED: Final = 1
_REVOKED: Final = 2
WritableBuffer: TypeAlias = "bytearray | memoryview"


def format_page(page: WritableBuffer) -> None:
    """Make zeroed memory a terms page; one that is already keeps what it says."""
    _native.terms_init(page)


def write_terms(page: WritableBuffer, terms: Terms, neighbours: int) -> None:
    """Replace what the page says, in one step for every reader."""
    _native.terms_write(
        page,
        (
            _GRANTED,
            terms.slot,
            terms.generation,
            int(terms.kind is Kind.ONLINE),
            terms.priority,
            terms.share_ppm,
            terms.memory_bytes,
            terms.slo_ns,
            terms.gpu + 1,
            neighbours + 1,
        ),
    )


def write_revoked(page: WritableBuffer, slot: int, generation: int) -> None:
    """Say that this generation holds the slot no more."""
    _native.terms_write(page, (_REVOKED, slot, generation, 0, 0, 0, 0, 0, 0, 0))


def read_generation(page: bytes | WritableBuffer) -> int:
    """The generation that a page speaks of, whether it is still in force or not."""
    return _native.terms_read(page)[2]


def read_terms(page: bytes | WritableBuffer) -> Terms | None:
    """The terms in force, or None when nobody holds the slot. ValueError when this is no terms page."""
    state, slot, generation, online, priority, share, memory, slo, gpu, _ = _native.terms_read(page)
    if state != _GRANTED:
        return None
    kind = Kind.ONLINE if online else Kind.OFFLINE
    return Terms(slot, generation, kind, priority, share, memory, slo, gpu - 1)


def read_neighbours(page: bytes | WritableBuffer) -> int:
    """How many others are on the holder's device, as far as they are counted; -1 when nobody said."""
    return _native.terms_read(page)[9] - 1
