"""Scheduling state of one model between decisions: its chosen size, its price and its run times."""

from __future__ import annotations

from typing import Final

from cotenant.serve.model.scheduling import ModelQueue
from cotenant.serve.policy.right_size import RunSize
from cotenant.units.instant import NEVER, SECOND_NS, Duration, Instant

FAR: Final = 1 << 62
"""Later than any instant."""
_ROWS: Final = 20
_MIN_AVERAGING_NS: Final = 150_000_000
"""A rate is averaged over about `_ROWS` rows, over at least this time and at most a second. Our choice."""
_STALE_NS: Final = SECOND_NS
"""A model that did not run for this long is tried whatever its estimates say, so that outdated estimates are corrected.
"""
_CAUTION_DECREASE: Final = 0.001
_CAUTION_INCREASE: Final = 0.2
"""Change of caution per answer in time and per late answer; they balance if 1 in 200 is late. Our choice."""
_MIN_CAUTION: Final = 0.25
_DECAY: Final = 0.9
"""Factor by which counted rows decay each time rates are measured. Our choice: a memory of about a second."""


class ModelState:
    """One loaded instance of a model."""

    __slots__ = (
        *("_fastest_ns", "_high_ns", "_typical_ns", "_value", "budget_ns", "cap", "caution", "fresh_until"),
        *("instances", "knee", "parts", "queue", "ran_at", "rate", "rates", "requested_rows", "row_area_ns", "score"),
        *("single", "started", "units", "wanted", "widths"),
    )

    def __init__(self, queue: ModelQueue, all_units: int) -> None:
        """Start with the model's knee as its width, until a plan exists."""
        self.queue = queue
        self.widths = tuple(sorted({min(width, all_units) for width in queue.widths}))
        self.knee = max((width for width in self.widths if width <= queue.knee_units), default=self.widths[0])
        self.units = self.knee
        self.instances = queue.spec.instances
        self.single = not queue.spec.max_batch
        self.cap = max(queue.spec.max_batch, 1)
        self.caution = 1.0
        self.budget_ns: Duration = FAR
        self.rate = 0.0
        self.row_area_ns = 0.0
        self.ran_at: Instant = NEVER
        self.score = 0.0
        self.fresh_until: Instant = 0
        self.requested_rows: dict[int, int] = {}
        self.rates: dict[int, float] = {}
        self.parts: dict[int, float] = {}
        self.wanted: dict[int, float] = {}
        self.started: dict[int, float] = {}
        self._typical_ns: dict[tuple[int, int], Duration] = {}
        self._high_ns: dict[tuple[int, int], Duration] = {}
        self._fastest_ns: dict[int, Duration] = {}
        self._value: dict[tuple[int, int], float] = {}

    def count(self, since_ns: Duration) -> None:
        """Update the request rates from the rows received since the last call."""
        for priority, rows in self.queue.requested_rows.items():
            received = rows - self.requested_rows.get(priority, 0)
            if since_ns:
                self.rates[priority] = _updated_rate(self.rates.get(priority, 0.0), received, since_ns)
            self.wanted[priority] = _DECAY * self.wanted.get(priority, 0.0) + received
            self.started[priority] = _DECAY * self.started.get(priority, 0.0)
            self.requested_rows[priority] = rows
        self.rate = sum(self.rates.values())

    def apply_size(self, size: RunSize | None) -> None:
        """Use this size from now on."""
        if size is None:
            return
        self.units = size.units
        slo_ns = self.queue.spec.slo_ns
        self.budget_ns = max(slo_ns - self.high_ns(1, size.units), 0) if slo_ns and self.rate else FAR

    def stale(self, now: Instant) -> bool:
        """Return whether the run times are so old that a run should be tried."""
        return self.ran_at == NEVER or now - self.ran_at > _STALE_NS

    def typical_ns(self, rows: int, units: int) -> Duration:
        """Return the typical time of a run."""
        cached_ns = self._typical_ns.get((rows, units))
        if cached_ns is None:
            cached_ns = self._typical_ns[rows, units] = self.queue.expected_ns(rows, units)
        return cached_ns

    def high_ns(self, rows: int, units: int) -> Duration:
        """Return the time to plan with: between the typical time and the 99th percentile, by the current caution."""
        cached_ns = self._high_ns.get((rows, units))
        if cached_ns is None:
            typical_ns = self.typical_ns(rows, units)
            beyond_ns = max(self.queue.high_ns(rows, units) - typical_ns, 0)
            cached_ns = self._high_ns[rows, units] = typical_ns + int(self.caution * beyond_ns)
        return cached_ns

    def fastest_ns(self, rows: int) -> Duration:
        """Return the shortest typical time of a run on any width."""
        cached_ns = self._fastest_ns.get(rows)
        if cached_ns is None:
            cached_ns = self._fastest_ns[rows] = min(self.typical_ns(rows, units) for units in self.widths)
        return cached_ns

    def value(self, rows: int, units: int) -> float:
        """Return rows over units times time of a run."""
        cached = self._value.get((rows, units))
        if cached is None:
            cached = self._value[rows, units] = rows / (units * max(self.typical_ns(rows, units), 1))
        return cached

    def record_answers(self, in_time: int, late: int) -> None:
        """Reduce caution for answers in time and raise it for late ones."""
        self.caution = min(
            max(self.caution + _CAUTION_INCREASE * late - _CAUTION_DECREASE * in_time, _MIN_CAUTION), 1.0
        )

    def forget_times(self) -> None:
        """Drop the cached run times."""
        self._typical_ns.clear()
        self._high_ns.clear()
        self._fastest_ns.clear()
        self._value.clear()


def _updated_rate(rate: float, received: int, since_ns: Duration) -> float:
    """Update a moving average of a rate; the lower the rate, the longer the averaging time."""
    memory_ns = min(max(_ROWS * SECOND_NS / rate if rate else 0.0, _MIN_AVERAGING_NS), SECOND_NS)
    gain = since_ns / (since_ns + memory_ns)
    return rate + gain * (received * SECOND_NS / since_ns - rate)
