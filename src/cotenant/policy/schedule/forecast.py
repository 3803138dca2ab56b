"""What would become of one more request? Everything that waits is run in thought, in the order in which it will run."""

from __future__ import annotations

from bisect import insort
from math import isqrt
from typing import Final

from cotenant.domain.instant import Duration, Instant
from cotenant.domain.serving import Waiting
from cotenant.policy.schedule.book import FAR
from cotenant.policy.schedule.order import Doomed, End, Order, Queue, Start, limit, urgency

_STEPS: Final = 64
"""Decisions that are foreseen; what is behind them comes too late to matter. Our choice."""


class Forecast:
    """One look ahead: when the request asked for is answered, how late others are, and what all could still spare."""

    __slots__ = ("_asked", "_doubt", "_margin_ns", "_order", "_places", "_queues", "finish", "late_ns", "spare_ns")

    def __init__(self, order: Order, queues: list[Queue], asked: Waiting | None) -> None:
        """The request asked for is in one of the queues already, which are by urgency."""
        self._order = order
        self._queues = queues
        self._places = {one.book.lane.key: one for one in queues}
        self._asked = asked
        self._margin_ns = order.margin_ns
        self._doubt = 0
        self.finish: Instant = FAR
        self.late_ns: Duration = 0
        self.spare_ns: Duration = FAR

    def run(self) -> None:
        """Go on until all is answered."""
        order = self._order
        for _ in range(_STEPS):
            found = order.sketch(self._queues)
            if isinstance(found, Start):
                self._start(found)
            elif isinstance(found, Doomed):
                self._give_up(found)
            elif not self._wait():
                break

    def _start(self, start: Start) -> None:
        queue, count, rows, units = start
        order = self._order
        typical_ns = queue.book.typical_ns(rows, units)
        high_ns = queue.book.high_ns(rows, units)
        end = order.now + high_ns + order.margin_ns
        slack_ns = max(queue.book.planned_ns - high_ns, 0)
        for one in queue.waiting[queue.first : queue.first + count]:
            if one is self._asked:
                self.finish = end + slack_ns
                self.spare_ns = min(self.spare_ns, limit(one) - self.finish)
            else:
                self.late_ns += max(end - limit(one), 0)
                self.spare_ns = min(self.spare_ns, limit(one) - end)
        self._pass(queue, count)
        queue.running += 1
        queue.held += units
        order.free -= units
        doubt = self._doubt + (high_ns - typical_ns) ** 2
        insort(order.ends, End(order.now + typical_ns, units, doubt, queue.book.lane.key))

    def _give_up(self, doomed: Doomed) -> None:
        queue, count = doomed
        order = self._order
        self.spare_ns = 0
        for one in queue.waiting[queue.first : queue.first + count]:
            end = order.now + queue.book.typical_ns(one.rows, queue.book.widest) + order.margin_ns
            if one is self._asked:
                self.finish = max(end, limit(one) + 1)
            else:
                self.late_ns += max(end - limit(one), 1)
        self._pass(queue, count)

    def _pass(self, queue: Queue, count: int) -> None:
        """So many of a queue are dealt with."""
        self._queues.remove(queue)
        queue.first += count
        if queue.first < len(queue.waiting):
            insort(self._queues, queue, key=urgency)

    def _wait(self) -> bool:
        """Let time pass until the next run ends; False if none does, or nobody waits for it."""
        order = self._order
        if not order.ends or not self._queues:
            return False
        end = order.ends.pop(0)
        order.now = max(order.now, end.at)
        order.free += end.units
        queue = self._places.get(end.key)
        if queue is not None:
            queue.held -= end.units
            queue.running -= 1
        self._doubt = end.doubt
        order.margin_ns = self._margin_ns + isqrt(self._doubt)
        return True
