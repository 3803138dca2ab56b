"""A limit of requests per user and second: a user that exceeds it waits, and is not refused."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from cotenant.units.instant import SECOND_NS, Duration, Instant

REQUESTS_PER_S: Final = 200
BURST: Final = 1000
"""Requests that a user may send at once after a pause."""
_STEP_NS: Final = SECOND_NS // REQUESTS_PER_S
_USERS_LIMIT: Final = 1024


class RequestRates:
    """For each user, the instant at which its allowance would be full again."""

    __slots__ = ("_burst_ns", "_full_at")

    def __init__(self, burst: int = BURST) -> None:
        """Begin with full allowances of this many requests."""
        self._burst_ns = burst * _STEP_NS
        self._full_at: dict[Hashable, Instant] = {}

    def take(self, user: Hashable, now: Instant) -> Duration:
        """Take one request of a user's allowance and return 0, or return how long to wait before it is tried again."""
        full_at = max(self._full_at.get(user, now), now) + _STEP_NS
        wait_ns = full_at - now - self._burst_ns
        if wait_ns > 0:
            return wait_ns
        if user not in self._full_at and len(self._full_at) >= _USERS_LIMIT:
            self._full_at = {other: instant for other, instant in self._full_at.items() if instant > now}
        self._full_at[user] = full_at
        return 0
