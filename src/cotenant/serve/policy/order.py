"""Decision rule of D-STACK: which queue runs next, with how many requests, on how many units.

Used for real and for simulated decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cotenant.serve.model.event import QueuedRequest
from cotenant.serve.policy.model_state import FAR, ModelState
from cotenant.units.instant import NEVER, SECOND_NS, Duration, Instant

MAX_WASTE: Final = 1.05
"""A narrower run than planned may take this many times the planned units times time per row. Our choice."""
_PATIENCE_NS: Final = SECOND_NS
"""A request without a deadline that waited this long goes before later requests with a deadline."""
_AFTER_DEADLINES: Final = 1 << 60
"""Urgency after every deadline."""


class QueueCursor:
    """The requests of a model's queue from position `first` on."""

    __slots__ = ("first", "held", "now", "running", "state", "waiting")

    def __init__(self, state: ModelState, waiting: Sequence[QueuedRequest], held: int, now: Instant) -> None:
        """Start at the first request; `held` is the number of units of the model's active runs."""
        self.now = now
        self.state = state
        self.waiting = waiting
        self.first = 0
        self.held = held
        self.running = state.queue.running


class UnitRelease(NamedTuple):
    """An instant at which units become free, with the variance of that estimate."""

    at: Instant
    units: int
    variance: int
    key: int


class RunChoice(NamedTuple):
    """A run of the next requests of a queue."""

    cursor: QueueCursor
    requests: int
    rows: int
    units: int


class LateRequests(NamedTuple):
    """The next requests of a queue that cannot be answered in time."""

    cursor: QueueCursor
    requests: int


def deadline_of(request: QueuedRequest) -> Instant:
    """Return the instant after which an answer is of no use."""
    return FAR if request.deadline == NEVER else request.deadline


class DeadlineOrder:
    """Earliest deadline first with backfilling: a queue that cannot start lets others run that do not delay it."""

    __slots__ = ("ends", "free", "idle", "margin_ns", "now", "states")

    def __init__(
        self,
        now: Instant,
        free: int,
        ends: list[UnitRelease],
        margin_ns: Duration,
        states: Sequence[ModelState],
        *,
        idle: bool,
    ) -> None:
        """`ends` are in time order; `idle` means that no other model is likely to need units soon."""
        self.now = now
        self.free = free
        self.ends = ends
        self.margin_ns = margin_ns
        self.states = states
        self.idle = idle

    def pick(self, cursors: Sequence[QueueCursor]) -> RunChoice | LateRequests | None:
        """Return the next decision at this instant; None if a run must end first.

        The cursors are of queues that have requests, the most urgent first (`urgency`).
        """
        if not self.free:
            return None
        # The reservation of the first queue that cannot start: when it starts, and how many units it leaves free.
        until, spare = FAR, FAR
        for cursor in cursors:
            state = cursor.state
            if state.instances and cursor.running >= state.instances:
                continue
            units = self._width(cursor)
            if not units:
                return LateRequests(cursor, self._late_count(cursor))
            choice = self._choice_on(cursor, units, FAR if units <= spare else until)
            if choice is None:
                if until == FAR:
                    until, spare = self._reservation(max(units, state.units))
                continue
            delays = units > spare and self.now + state.typical_ns(choice.rows, units) > until
            if not delays and self._is_within_share(choice):
                return choice
        return None

    def sketch(self, cursors: Sequence[QueueCursor]) -> RunChoice | LateRequests | None:
        """Return a quick approximation of `pick` for simulated decisions: planned units, or the free ones."""
        free, now = self.free, self.now
        if not free:
            return None
        until, spare = FAR, FAR
        for cursor in cursors:
            state = cursor.state
            if state.instances and cursor.running >= state.instances:
                continue
            units = state.units
            head = cursor.waiting[cursor.first]
            left_ns = deadline_of(head) - now - self.margin_ns
            if units > free:
                units = self._narrower(state, head.rows, left_ns)
            if units > free:
                if until == FAR:
                    until, spare = self._reservation(units)
                continue
            if state.typical_ns(head.rows, state.widest) > left_ns and not state.stale(now):
                return LateRequests(cursor, 1)
            choice = self._largest_choice(cursor, units, left_ns)
            delays = units > spare and now + state.typical_ns(choice.rows, units) > until
            if not delays and self._is_within_share(choice):
                return choice
        return None

    def _narrower(self, state: ModelState, rows: int, left_ns: Duration) -> int:
        """Return the largest free width that serves the first request in time; the planned units if there is none."""
        for units in reversed(state.widths):
            if units <= self.free:
                return units if state.high_ns(rows, units) <= left_ns else state.units
        return state.units

    def _largest_choice(self, cursor: QueueCursor, units: int, left_ns: Duration) -> RunChoice:
        """Return the largest run, by halving the number of requests, that answers the first one in time."""
        state = cursor.state
        waiting = cursor.waiting
        first = cursor.first
        count = 1 if state.single else min(len(waiting) - first, state.cap)
        while count > 1:
            rows = sum([request.rows for request in waiting[first : first + count]])
            if rows <= state.cap and state.high_ns(rows, units) <= left_ns:
                return RunChoice(cursor, count, rows, units)
            count //= 2
        return RunChoice(cursor, 1, waiting[first].rows, units)

    def _choice_on(self, cursor: QueueCursor, units: int, until: Instant) -> RunChoice | None:
        """Return a run on these units; None if they are not free, or if it is better to wait for more."""
        if units > self.free:
            return None
        choice = self._assemble(cursor, units, until)
        return None if units < cursor.state.units and self._wasteful(choice) else choice

    def _wasteful(self, start: RunChoice) -> bool:
        """Return whether a narrow run takes much more device time per row than waiting for the planned one."""
        cursor, state = start.cursor, start.cursor.state
        if not state.thrifty:
            return False
        at, _ = self._reservation(state.units)
        head = cursor.waiting[cursor.first]
        rows = min(len(cursor.waiting) - cursor.first, state.batch)
        if at + state.high_ns(rows, state.units) + self.margin_ns > deadline_of(head):
            return False
        planned = state.units * state.typical_ns(rows, state.units) * start.rows
        return start.units * state.typical_ns(start.rows, start.units) * rows > planned * MAX_WASTE

    def _is_within_share(self, start: RunChoice) -> bool:
        """Return whether a run stays within its model's share, or takes no units that others may need during it."""
        cursor, state = start.cursor, start.cursor.state
        if not cursor.held or cursor.held + start.units <= state.share_units:
            return True
        run_ns = state.typical_ns(start.rows, start.units)
        free = self.free - start.units
        for other in self.states:
            if other is not state and other.units > free and other.budget_ns < run_ns:
                at, _ = self._reservation(other.units + start.units)
                if at - self.now > other.budget_ns:
                    return False
        return True

    def _width(self, cursor: QueueCursor) -> int:
        """Return the units for the first request: planned, fewer if needed, more if it is late; zero: too late.

        A result above the number of free units means that the request waits for them.
        """
        state = cursor.state
        head = cursor.waiting[cursor.first]
        left_ns = deadline_of(head) - self.now - self.margin_ns
        preferred = max(state.knee, state.units) if self.idle else state.units
        if preferred <= self.free and state.high_ns(head.rows, preferred) <= left_ns:
            return preferred
        fitting = [width for width in state.widths if width <= min(self.free, state.widest)]
        enough = [width for width in fitting if state.high_ns(head.rows, width) <= left_ns]
        for width in enough:
            if width >= preferred:
                return width
        if enough:
            return enough[-1]
        if fitting and state.typical_ns(head.rows, fitting[-1]) <= left_ns:
            return fitting[-1]
        return state.widest if state.typical_ns(head.rows, state.widest) <= left_ns or state.stale(self.now) else 0

    def _reservation(self, units: int) -> tuple[Instant, int]:
        """Return when this many units will be free, and how many more there will be."""
        free = self.free
        for end in self.ends:
            free += end.units
            if free >= units:
                return max(end.at, self.now), free - units
        return FAR, FAR

    def _late_count(self, cursor: QueueCursor) -> int:
        state = cursor.state
        count = 0
        for request in cursor.waiting[cursor.first :]:
            if self.now + self.margin_ns + state.typical_ns(request.rows, state.widest) <= deadline_of(request):
                break
            count += 1
        return max(count, 1)

    def _assemble(self, cursor: QueueCursor, units: int, until: Instant) -> RunChoice:
        """Add requests while they fit, have the same shapes, and are all in time."""
        state = cursor.state
        waiting = cursor.waiting
        first = cursor.first
        head = waiting[first]
        rows, count = head.rows, 1
        cap = state.cap
        if state.single or rows >= cap or first + 1 == len(waiting) or not state.typical_ns(rows, units):
            return RunChoice(cursor, 1, rows, units)  # the first run of an unmeasured model has one request
        shapes = head.shapes
        latest = min(until, deadline_of(head) - self.margin_ns) - self.now
        for index in range(first + 1, min(first + cap, len(waiting))):
            request = waiting[index]
            total_rows = rows + request.rows
            if request.shapes != shapes or total_rows > cap:
                break
            left_ns = deadline_of(request) - self.margin_ns - self.now
            latest = min(latest, left_ns)
            if state.high_ns(total_rows, units) > latest:
                break
            rows = total_rows
            count += 1
        return RunChoice(cursor, count, rows, units)


def urgency(cursor: QueueCursor) -> Instant:
    """Return the instant by which the planned run must start.

    Requests without a deadline use what the others leave: the model with the least device time per weight first, and a
    request that waited long before all later ones.
    """
    head = cursor.waiting[cursor.first]
    if head.deadline != NEVER:
        return head.deadline - cursor.state.planned_high_ns
    patient_until = head.since + _PATIENCE_NS
    return patient_until if patient_until <= cursor.now else _AFTER_DEADLINES + int(cursor.state.score)
