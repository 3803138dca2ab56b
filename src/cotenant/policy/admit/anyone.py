"""Anyone: a request is taken as long as its queue has room."""

from __future__ import annotations

from collections.abc import Iterable

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.lane import Lane


def anyone(lanes: Iterable[Lane], lane: Lane, rows: int, free_at: Instant, cores: int, now: Instant) -> Duration:
    """No wait is expected, so no deadline is out of reach."""
    del lanes, lane, rows, free_at, cores, now
    return 0
