"""The ports that every component uses: the clock and the journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cotenant.units.instant import Instant
from cotenant.units.value import Value


class Clock(Protocol):
    """A monotonic clock in nanoseconds; its origin has no meaning."""

    def now(self) -> Instant:
        """Return the present instant."""
        ...


class Journal(Protocol):
    """The record of all turns; it outlives the process."""

    def append(self, now: Instant, event: Value, actions: Sequence[Value]) -> bool:
        """Append one turn durably against the death of this process; return True when the next segment is due."""
        ...

    def begin_segment(self, now: Instant, head: Value) -> None:
        """Begin a new segment with this event as its head; the previous segment is kept."""
        ...
