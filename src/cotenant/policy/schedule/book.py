"""What does a scheduler keep of one model between decisions? How it is best run, and how long its runs take."""

from __future__ import annotations

from typing import Final

from cotenant.domain.instant import NEVER, SECOND_NS, Duration, Instant
from cotenant.domain.lane import Lane
from cotenant.policy.schedule.right_size import Size, batches

FAR: Final = 1 << 62
"""Later than anything."""
_ROWS: Final = 20
_LEAST_NS: Final = 150_000_000
"""A rate is counted over about so many rows, for no less than this and no more than a second. Our choice."""
_STALE_NS: Final = SECOND_NS
"""A model that did not run for so long is tried whatever is believed of it: else a bad hour would never end."""
_BOLD: Final = 0.001
_CAREFUL: Final = 0.2
"""What an answer in time and a late one change: they balance where one in two hundred is late. Our choice."""
_LEAST_CAUTION: Final = 0.25
LEAST: Final = 1.05
WASTE: Final = 1.1
"""When the device is short, a run is made wider to be in time only if it takes no more than this of it. Our choice."""


class Book:
    """One loading of a model."""

    __slots__ = (
        *(
            "_high_ns",
            "_typical_ns",
            "asked",
            "batch",
            "budget_ns",
            "cap",
            "caution",
            "credit",
            "instances",
            "knee",
            "lane",
            "lasts_ns",
            "own_units",
            "planned_ns",
            "thrift",
        ),
        *("part", "rate", "rates", "fresh_until", "ran_at", "row_ns", "score", "single", "units", "widest", "widths"),
    )

    def __init__(self, lane: Lane, all_units: int) -> None:
        """As it is run while nobody has planned for it."""
        self.lane = lane
        self.widths = tuple(sorted({min(one, all_units) for one in lane.widths}))
        self.knee = max((one for one in self.widths if one <= lane.knee_units), default=self.widths[0])
        self.units = self.knee
        self.widest = self.widths[-1]
        self.batch = 1
        self.instances = lane.spec.instances
        self.single = not lane.spec.max_batch
        self.cap = max(lane.spec.max_batch, 1)
        self.caution = 1.0
        self.budget_ns: Duration = FAR
        self.own_units: float = FAR
        self.thrift = False
        self.lasts_ns: Duration = 0
        self.planned_ns: Duration = 0
        self.rate = 0.0
        self.row_ns: Duration = 0
        self.ran_at: Instant = NEVER
        self.score = 0.0
        self.fresh_until: Instant = 0
        self.asked: dict[int, int] = {}
        self.rates: dict[int, float] = {}
        self.part: dict[int, float] = {}
        self.credit: dict[int, float] = {}
        self._typical_ns: dict[tuple[int, int], Duration] = {}
        self._high_ns: dict[tuple[int, int], Duration] = {}

    def count(self, since_ns: Duration) -> None:
        """Note what was asked for since the last time."""
        for priority, rows in self.lane.asked.items():
            if since_ns:
                came = rows - self.asked.get(priority, 0)
                self.rates[priority] = _moved(self.rates.get(priority, 0.0), came, since_ns)
            self.asked[priority] = rows
        self.rate = sum(self.rates.values())

    def follow(self, size: Size | None, used: float) -> None:
        """Run it this way from now on; `used` says how short the device is."""
        spec = self.lane.spec
        if size is None:
            return
        self.batch, self.units = size.rows, size.units
        self.cap = max(spec.max_batch, 1)
        self.budget_ns = FAR
        self.widest = self.widths[-1]
        self.thrift = used > 0.7
        self.lasts_ns = size.high_ns
        self.row_ns = size.high_ns // size.rows
        self.planned_ns = 0
        if self.thrift:
            most = max(LEAST, WASTE / used) * size.units * size.typical_ns
            self.widest = max(
                one for one in self.widths if one == size.units or one * self.typical_ns(size.rows, one) <= most
            )
            self.planned_ns = self.high_ns(size.rows, self.widest)
        if spec.slo_ns:
            fitting = [one for one in batches(self.cap) if 2 * self.high_ns(one, size.units) <= spec.slo_ns]
            self.cap = max((*fitting, size.rows))
            if self.rate:
                self.budget_ns = max(spec.slo_ns - self.high_ns(1, size.units), 0)

    def stale(self, now: Instant) -> bool:
        """Whether what is believed of its runs is so old that one had better be tried."""
        return self.ran_at == NEVER or now - self.ran_at > _STALE_NS

    def typical_ns(self, rows: int, units: int) -> Duration:
        """What a run takes."""
        found = self._typical_ns.get((rows, units))
        if found is None:
            found = self._typical_ns[rows, units] = self.lane.expected_ns(rows, units)
        return found

    def high_ns(self, rows: int, units: int) -> Duration:
        """What is reckoned with, so that hardly an answer is late: at most what a run exceeds once in a hundred."""
        found = self._high_ns.get((rows, units))
        if found is None:
            typical_ns = self.typical_ns(rows, units)
            beyond_ns = max(self.lane.high_ns(rows, units) - typical_ns, 0)
            found = self._high_ns[rows, units] = typical_ns + int(self.caution * beyond_ns)
        return found

    def answered(self, in_time: int, late: int) -> None:
        """Answers in time make it bolder, late ones careful at once: rare long runs do not come together."""
        self.caution = min(max(self.caution + _CAREFUL * late - _BOLD * in_time, _LEAST_CAUTION), 1.0)

    def learned(self) -> None:
        """Its runs are believed to take another time than before."""
        self._typical_ns.clear()
        self._high_ns.clear()


def _moved(rate: float, came: int, since_ns: Duration) -> float:
    """A rate after so much more came: the fewer come, the longer it takes to believe that they are more or less."""
    memory_ns = min(max(_ROWS * SECOND_NS / rate if rate else 0.0, _LEAST_NS), SECOND_NS)
    part = since_ns / (since_ns + memory_ns)
    return rate + part * (came * SECOND_NS / since_ns - rate)
