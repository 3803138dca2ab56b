"""Simulation of the scheduling order, which predicts when one more request would be answered."""

from __future__ import annotations

from bisect import insort
from math import isqrt
from typing import Final

from cotenant.serve.model.event import QueuedRequest
from cotenant.serve.policy.model_state import FAR
from cotenant.serve.policy.order import (
    DeadlineOrder,
    LateRequests,
    QueueCursor,
    RunChoice,
    UnitRelease,
    deadline_of,
    urgency,
)
from cotenant.units.instant import Duration, Instant

_STEPS: Final = 64
"""Maximum number of simulated decisions; later ones do not matter. Our choice."""


class QueueSimulation:
    """Predicts the finish of a request, how late others become, and how much time all of them have to spare."""

    __slots__ = (
        "_by_key",
        "_cursors",
        "_margin_ns",
        "_order",
        "_request",
        "_variance",
        "finish",
        "late_ns",
        "spare_ns",
    )

    def __init__(self, order: DeadlineOrder, cursors: list[QueueCursor], request: QueuedRequest | None) -> None:
        """The request is already in one of the queues; the cursors are sorted by urgency."""
        self._order = order
        self._cursors = cursors
        self._by_key = {cursor.state.queue.key: cursor for cursor in cursors}
        self._request = request
        self._margin_ns = order.margin_ns
        self._variance = 0
        self.finish: Instant = FAR
        self.late_ns: Duration = 0
        self.spare_ns: Duration = FAR

    def run(self) -> None:
        """Simulate until every request is answered, or `_STEPS` decisions were made."""
        order = self._order
        for _ in range(_STEPS):
            choice = order.sketch(self._cursors)
            if isinstance(choice, RunChoice):
                self._start(choice)
            elif isinstance(choice, LateRequests):
                self._drop_late(choice)
            elif not self._wait():
                break

    def _start(self, start: RunChoice) -> None:
        cursor, count, rows, units = start
        order = self._order
        typical_ns = cursor.state.typical_ns(rows, units)
        high_ns = cursor.state.high_ns(rows, units)
        end = order.now + high_ns + order.margin_ns
        slack_ns = max(cursor.state.planned_ns - high_ns, 0)
        for request in cursor.waiting[cursor.first : cursor.first + count]:
            if request is self._request:
                self.finish = end + slack_ns
                self.spare_ns = min(self.spare_ns, deadline_of(request) - self.finish)
            else:
                self.late_ns += max(end - deadline_of(request), 0)
                self.spare_ns = min(self.spare_ns, deadline_of(request) - end)
        self._advance(cursor, count)
        cursor.running += 1
        cursor.held += units
        order.free -= units
        variance = self._variance + (high_ns - typical_ns) ** 2
        insort(order.ends, UnitRelease(order.now + typical_ns, units, variance, cursor.state.queue.key))

    def _drop_late(self, late: LateRequests) -> None:
        cursor, count = late
        order = self._order
        self.spare_ns = 0
        for request in cursor.waiting[cursor.first : cursor.first + count]:
            end = order.now + cursor.state.typical_ns(request.rows, cursor.state.widest) + order.margin_ns
            if request is self._request:
                self.finish = max(end, deadline_of(request) + 1)
            else:
                self.late_ns += max(end - deadline_of(request), 1)
        self._advance(cursor, count)

    def _advance(self, cursor: QueueCursor, count: int) -> None:
        """Move a cursor past requests that are done."""
        self._cursors.remove(cursor)
        cursor.first += count
        if cursor.first < len(cursor.waiting):
            insort(self._cursors, cursor, key=urgency)

    def _wait(self) -> bool:
        """Advance to the end of the next run; return False if none is active or no request waits."""
        order = self._order
        if not order.ends or not self._cursors:
            return False
        end = order.ends.pop(0)
        order.now = max(order.now, end.at)
        order.free += end.units
        cursor = self._by_key.get(end.key)
        if cursor is not None:
            cursor.held -= end.units
            cursor.running -= 1
        self._variance = end.variance
        order.margin_ns = self._margin_ns + isqrt(self._variance)
        return True
