"""Who goes next, with how many requests, on how many units? One answer for what is now and for what is foreseen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cotenant.domain.instant import NEVER, SECOND_NS, Duration, Instant
from cotenant.domain.serving import Waiting
from cotenant.policy.schedule.book import FAR, Book

THRIFT: Final = 1.05
"""A narrower run than planned may take so much more of the device for a row. Our choice."""
_PATIENCE_NS: Final = SECOND_NS
"""Without a deadline, a request that waited for this long goes before what came after it. Nobody waits for ever."""
_FILL: Final = 1 << 60
"""After every deadline."""


class Queue:
    """A model's requests, from one of them on."""

    __slots__ = ("book", "first", "held", "now", "running", "waiting")

    def __init__(self, book: Book, waiting: Sequence[Waiting], held: int, now: Instant) -> None:
        """All of them; the model's runs hold so many units."""
        self.now = now
        self.book = book
        self.waiting = waiting
        self.first = 0
        self.held = held
        self.running = book.lane.running


class End(NamedTuple):
    """When units come free; by how much that may be wrong, squared."""

    at: Instant
    units: int
    doubt: int
    key: int


class Start(NamedTuple):
    """Run so many requests of a queue."""

    queue: Queue
    requests: int
    rows: int
    units: int


class Doomed(NamedTuple):
    """The first so many requests of a queue cannot be answered in time any more."""

    queue: Queue
    requests: int


def limit(one: Waiting) -> Instant:
    """After which an answer is of no use."""
    return FAR if one.deadline == NEVER else one.deadline


class Order:
    """Earliest deadline first, each at its units; who cannot start leaves room for those that do not delay it."""

    __slots__ = ("books", "ends", "free", "idle", "margin_ns", "now")

    def __init__(
        self, now: Instant, free: int, ends: list[End], margin_ns: Duration, books: Sequence[Book], *, idle: bool
    ) -> None:
        """`ends` by instant; `idle`: nobody else is likely to want units soon, so that runs may be wide."""
        self.now = now
        self.free = free
        self.ends = ends
        self.margin_ns = margin_ns
        self.books = books
        self.idle = idle

    def pick(self, queues: Sequence[Queue]) -> Start | Doomed | None:
        """The next thing to do at this instant, if there is any; otherwise something must end first.

        The queues are those in which something waits, the most urgent first (`urgency`).
        """
        if not self.free:
            return None
        until, spare = FAR, FAR  # what those who cannot start leave to others: time, or units
        for queue in queues:
            book = queue.book
            if book.instances and queue.running >= book.instances:
                continue
            units = self._width(queue)
            if not units:
                return Doomed(queue, self._doomed(queue))
            found = self._fit(queue, units, FAR if units <= spare else until)
            if found is None:
                if until == FAR:
                    until, spare = self._reservation(max(units, book.units))
                continue
            delays = units > spare and self.now + book.typical_ns(found.rows, units) > until
            if not delays and self._within(found):
                return found
        return None

    def sketch(self, queues: Sequence[Queue]) -> Start | Doomed | None:
        """As `pick`, for what is only foreseen: on the units that were planned, or those there are; soon found out."""
        free, now = self.free, self.now
        if not free:
            return None
        until, spare = FAR, FAR
        for queue in queues:
            book = queue.book
            if book.instances and queue.running >= book.instances:
                continue
            units = book.units
            head = queue.waiting[queue.first]
            left_ns = limit(head) - now - self.margin_ns
            if units > free:
                units = self._narrower(book, head.rows, left_ns)
            if units > free:
                if until == FAR:
                    until, spare = self._reservation(units)
                continue
            if book.typical_ns(head.rows, book.widest) > left_ns and not book.stale(now):
                return Doomed(queue, 1)
            found = self._block(queue, units, left_ns)
            delays = units > spare and now + book.typical_ns(found.rows, units) > until
            if not delays and self._within(found):
                return found
        return None

    def _narrower(self, book: Book, rows: int, left_ns: Duration) -> int:
        """The most units that are free and enough for the first request; those planned, if there are none."""
        for units in reversed(book.widths):
            if units <= self.free:
                return units if book.high_ns(rows, units) <= left_ns else book.units
        return book.units

    def _block(self, queue: Queue, units: int, left_ns: Duration) -> Start:
        """The largest run of those halved again and again that leaves the first one in time."""
        book = queue.book
        waiting = queue.waiting
        first = queue.first
        count = 1 if book.single else min(len(waiting) - first, book.cap)
        while count > 1:
            rows = sum([one.rows for one in waiting[first : first + count]])
            if rows <= book.cap and book.high_ns(rows, units) <= left_ns:
                return Start(queue, count, rows, units)
            count //= 2
        return Start(queue, 1, waiting[first].rows, units)

    def _fit(self, queue: Queue, units: int, until: Instant) -> Start | None:
        """A run on so many units; none if they are not free, or so few that it had better wait for more."""
        if units > self.free:
            return None
        found = self._assemble(queue, units, until)
        return None if units < queue.book.units and self._wasteful(found) else found

    def _wasteful(self, start: Start) -> bool:
        """Whether a narrow run takes much more of the device for a row than the planned one, for which it can wait."""
        queue, book = start.queue, start.queue.book
        if not book.thrift:
            return False
        at, _ = self._reservation(book.units)
        head = queue.waiting[queue.first]
        rows = min(len(queue.waiting) - queue.first, book.batch)
        if at + book.high_ns(rows, book.units) + self.margin_ns > limit(head):
            return False
        planned = book.units * book.typical_ns(rows, book.units) * start.rows
        return start.units * book.typical_ns(start.rows, start.units) * rows > planned * THRIFT

    def _within(self, start: Start) -> bool:
        """Whether it stays within its model's part of the device, or takes nothing that others may need meanwhile."""
        queue, book = start.queue, start.queue.book
        if not queue.held or queue.held + start.units <= book.own_units:
            return True
        lasts_ns = book.typical_ns(start.rows, start.units)
        free = self.free - start.units
        for other in self.books:
            if other is not book and other.units > free and other.budget_ns < lasts_ns:
                at, _ = self._reservation(other.units + start.units)
                if at - self.now > other.budget_ns:
                    return False
        return True

    def _width(self, queue: Queue) -> int:
        """Units for its first request: those planned, fewer if there are no more, more if it is late; zero: too late.

        More than are free means that it waits for them.
        """
        book = queue.book
        head = queue.waiting[queue.first]
        left_ns = limit(head) - self.now - self.margin_ns
        wanted = max(book.knee, book.units) if self.idle else book.units
        if wanted <= self.free and book.high_ns(head.rows, wanted) <= left_ns:
            return wanted
        fitting = [one for one in book.widths if one <= min(self.free, book.widest)]
        enough = [one for one in fitting if book.high_ns(head.rows, one) <= left_ns]
        for one in enough:
            if one >= wanted:
                return one
        if enough:
            return enough[-1]
        if fitting and book.typical_ns(head.rows, fitting[-1]) <= left_ns:
            return fitting[-1]
        return book.widest if book.typical_ns(head.rows, book.widest) <= left_ns or book.stale(self.now) else 0

    def _reservation(self, units: int) -> tuple[Instant, int]:
        """When so many units will be free, and how many more there will be then."""
        free = self.free
        for end in self.ends:
            free += end.units
            if free >= units:
                return max(end.at, self.now), free - units
        return FAR, FAR

    def _doomed(self, queue: Queue) -> int:
        book = queue.book
        count = 0
        for one in queue.waiting[queue.first :]:
            if self.now + self.margin_ns + book.typical_ns(one.rows, book.widest) <= limit(one):
                break
            count += 1
        return max(count, 1)

    def _assemble(self, queue: Queue, units: int, until: Instant) -> Start:
        """As many as fit, look alike, and are all in time."""
        book = queue.book
        waiting = queue.waiting
        first = queue.first
        head = waiting[first]
        rows, count = head.rows, 1
        cap = book.cap
        if book.single or rows >= cap or first + 1 == len(waiting) or not book.typical_ns(rows, units):
            return Start(queue, 1, rows, units)  # of a model that never ran, one alone is tried first
        shapes = head.shapes
        latest = min(until, limit(head) - self.margin_ns) - self.now
        for place in range(first + 1, min(first + cap, len(waiting))):
            one = waiting[place]
            more = rows + one.rows
            if one.shapes != shapes or more > cap:
                break
            left_ns = limit(one) - self.margin_ns - self.now
            latest = min(latest, left_ns)
            if book.high_ns(more, units) > latest:
                break
            rows = more
            count += 1
        return Start(queue, count, rows, units)


def urgency(queue: Queue) -> Instant:
    """By when a run of it as planned has to begin.

    Who has no deadline fills what the others leave: who had least of the device for its weight first, and one that
    has waited long before everybody that came after it.
    """
    head = queue.waiting[queue.first]
    if head.deadline != NEVER:
        return head.deadline - queue.book.lasts_ns
    patient_until = head.since + _PATIENCE_NS
    return patient_until if patient_until <= queue.now else _FILL + int(queue.book.score)
