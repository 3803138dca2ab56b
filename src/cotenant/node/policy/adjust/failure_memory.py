"""Memory of online shares that failed at a load, and when a smaller one may be tried again.

As CUBIC flattens around the window of its last loss: the share approaches the failed one by halves and then stays.
After a wait it tries one small step below; the wait doubles with each failure. Failures at another load do not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from cotenant.units.instant import SECOND_NS, Duration, Instant
from cotenant.units.value import Value

_REMEMBERED: Final = 16
_DOUBLINGS: Final = 16
_WINDOWS: Final = 40
"""The load is a mean of this many windows: the fewer requests they have, the more it varies by chance."""


class FailureMemoryParameters(Value, frozen=True):
    """Parameters chosen by the project; docs/concepts/control.md gives the reasons."""

    margin_ppm: int = 20_000
    """Distance above the failed share at which it stays; a new attempt goes twice as far down."""
    wait_ns: Duration = 10 * SECOND_NS
    """Wait before a failed share is tried again; doubles with each failure."""
    most_ns: Duration = 1280 * SECOND_NS
    proven: int = 100
    """Requests that must have been measured before a new attempt."""
    differs: float = 1.3
    """A load larger by this factor, beyond chance, is another load."""


class _Failure:
    __slots__ = ("failures", "loads", "ppm", "try_ns")

    def __init__(self, loads: Mapping[int, float]) -> None:
        self.loads = dict(loads)
        self.ppm = 0
        self.failures = 0
        self.try_ns: Instant = 0


class FailureMemory:
    """The memory of one device."""

    def __init__(self, caution: FailureMemoryParameters) -> None:
        """Begin without failures."""
        self._caution = caution
        self._failures: list[_Failure] = []

    def fail(self, online_ppm: int, loads: Mapping[int, float], now: Instant) -> None:
        """Record that this share failed at these loads, by slot."""
        failure = self._at(loads)
        if failure is None:
            failure = _Failure(loads)
            self._failures = [*self._failures[1 - _REMEMBERED :], failure]
        failure.ppm = online_ppm
        failure.failures += 1
        failure.try_ns = now + self._patience(failure)

    def forgive(self) -> None:
        """Forget all failures because the conditions on the device changed."""
        self._failures.clear()

    def is_known(self, loads: Mapping[int, float]) -> bool:
        """Return whether a share failed at such loads."""
        return self._at(loads) is not None

    def reached(
        self, wanted_ppm: int, online_ppm: int, loads: Mapping[int, float], seen: float, now: Instant
    ) -> tuple[int, bool]:
        """Return how far the share may move towards the wanted one, and whether that is a new attempt."""
        failure, margin_ppm = self._at(loads), self._caution.margin_ppm
        if failure is None:
            return wanted_ppm, False
        rest_ppm = failure.ppm + margin_ppm
        if online_ppm > rest_ppm + margin_ppm:
            return max(wanted_ppm, (online_ppm + rest_ppm) // 2), False
        if now < failure.try_ns or seen < self._caution.proven or wanted_ppm >= online_ppm:
            return online_ppm, False
        failure.ppm = max(wanted_ppm, online_ppm - 2 * margin_ppm)
        failure.try_ns = now + self._patience(failure)
        return failure.ppm, True

    def why(self, loads: Mapping[int, float], now: Instant) -> str:
        """Return what is remembered in words; empty: nothing."""
        failure = self._at(loads)
        if failure is None:
            return ""
        wait_s = max(failure.try_ns - now, 0) / SECOND_NS
        return f"{failure.ppm / 10_000:.3g}% failed at this load; a smaller share is tried again in {wait_s:.0f}s"

    def _patience(self, failure: _Failure) -> Duration:
        return min(self._caution.wait_ns << min(max(failure.failures - 1, 0), _DOUBLINGS), self._caution.most_ns)

    def _at(self, loads: Mapping[int, float]) -> _Failure | None:
        """Return the latest failure at such loads."""
        return next((failure for failure in reversed(self._failures) if self._is_same(failure.loads, loads)), None)

    def _is_same(self, known: Mapping[int, float], loads: Mapping[int, float]) -> bool:
        return known.keys() == loads.keys() and all(self._is_like(known[slot], loads[slot]) for slot in loads)

    def _is_like(self, one: float, other: float) -> bool:
        low, high = sorted((one, other))
        chance = 3 / math.sqrt(max(low * _WINDOWS, 1.0))
        return high <= max(low, 1 / _WINDOWS) * (self._caution.differs + chance)
