"""State of one model: its queue by urgency, its arrival rate and its run times."""

from __future__ import annotations

from bisect import insort
from typing import Final

from cotenant.predict.run_time import Drift, ServiceTimes
from cotenant.serve.model.event import ModelSpec, QueuedRequest
from cotenant.serve.model.run_times import RunTimes
from cotenant.units.instant import NEVER, SECOND_NS, Duration, Instant

_PRIORITIES: Final = 16
"""Lower priorities are counted together with this one, because clients may name any number. Our choice."""
_WINDOW_NS: Final = SECOND_NS // 4
"""Period over which arrivals are counted. Our choice: short, so that a plan exists soon after the start."""
_FAR: Final = 1 << 62
"""Later than any deadline."""


def _urgency(waiting: QueuedRequest) -> tuple[int, int, int]:
    deadline = waiting.deadline
    return waiting.priority, _FAR if deadline == NEVER else deadline, waiting.request


class ArrivalRate:
    """Arrival rate over about the last second; known after a quarter of a second."""

    __slots__ = ("_count", "_since", "per_second")

    def __init__(self) -> None:
        """Start without arrivals."""
        self._since: Instant | None = None
        self._count = 0
        self.per_second = 0.0

    def add(self, count: int, now: Instant) -> None:
        """Count arrivals; each complete window moves the average."""
        if self._since is None:
            self._since = now
        elapsed_ns = now - self._since
        if elapsed_ns >= _WINDOW_NS:
            recent_rate = self._count * SECOND_NS / elapsed_ns
            change = (recent_rate - self.per_second) * min(elapsed_ns / SECOND_NS, 1.0)
            self.per_second = self.per_second + change if self.per_second else recent_rate
            self._since, self._count = now, 0
        self._count += count


class ModelQueueState:
    """The queue of one loaded instance of a model."""

    __slots__ = (
        "_arrivals",
        "_service",
        "key",
        "knee_units",
        "measured",
        "profiled",
        "requested_rows",
        "rows",
        "running",
        "spec",
        "waiting",
        "widths",
        "withdrawn",
    )

    def __init__(self, key: int, spec: ModelSpec, times: RunTimes | None = None, drift: Drift | None = None) -> None:
        """Start empty; the queues of one device share one `Drift`."""
        self.key = key
        self.spec = spec
        self.waiting: list[QueuedRequest] = []
        self.rows = 0
        self.running = 0
        self.withdrawn = False
        self._service = ServiceTimes(times, spec.share, drift)
        self.profiled = times is not None
        self.requested_rows: dict[int, int] = {}
        self._arrivals = ArrivalRate()
        self.widths = self._service.widths
        self.knee_units = spec.share if times is None else times.knee_units
        self.measured = times is not None

    def add(self, waiting: QueuedRequest) -> None:
        """Insert a request behind those of the same urgency."""
        queue = self.waiting
        if queue and _urgency(queue[-1]) > _urgency(waiting):
            insort(queue, waiting, key=_urgency)
        else:
            queue.append(waiting)
        self.rows += waiting.rows

    def record_arrival(self, rows: int, priority: int, now: Instant) -> None:
        """Count the rows of a received request, admitted or not."""
        self._arrivals.add(rows, now)
        kind = min(priority, _PRIORITIES)
        self.requested_rows[kind] = self.requested_rows.get(kind, 0) + rows

    @property
    def rate(self) -> float:
        """Return the recent arrival rate in rows per second."""
        return self._arrivals.per_second

    def take(self, count: int) -> list[QueuedRequest]:
        """Remove and return the first requests."""
        requests = self.waiting[:count]
        del self.waiting[:count]
        self.rows -= sum(request.rows for request in requests)
        return requests

    def drop(self, request: int) -> QueuedRequest | None:
        """Remove a request; return None if it is not queued here."""
        for index, queued in enumerate(self.waiting):
            if queued.request == request:
                del self.waiting[index]
                self.rows -= queued.rows
                return queued
        return None

    def expected_ns(self, rows: int, units: int) -> Duration:
        """Return the expected time of a run; zero if unknown."""
        return self._service.expected_ns(rows, units)

    def high_ns(self, rows: int, units: int) -> Duration:
        """Return the 99th percentile of such a run."""
        return self._service.high_ns(rows, units)

    def learn(self, rows: int, units: int, took_ns: Duration) -> None:
        """Learn from the time of a run."""
        self._service.learn(rows, units, took_ns)

    @property
    def slowdown(self) -> tuple[float, float]:
        """Return the measured slowdown relative to the profile: of the machine, and of the model beyond that."""
        return self._service.slower

    @property
    def idle(self) -> bool:
        """Return whether no request is queued and no run is active."""
        return not self.waiting and not self.running
