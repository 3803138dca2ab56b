"""A journal in memory: the same bytes as the journal on disk, so that recovery reads the same input."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence

from cotenant.runner.journal import MAGIC, AnyTurn, JournalReader, ReadBytes, Segment, encode_turn
from cotenant.units.instant import Instant
from cotenant.units.value import Value


class SimJournal:
    """Appends to a list of byte strings; `begin_segment` replaces the content and keeps the previous segment."""

    __slots__ = ("_chunks", "_limit_bytes", "_segment", "previous")

    def __init__(self, limit_bytes: int = 1 << 62) -> None:
        """Start with the magic line."""
        self._limit_bytes = limit_bytes
        self.previous = b""
        self._begin()

    def append(self, now: Instant, event: Value, actions: Sequence[Value]) -> bool:
        """Append one turn; return True when the next segment is due."""
        chunk = encode_turn(now, event, actions)
        self._chunks.append(chunk)
        return self._segment.grow(len(chunk))

    def begin_segment(self, now: Instant, head: Value) -> None:
        """Begin a new segment with this event as its head."""
        self.previous = self.content()
        self._begin()
        self.append(now, head, [])

    def _begin(self) -> None:
        self._chunks = [MAGIC]
        self._segment = Segment(self._limit_bytes)
        self._segment.size_bytes = len(MAGIC)

    def content(self) -> bytes:
        """Return the bytes of the present segment."""
        return b"".join(self._chunks)

    def turns(self, reader: Callable[[ReadBytes], JournalReader[AnyTurn]]) -> Iterator[AnyTurn]:
        """Yield the turns of the present segment, decoded from its bytes by this reader."""
        return iter(reader(io.BytesIO(self.content()).read))


class NullJournal:
    """Discards every turn: for measuring the cost of the rest."""

    __slots__ = ()

    def append(self, now: Instant, event: Value, actions: Sequence[Value]) -> bool:
        """Discard the turn."""
        del now, event, actions
        return False

    def begin_segment(self, now: Instant, head: Value) -> None:
        """Discard the head."""
