"""Decode a program's trace ring, the last part of its record (native/hook/timing/trace.h).

The tenant writes the ring while it is read and may write anything: any bytes give entries or none, never an error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from cotenant.hook.record import RING_AT, ReadAt
from cotenant.trace.recording import ProgramEvent, ProgramEventKind
from cotenant.units.value import Value

MAGIC: Final = b"COTTRC1\0"
VERSION: Final = 1
ENTRIES: Final = 65536
HEADER: Final = struct.Struct("<8s4IQ")
ENTRY: Final = struct.Struct("<QQIIIBBH")
ENTRIES_AT: Final = RING_AT + 4096
RECORD_BYTES: Final = ENTRIES_AT + ENTRIES * ENTRY.size
"""The size of a whole record."""
_KINDS: Final = {kind.value: kind for kind in ProgramEventKind}
_LONGEST_NS: Final = 1 << 62


class RingEntries(Value, frozen=True):
    """Consecutive entries as bytes; they are decoded later, so that polling a ring stays fast."""

    first: int
    data: bytes

    @property
    def following(self) -> int:
        """Return the number of the entry after the last one."""
        return self.first + len(self.data) // ENTRY.size


def read_ring(read_at: ReadAt, after: int) -> RingEntries:
    """Return the entries from number `after` on that were not overwritten."""
    written = _written(read_at)
    if written is None or written <= after:
        return RingEntries(after, b"")
    first = max(after, written - ENTRIES)
    data = b"".join(_read_wrapped(read_at, first, written))
    written_after = _written(read_at)
    # While the next entry is written, the entry ENTRIES before it is being overwritten.
    first_intact = first if written_after is None else min(max(first, written_after + 1 - ENTRIES), written)
    return RingEntries(first_intact, data[(first_intact - first) * ENTRY.size :])


def written_entries(read_at: ReadAt) -> int:
    """Return the number of entries that were ever written; 0 if there is no ring."""
    return _written(read_at) or 0


def decode_entries(fetched: RingEntries) -> list[ProgramEvent]:
    """Decode entries; an entry without its own number is skipped."""
    events = []
    whole_entries = fetched.data[: len(fetched.data) - len(fetched.data) % ENTRY.size]
    for number, entry in enumerate(ENTRY.iter_unpack(whole_entries), fetched.first):
        at_ns, length_ns, written_number, kernel, stream, kind, reason, _ = entry
        if written_number == number & 0xFFFFFFFF and kind in _KINDS and max(at_ns, length_ns) < _LONGEST_NS:
            events.append(ProgramEvent(_KINDS[kind], at_ns, length_ns, kernel, stream, reason))
    return events


def _written(read_at: ReadAt) -> int | None:
    header = read_at(RING_AT, HEADER.size)
    if len(header) != HEADER.size:
        return None
    magic, version, entry_bytes, limit, _, written = HEADER.unpack(header)
    return written if (magic, version, entry_bytes, limit) == (MAGIC, VERSION, ENTRY.size, ENTRIES) else None


def _read_wrapped(read_at: ReadAt, first: int, end: int) -> Iterator[bytes]:
    """Yield the bytes in the order of entries: up to the end of the ring, then from its beginning."""
    at = first % ENTRIES
    until_end = min(end - first, ENTRIES - at)
    yield read_at(ENTRIES_AT + at * ENTRY.size, until_end * ENTRY.size)
    if end - first > until_end:
        yield read_at(ENTRIES_AT, (end - first - until_end) * ENTRY.size)
