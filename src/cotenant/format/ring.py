"""What does a program's trace ring say? The end of its record, as native/hook/trace.h writes it.

It is a stranger's word, and written while it is read: any bytes give entries or none, never an error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from cotenant.domain.trace import Ask, Asked
from cotenant.domain.value import Value
from cotenant.format.record import RING_AT, Part

MAGIC: Final = b"COTTRC1\0"
VERSION: Final = 1
ENTRIES: Final = 65536
HEADER: Final = struct.Struct("<8s4IQ")
ENTRY: Final = struct.Struct("<QQIIIBBH")
ENTRIES_AT: Final = RING_AT + 4096
_KINDS: Final = {kind.value: kind for kind in Ask}
_LONGEST_NS: Final = 1 << 62


class Fetched(Value, frozen=True):
    """Some entries in a row, as bytes: whoever follows a ring has no time to look at them."""

    first: int
    data: bytes

    @property
    def following(self) -> int:
        """The number of the entry after the last."""
        return self.first + len(self.data) // ENTRY.size


def fetch_ring(part: Part, after: int) -> Fetched:
    """The entries from number `after` on that are still there and whole."""
    written = _written(part)
    if written is None or written <= after:
        return Fetched(after, b"")
    first = max(after, written - ENTRIES)
    data = b"".join(_pieces(part, first, written))
    overtaken = _written(part)
    # While the next entry is written, the one that was ENTRIES before it is no longer whole.
    sound = first if overtaken is None else min(max(first, overtaken + 1 - ENTRIES), written)
    return Fetched(sound, data[(sound - first) * ENTRY.size :])


def entries_of(fetched: Fetched) -> list[Asked]:
    """What they say; an entry that does not bear its own number is none."""
    found = []
    whole = fetched.data[: len(fetched.data) - len(fetched.data) % ENTRY.size]
    for number, entry in enumerate(ENTRY.iter_unpack(whole), fetched.first):
        at_ns, length_ns, tells, kernel, stream, kind, reason, _ = entry
        if tells == number & 0xFFFFFFFF and kind in _KINDS and max(at_ns, length_ns) < _LONGEST_NS:
            found.append(Asked(_KINDS[kind], at_ns, length_ns, kernel, stream, reason))
    return found


def _written(part: Part) -> int | None:
    header = part(RING_AT, HEADER.size)
    if len(header) != HEADER.size:
        return None
    magic, version, entry_bytes, limit, _, written = HEADER.unpack(header)
    return written if (magic, version, entry_bytes, limit) == (MAGIC, VERSION, ENTRY.size, ENTRIES) else None


def _pieces(part: Part, first: int, end: int) -> Iterator[bytes]:
    """In the order of their numbers: up to the end of the ring, and from its beginning."""
    at = first % ENTRIES
    until_end = min(end - first, ENTRIES - at)
    yield part(ENTRIES_AT + at * ENTRY.size, until_end * ENTRY.size)
    if end - first > until_end:
        yield part(ENTRIES_AT, (end - first - until_end) * ENTRY.size)
