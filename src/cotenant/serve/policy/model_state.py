"""Scheduling state of one model between decisions: its chosen size, its share and its run times."""

from __future__ import annotations

from typing import Final

from cotenant.serve.model.scheduling import ModelQueue
from cotenant.serve.policy.right_size import RunSize, batches
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
MIN_AREA_LIMIT: Final = 1.05
AREA_LIMIT: Final = 1.1
"""Maximum growth of units times time, relative to the load, for a wider run under overload. Our choice."""


class ModelState:
    """One loaded instance of a model."""

    __slots__ = (
        *(
            "_high_ns",
            "_typical_ns",
            "requested_rows",
            "batch",
            "budget_ns",
            "cap",
            "caution",
            "credit",
            "instances",
            "knee",
            "queue",
            "planned_high_ns",
            "share_units",
            "planned_ns",
            "thrifty",
        ),
        *(
            "admitted_part",
            "rate",
            "rates",
            "fresh_until",
            "ran_at",
            "row_ns",
            "score",
            "single",
            "units",
            "widest",
            "widths",
        ),
    )

    def __init__(self, queue: ModelQueue, all_units: int) -> None:
        """Start with the model's knee as its width, until a plan exists."""
        self.queue = queue
        self.widths = tuple(sorted({min(width, all_units) for width in queue.widths}))
        self.knee = max((width for width in self.widths if width <= queue.knee_units), default=self.widths[0])
        self.units = self.knee
        self.widest = self.widths[-1]
        self.batch = 1
        self.instances = queue.spec.instances
        self.single = not queue.spec.max_batch
        self.cap = max(queue.spec.max_batch, 1)
        self.caution = 1.0
        self.budget_ns: Duration = FAR
        self.share_units: float = FAR
        self.thrifty = False
        self.planned_high_ns: Duration = 0
        self.planned_ns: Duration = 0
        self.rate = 0.0
        self.row_ns: Duration = 0
        self.ran_at: Instant = NEVER
        self.score = 0.0
        self.fresh_until: Instant = 0
        self.requested_rows: dict[int, int] = {}
        self.rates: dict[int, float] = {}
        self.admitted_part: dict[int, float] = {}
        self.credit: dict[int, float] = {}
        self._typical_ns: dict[tuple[int, int], Duration] = {}
        self._high_ns: dict[tuple[int, int], Duration] = {}

    def count(self, since_ns: Duration) -> None:
        """Update the request rates from the rows received since the last call."""
        for priority, rows in self.queue.requested_rows.items():
            if since_ns:
                received = rows - self.requested_rows.get(priority, 0)
                self.rates[priority] = _updated_rate(self.rates.get(priority, 0.0), received, since_ns)
            self.requested_rows[priority] = rows
        self.rate = sum(self.rates.values())

    def apply_size(self, size: RunSize | None, used: float) -> None:
        """Use this size from now on; `used` is the load of the device."""
        spec = self.queue.spec
        if size is None:
            return
        self.batch, self.units = size.rows, size.units
        self.cap = max(spec.max_batch, 1)
        self.budget_ns = FAR
        self.widest = self.widths[-1]
        self.thrifty = used > 0.7
        self.planned_high_ns = size.high_ns
        self.row_ns = size.high_ns // size.rows
        self.planned_ns = 0
        if self.thrifty:
            max_area = max(MIN_AREA_LIMIT, AREA_LIMIT / used) * size.units * size.typical_ns
            self.widest = max(
                width
                for width in self.widths
                if width == size.units or width * self.typical_ns(size.rows, width) <= max_area
            )
            self.planned_ns = self.high_ns(size.rows, self.widest)
        if spec.slo_ns:
            fitting = [rows for rows in batches(self.cap) if 2 * self.high_ns(rows, size.units) <= spec.slo_ns]
            self.cap = max((*fitting, size.rows))
            if self.rate:
                self.budget_ns = max(spec.slo_ns - self.high_ns(1, size.units), 0)

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

    def record_answers(self, in_time: int, late: int) -> None:
        """Reduce caution for answers in time and raise it for late ones."""
        self.caution = min(
            max(self.caution + _CAUTION_INCREASE * late - _CAUTION_DECREASE * in_time, _MIN_CAUTION), 1.0
        )

    def forget_times(self) -> None:
        """Drop the cached run times."""
        self._typical_ns.clear()
        self._high_ns.clear()


def _updated_rate(rate: float, received: int, since_ns: Duration) -> float:
    """Update a moving average of a rate; the lower the rate, the longer the averaging time."""
    memory_ns = min(max(_ROWS * SECOND_NS / rate if rate else 0.0, _MIN_AVERAGING_NS), SECOND_NS)
    gain = since_ns / (since_ns + memory_ns)
    return rate + gain * (received * SECOND_NS / since_ns - rate)
