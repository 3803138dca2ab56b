"""What does a server remember of one model? Its queue, by urgency, and what its runs took."""

from __future__ import annotations

from bisect import insort
from typing import Final

from cotenant.domain.instant import NEVER, SECOND_NS, Duration, Instant
from cotenant.domain.runtimes import RunTimes
from cotenant.domain.serving import ModelSpec, Waiting
from cotenant.policy.predict.service import Drift, ServiceTimes

_PRIORITIES: Final = 16
"""Priorities beyond count as this one where rows are counted: clients may name any number. Our choice."""
_WINDOW_NS: Final = SECOND_NS // 4
"""Over which arrivals are counted. Our choice: a server is planned for soon after it starts."""
_FAR: Final = 1 << 62
"""Later than any deadline."""


def _urgency(waiting: Waiting) -> tuple[int, int, int]:
    deadline = waiting.deadline
    return waiting.priority, _FAR if deadline == NEVER else deadline, waiting.request


class Rate:
    """How often something comes, by the last second or so; known from a quarter of a second on."""

    __slots__ = ("_count", "_since", "per_second")

    def __init__(self) -> None:
        """Nothing has come."""
        self._since: Instant | None = None
        self._count = 0
        self.per_second = 0.0

    def add(self, count: int, now: Instant) -> None:
        """So many came; every window that is over moves the belief a part of the way."""
        if self._since is None:
            self._since = now
        over_ns = now - self._since
        if over_ns >= _WINDOW_NS:
            lately = self._count * SECOND_NS / over_ns
            moved = (lately - self.per_second) * min(over_ns / SECOND_NS, 1.0)
            self.per_second = self.per_second + moved if self.per_second else lately
            self._since, self._count = now, 0
        self._count += count


class QueueLane:
    """One loading of a model."""

    __slots__ = (
        "_arrivals",
        "_service",
        "asked",
        "key",
        "knee_units",
        "leaving",
        "measured",
        "profiled",
        "rows",
        "running",
        "spec",
        "waiting",
        "widths",
    )

    def __init__(self, key: int, spec: ModelSpec, times: RunTimes | None = None, drift: Drift | None = None) -> None:
        """Nothing waits and nothing runs; lanes of one device have one drift."""
        self.key = key
        self.spec = spec
        self.waiting: list[Waiting] = []
        self.rows = 0
        self.running = 0
        self.leaving = False
        self._service = ServiceTimes(times, spec.share, drift)
        self.profiled = times is not None
        self.asked: dict[int, int] = {}
        self._arrivals = Rate()
        self.widths = self._service.widths
        self.knee_units = spec.share if times is None else times.knee_units
        self.measured = times is not None

    def add(self, waiting: Waiting) -> None:
        """Queue it behind those that are as urgent."""
        queue = self.waiting
        if queue and _urgency(queue[-1]) > _urgency(waiting):
            insort(queue, waiting, key=_urgency)
        else:
            queue.append(waiting)
        self.rows += waiting.rows

    def came(self, rows: int, priority: int, now: Instant) -> None:
        """So many rows were asked for, whether they were taken or not."""
        self._arrivals.add(rows, now)
        kind = min(priority, _PRIORITIES)
        self.asked[kind] = self.asked.get(kind, 0) + rows

    @property
    def rate(self) -> float:
        """Rows a second that came lately."""
        return self._arrivals.per_second

    def take(self, count: int) -> list[Waiting]:
        """Remove and return the first so many."""
        taken = self.waiting[:count]
        del self.waiting[:count]
        self.rows -= sum(one.rows for one in taken)
        return taken

    def drop(self, request: int) -> Waiting | None:
        """Remove one from wherever it is; None if it is not here."""
        for place, one in enumerate(self.waiting):
            if one.request == request:
                del self.waiting[place]
                self.rows -= one.rows
                return one
        return None

    def expected_ns(self, rows: int, units: int) -> Duration:
        """How long a run of so many rows on so many units is believed to take."""
        return self._service.expected_ns(rows, units)

    def high_ns(self, rows: int, units: int) -> Duration:
        """What such a run exceeds once in a hundred."""
        return self._service.high_ns(rows, units)

    def learn(self, rows: int, units: int, took_ns: Duration) -> None:
        """A run of so many rows on so many units took so long."""
        self._service.learn(rows, units, took_ns)

    @property
    def slower(self) -> tuple[float, float]:
        """How many times as long runs take as measured: by the machine, and by the model itself besides."""
        return self._service.slower

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.waiting and not self.running
