"""Memory of online shares that failed at a load, and when a smaller one may be tried again.

The share behaves as CUBIC's window, which flattens around the size of its last loss: it halves its distance to the
failed share with each step and then stays. After a wait it tries one small step below; the wait doubles with each
failure. Failures at another load do not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from cotenant.units.instant import SECOND_NS, Duration, Instant
from cotenant.units.value import Value

_FAILURES_LIMIT: Final = 16
_DOUBLINGS_LIMIT: Final = 16
_WINDOWS: Final = 40
"""The load is a mean of this many windows: the fewer requests they have, the more it varies by chance."""


class FailureMemoryParameters(Value, frozen=True):
    """Parameters chosen by the project; docs/concepts/control.md gives the reasons."""

    margin_ppm: int = 10_000
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

    def __init__(self, parameters: FailureMemoryParameters) -> None:
        """Begin without failures."""
        self._parameters = parameters
        self._failures: list[_Failure] = []

    def record(self, online_ppm: int, loads: Mapping[int, float], now: Instant) -> None:
        """Record that this share failed at these loads, by slot."""
        failure = self._failure_at(loads)
        if failure is None:
            failure = _Failure(loads)
            self._failures = [*self._failures[1 - _FAILURES_LIMIT :], failure]
        failure.ppm = online_ppm
        failure.failures += 1
        failure.try_ns = now + self._wait_ns(failure)

    def clear(self) -> None:
        """Forget all failures because the conditions on the device changed."""
        self._failures.clear()

    def has_failure(self, loads: Mapping[int, float]) -> bool:
        """Return whether a share failed at such loads."""
        return self._failure_at(loads) is not None

    def limit_decrease(
        self, wanted_ppm: int, online_ppm: int, loads: Mapping[int, float], requests: float, now: Instant
    ) -> tuple[int, bool]:
        """Return how far the share may move towards the wanted one, and whether that is a new attempt."""
        failure, margin_ppm = self._failure_at(loads), self._parameters.margin_ppm
        if failure is None:
            return wanted_ppm, False
        settled_ppm = failure.ppm + margin_ppm
        if online_ppm > settled_ppm + margin_ppm:
            return max(wanted_ppm, (online_ppm + settled_ppm) // 2), False
        if now < failure.try_ns or requests < self._parameters.proven or wanted_ppm >= online_ppm:
            return online_ppm, False
        failure.ppm = max(wanted_ppm, online_ppm - 2 * margin_ppm)
        failure.try_ns = now + self._wait_ns(failure)
        return failure.ppm, True

    def why(self, loads: Mapping[int, float], now: Instant) -> str:
        """Describe the failure that is remembered for these loads; empty: none."""
        failure = self._failure_at(loads)
        if failure is None:
            return ""
        wait_s = max(failure.try_ns - now, 0) / SECOND_NS
        return f"{failure.ppm / 10_000:.3g}% failed at this load; a smaller share is tried again in {wait_s:.0f}s"

    def _wait_ns(self, failure: _Failure) -> Duration:
        doublings = min(max(failure.failures - 1, 0), _DOUBLINGS_LIMIT)
        return min(self._parameters.wait_ns << doublings, self._parameters.most_ns)

    def _failure_at(self, loads: Mapping[int, float]) -> _Failure | None:
        """Return the latest failure at such loads."""
        return next((failure for failure in reversed(self._failures) if self._is_same_load(failure.loads, loads)), None)

    def _is_same_load(self, failed: Mapping[int, float], loads: Mapping[int, float]) -> bool:
        return failed.keys() == loads.keys() and all(self._is_similar(failed[slot], loads[slot]) for slot in loads)

    def _is_similar(self, first: float, second: float) -> bool:
        low, high = sorted((first, second))
        random_variation = 3 / math.sqrt(max(low * _WINDOWS, 1.0))
        return high <= max(low, 1 / _WINDOWS) * (self._parameters.differs + random_variation)
