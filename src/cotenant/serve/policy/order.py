"""Decision rule: the next run is the one that answers most requests in time per unit and time.

Every feasible run of every queue is a candidate: consecutive requests of the queue on one of the model's widths, which
are all in time even if the run takes as long as one run in a hundred does. Its value is rows over units times time,
times the price of the model. Runs that cannot wait for the next free units are preferred to others of about the same
value, which may have more rows then, and a run waits for another request if that raises its value. Where the first
requests are due so soon that only a small run is in time, a larger run of the later ones may have the higher value: the
first ones are then refused.

Requests without a deadline use what the others leave, except those that waited long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from cotenant.serve.model.event import QueuedRequest
from cotenant.serve.policy.model_state import FAR, ModelState
from cotenant.units.instant import NEVER, SECOND_NS, Duration, Instant

_PATIENCE_NS: Final = SECOND_NS
"""A request without a deadline that waited this long goes before requests with a deadline."""
_SKIP: Final = 0.98
"""Factor on the value of a run for each request that is refused for it. Our choice."""
_URGENT: Final = 1.6
"""Factor on the value of a run that would be late if it began when units become free again. Our choice.

A higher factor answers more requests if nearly all can be answered, and fewer if the device is far too small.
"""


class QueueCursor:
    """The requests of a model that wait."""

    __slots__ = ("price", "state", "waiting")

    def __init__(self, state: ModelState, waiting: Sequence[QueuedRequest], price: float = 1.0) -> None:
        """`price` is the value of an answer of this model relative to others."""
        self.state = state
        self.waiting = waiting
        self.price = price


class UnitRelease(NamedTuple):
    """An instant at which units become free."""

    at: Instant
    units: int


class RunChoice(NamedTuple):
    """A run of the next requests of a queue, after the first `skipped` ones are refused."""

    cursor: QueueCursor
    skipped: int
    requests: int
    rows: int
    units: int


class LateRequests(NamedTuple):
    """The next requests of a queue that cannot be answered in time."""

    cursor: QueueCursor
    requests: int


Leaves: TypeAlias = Callable[[RunChoice], bool]
"""Return whether a run leaves the units that models with deadlines may need during it."""


def deadline_of(request: QueuedRequest) -> Instant:
    """Return the instant after which an answer is of no use."""
    return FAR if request.deadline == NEVER else request.deadline


class ValueOrder:
    """The decision at one instant."""

    __slots__ = ("_all_units", "_ends", "_free", "_idle", "_margin_ns", "_may_wait", "_now", "waits_until")

    def __init__(
        self,
        now: Instant,
        free: int,
        ends: Sequence[UnitRelease],
        margin_ns: Duration,
        *,
        idle: bool,
        is_full: bool,
    ) -> None:
        """`ends` are those of active runs, in time order; `margin_ns` passes between a run's end and its answers.

        `idle`: no other model needs units soon. `is_full`: the requests need about the whole device, so units that a
        run leaves free are of use.
        """
        self._now = now
        self._free = free
        self._all_units = max(free + sum(end.units for end in ends), 1)
        self._ends = ends
        self._margin_ns = margin_ns
        self._idle = idle
        self._may_wait = is_full and len(ends) > 0
        self.waits_until: Instant = FAR
        """When the first of the runs that `pick` left waiting for another request no longer waits."""

    def late(self, cursors: Sequence[QueueCursor]) -> LateRequests | None:
        """Return requests at the head of a queue that no run answers in time any more."""
        for cursor in cursors:
            count = 0
            for request in cursor.waiting:
                if self.hopeless_at(cursor.state, request) >= self._now:
                    break
                count += 1
            if count:
                return LateRequests(cursor, count)
        return None

    def hopeless_at(self, state: ModelState, request: QueuedRequest) -> Instant:
        """Return the last instant at which a run of this request alone is expected to be in time."""
        if state.stale(self._now):
            return FAR
        return deadline_of(request) - self._margin_ns - state.fastest_ns(request.rows)

    def pick(self, cursors: Sequence[QueueCursor], leaves: Leaves) -> RunChoice | None:
        """Return the run to start now; None: no run is in time on the free units."""
        startable = [
            cursor
            for cursor in cursors
            if not cursor.state.instances or cursor.state.queue.running < cursor.state.instances
        ]
        patient: list[QueueCursor] = []
        others: list[QueueCursor] = []
        candidates: list[tuple[float, Instant, RunChoice]] = []
        for cursor in startable:
            head = cursor.waiting[0]
            if head.deadline != NEVER:
                self._add_candidates(cursor, candidates)
            else:
                (patient if head.since + _PATIENCE_NS <= self._now else others).append(cursor)
        for cursor in sorted(patient, key=lambda cursor: cursor.waiting[0].since):
            if (choice := self._without_deadline(cursor)) is not None:
                return choice
        if candidates:
            return self._most_valuable(candidates)
        for cursor in sorted(others, key=lambda cursor: cursor.state.score):
            choice = self._without_deadline(cursor)
            if choice is not None and leaves(choice):
                return choice
        return None

    def _most_valuable(self, candidates: list[tuple[float, Instant, RunChoice]]) -> RunChoice | None:
        """Return the run of most value that starts now and does not delay one of more value on more units."""
        candidates.sort(key=_first)
        _, until, reserved = candidates[0]
        if until <= self._now:
            return reserved
        spare = self._free + sum(end.units for end in self._ends if end.at <= until) - reserved.units
        for _, start, choice in candidates:
            if start > self._now:
                continue
            state = choice.cursor.state
            if choice.units <= spare or self._now + state.typical_ns(choice.rows, choice.units) <= until:
                return choice
        return None

    def _add_candidates(self, cursor: QueueCursor, candidates: list[tuple[float, Instant, RunChoice]]) -> None:
        """Add the run of most value on each width, with its value and its earliest start."""
        state = cursor.state
        head = cursor.waiting[0]
        if not state.typical_ns(head.rows, state.units) or state.stale(self._now):
            units = self._width(state)
            if units:
                candidates.append((FAR, self._now, RunChoice(cursor, 0, 1, head.rows, units)))
            return
        for units in state.widths:
            start = free_at(units, self._free, self._now, self._ends)
            choice = self._on(cursor, units, start)
            if choice is None or (start <= self._now and self._gains_by_waiting(choice)):
                continue
            run_ns = state.typical_ns(choice.rows, units)
            value = cursor.price * choice.rows / (units * max(start - self._now + run_ns, 1)) * _SKIP**choice.skipped
            if start <= self._now and self._is_urgent(choice):
                value *= _URGENT
            if self._idle and units <= max(state.knee, state.units) and not choice.skipped:
                value = choice.rows / max(run_ns, 1)  # other units would be idle
            candidates.append((value, start, choice))

    def _gains_by_waiting(self, choice: RunChoice) -> bool:
        """Return whether a run should wait for another request: its value is then expected to rise, and it is in time.

        No run waits while the device is empty or is not needed as a whole.
        """
        state, units = choice.cursor.state, choice.units
        waiting = choice.cursor.waiting
        if not self._may_wait or not state.rate or choice.rows >= state.cap:
            return False
        if len(waiting) > choice.skipped + choice.requests:
            return False  # it is limited by something else
        gap_ns = SECOND_NS / state.rate
        rows = choice.rows + 1
        if rows * state.typical_ns(choice.rows, units) <= choice.rows * (gap_ns + state.typical_ns(rows, units)):
            return False
        due = deadline_of(waiting[choice.skipped]) - self._margin_ns - state.high_ns(rows, units) - int(gap_ns)
        if due <= self._now:
            return False
        self.waits_until = min(self.waits_until, due)
        return True

    def _is_urgent(self, choice: RunChoice) -> bool:
        """Return whether a run would be late if it began when as many units become free again on a busy device."""
        state = choice.cursor.state
        high_ns = state.high_ns(choice.rows, choice.units)
        release_ns = high_ns * choice.units // self._all_units
        head = choice.cursor.waiting[choice.skipped]
        return deadline_of(head) - self._now - self._margin_ns - high_ns < release_ns

    def _on(self, cursor: QueueCursor, units: int, start: Instant) -> RunChoice | None:
        """Return the run of most value on this number of units from this instant on."""
        state, waiting = cursor.state, cursor.waiting
        best, most = None, 0.0
        for skipped, head in enumerate(waiting):
            if head.priority != waiting[0].priority:
                break  # no request is refused for one of lower priority
            count, rows, is_limited = self._assemble(state, waiting, skipped, units, start)
            if count:
                value = state.value(rows, units) * _SKIP**skipped
                if value > most:
                    best, most = RunChoice(cursor, skipped, count, rows, units), value
            if not is_limited:
                break  # without this request, no run is larger
        return best

    def _assemble(
        self, state: ModelState, waiting: Sequence[QueuedRequest], first: int, units: int, start: Instant
    ) -> tuple[int, int, bool]:
        """Return how many requests from `first` on form a run, their rows, and whether a deadline limits them."""
        head = waiting[first]
        begin = start + self._margin_ns
        left_ns = deadline_of(head) - begin
        rows = head.rows
        if state.high_ns(rows, units) > left_ns:
            return 0, 0, True
        if state.single:
            return 1, rows, False
        count = 1
        for request in waiting[first + 1 : first + state.cap]:
            total_rows = rows + request.rows
            if request.shapes != head.shapes or total_rows > state.cap:
                break
            left_ns = min(left_ns, deadline_of(request) - begin)
            if state.high_ns(total_rows, units) > left_ns:
                return count, rows, True
            rows = total_rows
            count += 1
        return count, rows, False

    def _without_deadline(self, cursor: QueueCursor) -> RunChoice | None:
        """Return a run of requests without a deadline on the planned units, or on fewer if fewer are free."""
        units = self._width(cursor.state)
        if not units:
            return None
        count, rows, _ = self._assemble(cursor.state, cursor.waiting, 0, units, self._now)
        if not cursor.state.typical_ns(rows, units):  # the first run of an unmeasured model has one request
            count, rows = 1, cursor.waiting[0].rows
        return RunChoice(cursor, 0, count, rows, units)

    def _width(self, state: ModelState) -> int:
        """Return the planned units, more if the device is idle, fewer if fewer are free; zero: none."""
        preferred = max(state.knee, state.units) if self._idle else state.units
        return max((width for width in state.widths if width <= min(preferred, self._free)), default=0)


def _first(candidate: tuple[float, Instant, RunChoice]) -> tuple[float, Instant]:
    """Return the sort key of a candidate: the most valuable first, then the one that is due first."""
    value, _, choice = candidate
    return -value, deadline_of(choice.cursor.waiting[choice.skipped])


def free_at(units: int, free: int, now: Instant, ends: Sequence[UnitRelease]) -> Instant:
    """Return when this many units will be free; the ends of active runs are in time order."""
    for end in ends:
        if free >= units:
            break
        free += end.units
        now = max(now, end.at)
    return now if free >= units else FAR
