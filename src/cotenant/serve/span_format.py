"""File format of request spans: a header, the names of models, and a ring of records.

The header consists of 8-byte words: magic, the instant until which a reader wants records (CLOCK_MONOTONIC, written by
the reader), the number of records written, the process ID. The names of models follow, then the ring; record `n` is in
slot `n % SLOTS`. One process writes, and increments the count after the record is complete.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from cotenant.trace.recording import RequestEnd, ServedRequest

MAGIC: Final = int.from_bytes(b"cotspan1", "little")
HEAD: Final = struct.Struct("<QQQQ")
WORD: Final = struct.Struct("<Q")
MAGIC_AT, UNTIL_AT, COUNT_AT, PID_AT = 0, 8, 16, 24
NAMES: Final = 256
NAME_BYTES: Final = 128
NAMES_AT: Final = 4096
RECORDS_AT: Final = NAMES_AT + NAMES * NAME_BYTES
RECORD: Final = struct.Struct("<BBHIQQQQQQQ")
"""Fields: end, units, model, rows; request; arrived, chosen, began, ended, answered.

Run number, with core + 1 above bit 48.
"""
SLOTS: Final = 1 << 16
FILE_BYTES: Final = RECORDS_AT + SLOTS * RECORD.size
CORE_SHIFT: Final = 48

Part = Callable[[int, int], bytes]
"""Read a number of bytes at an offset of the file."""


class SpanBatch(NamedTuple):
    """Undecoded records, the number of the first one, and the number that follows the last one."""

    first: int
    following: int
    records: bytes


def fetch_spans(part: Part, after: int) -> SpanBatch:
    """Return the records from number `after` on that are still in the ring and were not overwritten during the read."""
    head = part(0, HEAD.size)
    if len(head) < HEAD.size or HEAD.unpack(head)[0] != MAGIC:
        return SpanBatch(after, after, b"")
    count = HEAD.unpack(head)[2]
    first = max(after, count - SLOTS)
    chunks = []
    record = first
    while record < count:
        count_in_row = min(count - record, SLOTS - record % SLOTS)
        chunks.append(part(RECORDS_AT + record % SLOTS * RECORD.size, count_in_row * RECORD.size))
        record += count_in_row
    count_word = part(COUNT_AT, WORD.size)
    count_after = WORD.unpack(count_word)[0] if len(count_word) == WORD.size else count
    safe = min(
        max(first, count_after + 1 - SLOTS), count
    )  # the writer may be replacing the oldest record with the next one
    return SpanBatch(safe, count, b"".join(chunks)[(safe - first) * RECORD.size :])


def names_in(part: Part) -> list[str]:
    """Return the names of models, by number."""
    text = part(NAMES_AT, NAMES * NAME_BYTES)
    return [
        text[offset : offset + NAME_BYTES].rstrip(b"\0").decode("utf-8", "replace")
        for offset in range(0, len(text), NAME_BYTES)
    ]


def requests_of(records: bytes, names: list[str]) -> list[ServedRequest]:
    """Decode records; skip those that are not valid."""
    requests = []
    complete_bytes = len(records) - len(records) % RECORD.size
    for end, units, model, rows, number, arrived, chosen, began, ended, answered, run in RECORD.iter_unpack(
        memoryview(records)[:complete_bytes]
    ):
        if 1 <= end <= len(RequestEnd) and 0 < arrived <= answered:
            name = names[model] if model < len(names) and names[model] else "model"
            core = (run >> CORE_SHIFT) - 1
            run_number = run & ((1 << CORE_SHIFT) - 1)
            times = (arrived, chosen, began, ended, answered)
            requests.append(ServedRequest(RequestEnd(end), name, rows, number, run_number, units, core, *times))
    return requests
