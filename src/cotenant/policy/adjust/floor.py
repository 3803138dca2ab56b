"""Which share failed, at which load, and when is one below it worth another try?

As CUBIC flattens around the window of its last loss: half of the way to what failed, then rest. After a while one small
step below; twice as long after each that fails. What failed at another load is remembered, but does not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from cotenant.domain.instant import SECOND_NS, Duration, Instant
from cotenant.domain.value import Value

_REMEMBERED: Final = 16
_DOUBLINGS: Final = 16
_WINDOWS: Final = 40
"""Of so many windows the load is about the mean: it varies by chance the more, the fewer requests they have."""


class Caution(Value, frozen=True):
    """How it remembers. Our choices; docs/control.md says why these."""

    margin_ppm: int = 20_000
    """So far above the share that failed it rests; a try goes twice as far down."""
    wait_ns: Duration = 10 * SECOND_NS
    """So long a share that failed is not tried again; twice as long each time that it fails."""
    most_ns: Duration = 1280 * SECOND_NS
    proven: int = 100
    """So many requests must have been seen before a try."""
    differs: float = 1.3
    """So many times the load is another load, beyond what chance explains."""


class _Floor:
    __slots__ = ("failures", "loads", "ppm", "try_ns")

    def __init__(self, loads: Mapping[int, float]) -> None:
        self.loads = dict(loads)
        self.ppm = 0
        self.failures = 0
        self.try_ns: Instant = 0


class Floors:
    """One device's."""

    def __init__(self, caution: Caution) -> None:
        """Nothing failed yet."""
        self._caution = caution
        self._floors: list[_Floor] = []

    def fail(self, online_ppm: int, loads: Mapping[int, float], now: Instant) -> None:
        """This share failed at these loads, by slot."""
        floor = self._at(loads)
        if floor is None:
            floor = _Floor(loads)
            self._floors = [*self._floors[1 - _REMEMBERED :], floor]
        floor.ppm = online_ppm
        floor.failures += 1
        floor.try_ns = now + self._patience(floor)

    def forgive(self) -> None:
        """It is another device by now: what failed may do."""
        self._floors.clear()

    def is_known(self, loads: Mapping[int, float]) -> bool:
        """Whether something failed at such loads."""
        return self._at(loads) is not None

    def reached(
        self, wanted_ppm: int, online_ppm: int, loads: Mapping[int, float], seen: float, now: Instant
    ) -> tuple[int, bool]:
        """How far one may go from here towards what is wanted, and whether that is a try."""
        floor, margin_ppm = self._at(loads), self._caution.margin_ppm
        if floor is None:
            return wanted_ppm, False
        rest_ppm = floor.ppm + margin_ppm
        if online_ppm > rest_ppm + margin_ppm:
            return max(wanted_ppm, (online_ppm + rest_ppm) // 2), False
        if now < floor.try_ns or seen < self._caution.proven or wanted_ppm >= online_ppm:
            return online_ppm, False
        floor.ppm = max(wanted_ppm, online_ppm - 2 * margin_ppm)
        floor.try_ns = now + self._patience(floor)
        return floor.ppm, True

    def why(self, loads: Mapping[int, float], now: Instant) -> str:
        """What is remembered, in words; empty: nothing."""
        floor = self._at(loads)
        if floor is None:
            return ""
        wait_s = max(floor.try_ns - now, 0) / SECOND_NS
        return f"{floor.ppm / 10_000:.3g}% failed at this load, less is tried again in {wait_s:.0f}s"

    def _patience(self, floor: _Floor) -> Duration:
        return min(self._caution.wait_ns << min(max(floor.failures - 1, 0), _DOUBLINGS), self._caution.most_ns)

    def _at(self, loads: Mapping[int, float]) -> _Floor | None:
        """The latest that failed at such loads."""
        return next((floor for floor in reversed(self._floors) if self._is_same(floor.loads, loads)), None)

    def _is_same(self, known: Mapping[int, float], loads: Mapping[int, float]) -> bool:
        return known.keys() == loads.keys() and all(self._is_like(known[slot], loads[slot]) for slot in loads)

    def _is_like(self, one: float, other: float) -> bool:
        low, high = sorted((one, other))
        chance = 3 / math.sqrt(max(low * _WINDOWS, 1.0))
        return high <= max(low, 1 / _WINDOWS) * (self._caution.differs + chance)
