"""Back-off: each time twice as long, up to a cap."""

from __future__ import annotations

from cotenant.domain.instant import Duration

_DOUBLINGS_LIMIT = 63
"""More doublings than this exceed every cap that fits into a journal."""


def delay_ns(attempt: int, base_ns: Duration, cap_ns: Duration) -> Duration:
    """How long to wait after the given failure, counted from one; nothing before the first."""
    if attempt <= 0:
        return 0
    return min(base_ns << min(attempt - 1, _DOUBLINGS_LIMIT), cap_ns)
