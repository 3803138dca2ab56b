"""What does a server remember of one model? Its queue, by urgency, and what its runs took."""

from __future__ import annotations

from bisect import insort

from cotenant.domain.instant import Duration
from cotenant.domain.serving import ModelSpec, Waiting
from cotenant.policy.predict.service import ServiceTimes


def _urgency(waiting: Waiting) -> tuple[int, int]:
    return waiting.priority, waiting.request


class QueueLane:
    """One loading of a model."""

    __slots__ = ("_service", "key", "leaving", "rows", "running", "spec", "waiting")

    def __init__(self, key: int, spec: ModelSpec) -> None:
        """Nothing waits and nothing runs."""
        self.key = key
        self.spec = spec
        self.waiting: list[Waiting] = []
        self.rows = 0
        self.running = 0
        self.leaving = False
        self._service = ServiceTimes()

    def add(self, waiting: Waiting) -> None:
        """Queue it behind those that are as urgent."""
        queue = self.waiting
        if queue and _urgency(queue[-1]) > _urgency(waiting):
            insort(queue, waiting, key=_urgency)
        else:
            queue.append(waiting)
        self.rows += waiting.rows

    def take(self, count: int) -> list[Waiting]:
        """Remove and return the first so many."""
        taken = self.waiting[:count]
        del self.waiting[:count]
        self.rows -= sum(one.rows for one in taken)
        return taken

    def drop(self, request: int) -> bool:
        """Remove one from wherever it is; False if it is not here."""
        for place, one in enumerate(self.waiting):
            if one.request == request:
                del self.waiting[place]
                self.rows -= one.rows
                return True
        return False

    def expected_ns(self, rows: int) -> Duration:
        """How long a run of so many rows is believed to take."""
        return self._service.expected_ns(rows)

    def learn(self, rows: int, took_ns: Duration) -> None:
        """A run of so many rows took so long."""
        self._service.learn(rows, took_ns)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.waiting and not self.running
