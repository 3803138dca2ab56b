"""A trace ring, whole, overwritten or hostile, decodes to its valid entries only."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.hook.record import RING_AT, ReadAt
from cotenant.hook.ring_format import ENTRIES, ENTRIES_AT, ENTRY, HEADER, MAGIC, VERSION, decode_entries, read_ring
from cotenant.trace.device_records import RECORD, decode_device_records
from cotenant.trace.recording import ProgramEvent, ProgramEventKind
from tests.support.effort import examples


class Ring:
    """As native/hook/timing/trace.h writes it; `while_read` more entries are written during a read."""

    def __init__(self, while_read: int = 0) -> None:
        self.written = 0
        self.while_read = while_read

    def part(self, at: int, length: int) -> bytes:
        if at == RING_AT:
            return HEADER.pack(MAGIC, VERSION, ENTRY.size, ENTRIES, 0, self.written)[:length]
        self.written += self.while_read
        self.while_read = 0
        first = (at - ENTRIES_AT) // ENTRY.size
        return b"".join(self._at(index) for index in range(first, first + length // ENTRY.size))

    def _at(self, index: int) -> bytes:
        number = index + (self.written - 1 - index) // ENTRIES * ENTRIES  # the latest entry at this index
        if number < 0:
            return bytes(ENTRY.size)
        return ENTRY.pack(1000 + number, 7, number & 0xFFFFFFFF, number % 5, number % 3, 1, 2, 0)


def read_from(part: ReadAt, after: int) -> tuple[list[ProgramEvent], int, int]:
    fetched = read_ring(part, after)
    return decode_entries(fetched), fetched.following, fetched.first - after


def entry(number: int) -> ProgramEvent:
    return ProgramEvent(ProgramEventKind.LAUNCH, 1000 + number, 7, number % 5, number % 3, 2)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 200) | st.integers(ENTRIES - 2, ENTRIES + 200), st.integers(0, 50), st.integers(0, 200))
def test_remaining_entries_are_read_and_overwritten_ones_counted(before: int, more: int, while_read: int) -> None:
    ring = Ring()
    ring.written = before
    events, following, lost = read_from(ring.part, 0)
    assert events == [entry(number) for number in range(max(before - ENTRIES + 1, 0), before)]
    assert (following, lost) == (before, before - len(events))
    ring.written += more
    ring.while_read = while_read
    events, following, lost = read_from(ring.part, following)
    assert events == [entry(number) for number in range(before, before + more)]
    assert (following, lost) == (before + more, 0)


def test_entry_overwritten_during_the_read_is_discarded() -> None:
    ring = Ring(while_read=10)
    ring.written = ENTRIES
    events, following, lost = read_from(ring.part, 0)
    assert events == [entry(number) for number in range(11, ENTRIES)]
    assert (following, lost) == (ENTRIES, 11)


@settings(max_examples=examples(80, 2000))
@given(st.binary(max_size=200), st.binary(max_size=400), st.integers(0, 2**64), st.booleans())
def test_any_bytes_decode_to_entries_or_none(head: bytes, body: bytes, after: int, sound: bool) -> None:
    start = HEADER.pack(MAGIC, VERSION, ENTRY.size, ENTRIES, 0, int.from_bytes(head[:8], "little")) if sound else head

    def part(at: int, length: int) -> bytes:
        return (start if at == RING_AT else body)[:length]

    events, following, lost = read_from(part, after)
    assert len(events) <= len(body) // ENTRY.size
    assert following >= after
    assert lost >= 0


@given(st.binary(max_size=1000))
def test_any_bytes_of_a_device_decode_to_ops_or_none(data: bytes) -> None:
    ops, switches = decode_device_records(data)
    assert len(ops) + len(switches) <= len(data) // RECORD.size
    assert all(op.start_ns <= op.end_ns for op in ops)
