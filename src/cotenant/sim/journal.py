"""A journal in memory: the very bytes of the live one, so that a recovery reads what a disk would hold."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from cotenant.domain.instant import Instant
from cotenant.domain.value import Value
from cotenant.format.journal import MAGIC, Segment, Turn, TurnReader, encode_turn


class SimJournal:
    """Append-only bytes; a segment past its limit makes room for the next."""

    __slots__ = ("_chunks", "_limit_bytes", "_segment", "previous")

    def __init__(self, limit_bytes: int = 1 << 62) -> None:
        """Start with the magic line."""
        self._limit_bytes = limit_bytes
        self.previous = b""
        self._begin()

    def append(self, now: Instant, event: Value, actions: Sequence[Value]) -> bool:
        """Write one turn."""
        chunk = encode_turn(now, event, actions)
        self._chunks.append(chunk)
        return self._segment.grow(len(chunk))

    def begin_segment(self, now: Instant, head: Value) -> None:
        """Start over with this event at the head."""
        self.previous = self.content()
        self._begin()
        self.append(now, head, [])

    def _begin(self) -> None:
        self._chunks = [MAGIC]
        self._segment = Segment(self._limit_bytes)
        self._segment.size_bytes = len(MAGIC)

    def content(self) -> bytes:
        """What a disk would hold."""
        return b"".join(self._chunks)

    def turns(self) -> Iterator[Turn]:
        """The present segment, read back from its bytes."""
        return iter(TurnReader(io.BytesIO(self.content()).read))


class NoJournal:
    """Remembers nothing: for measuring what the rest costs."""

    __slots__ = ()

    def append(self, now: Instant, event: Value, actions: Sequence[Value]) -> bool:
        """Forget."""
        del now, event, actions
        return False

    def begin_segment(self, now: Instant, head: Value) -> None:
        """Forget."""
