"""Exponential back-off with a cap."""

from __future__ import annotations

from cotenant.units.instant import Duration

_DOUBLINGS_LIMIT = 63
"""More doublings exceed every cap that fits into a journal."""


def delay_ns(attempt: int, base_ns: Duration, cap_ns: Duration) -> Duration:
    """Return how long to wait after the given failure, counted from one; 0 before the first."""
    if attempt <= 0:
        return 0
    return min(base_ns << min(attempt - 1, _DOUBLINGS_LIMIT), cap_ns)
