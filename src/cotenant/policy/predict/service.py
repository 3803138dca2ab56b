"""How long does a run of so many rows take? By what runs took lately, for want of a profile."""

from __future__ import annotations

from typing import Final

from cotenant.domain.instant import Duration

_WEIGHT: Final = 8
"""Each outcome moves the belief by an eighth: ten runs or so forget a change of speed. Our choice."""


class ServiceTimes:
    """What runs of one model took, by their rows."""

    __slots__ = ("_took_ns",)

    def __init__(self) -> None:
        """Believe nothing yet."""
        self._took_ns: dict[int, Duration] = {}

    def learn(self, rows: int, took_ns: Duration) -> None:
        """A run of so many rows took so long."""
        before = self._took_ns.get(rows)
        self._took_ns[rows] = took_ns if before is None else before + (took_ns - before) // _WEIGHT

    def expected_ns(self, rows: int) -> Duration:
        """What is believed of a run of so many rows; zero before the first outcome.

        Of sizes never run, the next larger one is the answer; beyond the largest, time grows in proportion.
        """
        known = self._took_ns.get(rows)
        if known is not None:
            return known
        if not self._took_ns:
            return 0
        larger = [size for size in self._took_ns if size > rows]
        if larger:
            return self._took_ns[min(larger)]
        largest = max(self._took_ns)
        return self._took_ns[largest] * rows // max(largest, 1)
