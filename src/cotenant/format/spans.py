"""How does a server of models write down what became of its requests? A file: a head, names of models, and a ring.

The head is words of eight bytes: magic, until when somebody wants to know (by CLOCK_MONOTONIC; written by who looks),
how many records were written, the process. Then the names of models, then the ring, whose record `n` is in place
`n % SLOTS`. One process writes, and counts a record after it is there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from cotenant.domain.trace import End, ServedRequest

MAGIC: Final = int.from_bytes(b"cotspan1", "little")
HEAD: Final = struct.Struct("<QQQQ")
WORD: Final = struct.Struct("<Q")
MAGIC_AT, UNTIL_AT, COUNT_AT, PID_AT = 0, 8, 16, 24
NAMES: Final = 256
NAME_BYTES: Final = 128
NAMES_AT: Final = 4096
RECORDS_AT: Final = NAMES_AT + NAMES * NAME_BYTES
RECORD: Final = struct.Struct("<BBHIQQQQQQQ")
"""End, units, model, rows; request; arrived, chosen, began, ended, answered; run and, above bit 48, core + 1."""
SLOTS: Final = 1 << 16
FILE_BYTES: Final = RECORDS_AT + SLOTS * RECORD.size
CORE_SHIFT: Final = 48

Part = Callable[[int, int], bytes]
"""So many bytes from a place of the file."""


class FetchedSpans(NamedTuple):
    """Records that were read, as they are, and which they were."""

    first: int
    following: int
    records: bytes


def fetch_spans(part: Part, after: int) -> FetchedSpans:
    """Those from number `after` on that are still there, and were not written over while they were read."""
    head = part(0, HEAD.size)
    if len(head) < HEAD.size or HEAD.unpack(head)[0] != MAGIC:
        return FetchedSpans(after, after, b"")
    count = HEAD.unpack(head)[2]
    first = max(after, count - SLOTS)
    pieces = []
    at = first
    while at < count:
        stretch = min(count - at, SLOTS - at % SLOTS)
        pieces.append(part(RECORDS_AT + at % SLOTS * RECORD.size, stretch * RECORD.size))
        at += stretch
    now = part(COUNT_AT, WORD.size)
    written = WORD.unpack(now)[0] if len(now) == WORD.size else count
    safe = min(max(first, written + 1 - SLOTS), count)  # the next one may be half written in the place of the oldest
    return FetchedSpans(safe, count, b"".join(pieces)[(safe - first) * RECORD.size :])


def names_in(part: Part) -> list[str]:
    """What models are called, by number."""
    text = part(NAMES_AT, NAMES * NAME_BYTES)
    return [
        text[at : at + NAME_BYTES].rstrip(b"\0").decode("utf-8", "replace") for at in range(0, len(text), NAME_BYTES)
    ]


def requests_of(records: bytes, names: list[str]) -> list[ServedRequest]:
    """Records as what they say; what cannot be is passed over."""
    found = []
    whole = len(records) - len(records) % RECORD.size
    for end, units, model, rows, number, arrived, chosen, began, ended, answered, run in RECORD.iter_unpack(
        memoryview(records)[:whole]
    ):
        if 1 <= end <= len(End) and 0 < arrived <= answered:
            name = names[model] if model < len(names) and names[model] else "model"
            core = (run >> CORE_SHIFT) - 1
            number_of_run = run & ((1 << CORE_SHIFT) - 1)
            times = (arrived, chosen, began, ended, answered)
            found.append(ServedRequest(End(end), name, rows, number, number_of_run, units, core, *times))
    return found
