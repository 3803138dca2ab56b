"""Limits how often something may happen for each of any number of keys."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from cotenant.units.instant import Duration, Instant

_KEYS_LIMIT: Final = 1024


class Rate:
    """The generic cell rate algorithm: a burst of requests, then one per interval, for any number of keys."""

    def __init__(self, burst: int, interval_ns: Duration) -> None:
        """Begin without requests."""
        self._interval_ns = interval_ns
        self._tolerance_ns = burst * interval_ns
        self._due: dict[Hashable, Instant] = {}  # by key, when a sender that sent evenly would send its next request

    def wait_ns(self, key: Hashable, now: Instant) -> Duration:
        """Count a request; return 0, or how long the sender must wait if it is too early and not counted."""
        due = max(self._due.pop(key, now), now) + self._interval_ns
        if due - now > self._tolerance_ns:
            self._due[key] = due - self._interval_ns
            return due - now - self._tolerance_ns
        self._due[key] = due
        if len(self._due) > _KEYS_LIMIT:
            self._due = {other: at for other, at in self._due.items() if at > now}
            while len(self._due) > _KEYS_LIMIT:  # the key that was used least recently
                del self._due[next(iter(self._due))]
        return 0
