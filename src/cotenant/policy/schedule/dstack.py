"""D-STACK: each model at its right size, earliest deadline first, and whatever is left to whoever has requests."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Final

from cotenant.domain.instant import MILLISECOND_NS, NEVER, SECOND_NS, Duration, Instant
from cotenant.domain.lane import Ended, Foreseen, GiveUp, Hold, Lane, Launch, View
from cotenant.domain.serveplan import ServePlan
from cotenant.domain.serving import Waiting
from cotenant.policy.schedule.book import FAR, Book
from cotenant.policy.schedule.forecast import Forecast
from cotenant.policy.schedule.order import Doomed, End, Order, Queue, Start, limit, urgency
from cotenant.policy.schedule.scoreboard import Demand, Scoreboard, parts
from cotenant.policy.schedule.session import Planned, choose, plan_of, session_ns, used

_REPLAN_NS: Final = 100 * MILLISECOND_NS
"""So often is load counted, and the device shared out by it. Our choice."""
_RETHINK_NS: Final = 500 * MILLISECOND_NS
_MOVED: Final = 1.2
_LITTLE: Final = 0.1
"""Batches and units are chosen again after a session, after this, or when load has moved by a fifth. Our choice."""
_FRESH_NS: Final = 20 * MILLISECOND_NS
"""For so long is what was looked up about a model's runs used again, whatever they took meanwhile. Our choice."""
_DOUBTED: Final = 4
"""By so much may a belief be too high and still be doubted. Our choice."""
_LAG_PART: Final = 0.25
"""Of the shortest objective, so much at most is kept for lags: the rest would be no time to serve. Our choice."""
_FULL: Final = 0.95
"""So much of the device is shared out when there is not enough for all: the rest is lost between runs. Our choice."""


class Dstack:
    """Remembers how each model is best run, and what each had."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._books: dict[int, Book] = {}
        self._guarded: list[Book] = []
        self._board = Scoreboard()
        self._planned: list[Planned] = []
        self._objective = ""
        self._all_units = 0
        self._thought = 0.0
        self._rethink_at: Instant = NEVER
        self._planned_at: Instant = NEVER
        self._replan_at: Instant = NEVER
        self._used = 0.0
        self._lag_limit_ns: Duration = FAR
        self._spare_ns: Duration = 0
        self._seen: dict[int, Instant] = {}
        self._ends: list[End] | None = None
        self._held: dict[int, int] | None = None
        self._seen_free = 0

    def next(self, view: View) -> Launch | GiveUp | Hold | None:
        """The most urgent that has units and time."""
        if view.now >= self._replan_at:
            self._replan(view)
        if not view.free_units:
            return None
        self._look_anew(view)
        held = self._held_units(view)
        queues = [Queue(self._book(lane, view), lane.waiting, held.get(lane.key, 0), view.now) for lane in view.lanes]
        if len(queues) > 1:
            queues.sort(key=urgency)
        order = self._order(view, idle=len(queues) == 1 and self._used < 0.5)
        found = order.pick(queues)
        self._seen.clear()
        if isinstance(found, Start):
            self._ends = self._held = None
            return Launch(found.queue.book.lane.key, found.requests, found.rows, found.units)
        if isinstance(found, Doomed):
            if not view.under_way and len(queues) == 1 and len(queues[0].waiting) == 1:
                return self._try(queues[0])
            return GiveUp(found.queue.book.lane.key, found.requests)
        return None

    def _try(self, queue: Queue) -> Launch:
        """Nobody else wants the device: whatever is believed of the only request there is, it costs nobody anything."""
        self._ends = self._held = None
        return Launch(queue.book.lane.key, 1, queue.waiting[0].rows, queue.book.widths[-1])

    def ended(self, run: Ended, view: View) -> None:
        """What it took counts for whose it was."""
        self._seen.clear()
        self._ends = self._held = None
        self._board.add(run.key, (run.units or view.all_units) * run.took_ns)
        book = self._books.get(run.key)
        if book is not None:
            book.ran_at = view.now
            book.answered(run.in_time, run.late)
            book.score = self._board.served(run.key) / book.lane.spec.weight
            if view.now >= book.fresh_until:
                book.learned()
                book.fresh_until = view.now + _FRESH_NS

    def plan(self) -> ServePlan | None:
        """What it intends."""
        return plan_of(self._objective, self._planned, self._all_units) if self._planned else None

    def foresee(self, asked: Waiting, lane: Lane, view: View) -> Foreseen:
        """When it would be answered, in the order in which things will run; and whether others would be late by it."""
        if view.now >= self._replan_at:
            self._replan(view)
        book = self._book(lane, view)
        part = book.part.get(asked.priority, 1.0)
        if part < 1:
            book.credit[asked.priority] = min(book.credit.get(asked.priority, 0.0) + part, 2.0)
            if book.credit[asked.priority] < 1 and view.free_units < view.all_units:
                return Foreseen(0, "more is asked for than the device can do, and this model has its part of it")
        if self._is_free(asked, book, view):
            return Foreseen(0)
        finish = self._expected(asked, book, view)
        if finish <= limit(asked) and part < 1:
            book.credit[asked.priority] = max(book.credit[asked.priority] - 1, 0.0)
        return Foreseen(max(finish - view.now, 0))

    def _is_free(self, asked: Waiting, book: Book, view: View) -> bool:
        """Whether a request is taken though its answer is believed too late: an idle device, or a belief too old.

        Beliefs may be some times too high, not any number of times.
        """
        if book.lane.waiting or book.lane.running:
            return False
        if book.typical_ns(asked.rows, book.widths[-1]) > _DOUBTED * (limit(asked) - view.now):
            return False
        return book.stale(view.now) or not (view.under_way or any(view.lanes))

    def _expected(self, asked: Waiting, book: Book, view: View) -> Instant:
        """By a look ahead; or by the last one, if nothing began or ended since and it left no doubt."""
        key = book.lane.key
        last = self._seen.get(key)
        if last is not None:
            if last > limit(asked):
                return last
            cost_ns = asked.rows * book.row_ns
            spec = book.lane.spec
            usual = asked.deadline - asked.since == spec.slo_ns and asked.priority == spec.priority
            if usual and cost_ns <= self._spare_ns:
                self._spare_ns -= cost_ns
                return last
        elif not self._seen:
            self._spare_ns = FAR
        finish = self._seen[key] = self._look(asked, book.lane, view)
        return finish

    def _look(self, asked: Waiting, lane: Lane, view: View) -> Instant:
        book = self._book(lane, view)
        if book.units <= view.free_units and not book.lane.running and not any(view.lanes):
            self._spare_ns = 0
            lasts_ns = max(book.high_ns(asked.rows, book.units), book.planned_ns)
            return view.now + lasts_ns + min(2 * view.lag_ns, self._lag_limit_ns)
        ahead = self._forecast(asked, lane, view)
        self._spare_ns = min(ahead.spare_ns // 2, self._spare_ns)
        if ahead.late_ns and ahead.late_ns > self._forecast(None, lane, view).late_ns:
            return max(ahead.finish, limit(asked) + ahead.late_ns)
        return ahead.finish

    def _forecast(self, asked: Waiting | None, lane: Lane, view: View) -> Forecast:
        queues = []
        own = asked
        self._look_anew(view)
        held = self._held_units(view)
        for one in view.lanes:
            waiting: Sequence[Waiting] = one.waiting
            if one.key == lane.key and own is not None:
                longer = list(waiting)
                insort(longer, own, key=_urgency)
                waiting, own = longer, None
            queues.append(Queue(self._book(one, view), waiting, held.get(one.key, 0), view.now))
        if own is not None:
            queues.append(Queue(self._book(lane, view), [own], held.get(lane.key, 0), view.now))
        queues.sort(key=urgency)
        ahead = Forecast(self._order(view, idle=False), queues, asked)
        ahead.run()
        return ahead

    def _book(self, lane: Lane, view: View) -> Book:
        book = self._books.get(lane.key)
        if book is None:
            book = self._books[lane.key] = Book(lane, view.all_units)
        return book

    def _look_anew(self, view: View) -> None:
        """What is kept of the runs under way holds while as much is free: one of them may be taken for over."""
        if view.free_units != self._seen_free:
            self._seen_free = view.free_units
            self._ends = self._held = None

    def _order(self, view: View, *, idle: bool) -> Order:
        now = view.now
        if self._ends is None or (self._ends and self._ends[0].at <= now):
            self._ends = self._ends_of(view)
        ends = self._ends.copy()
        margin_ns = min(2 * view.lag_ns, self._lag_limit_ns)
        return Order(now, view.free_units, ends, margin_ns, self._guarded, idle=idle)

    def _ends_of(self, view: View) -> list[End]:
        now = view.now
        ends = []
        for run in view.under_way:
            if run.units:
                book = self._books[run.key]
                doubt = book.high_ns(run.rows, run.units) - book.typical_ns(run.rows, run.units)
                end = run.expected_end
                if end <= now:  # overdue: the longer it is, the longer it may still be
                    end = now + 1 + (now - run.began) // 16
                ends.append(End(end, run.units, doubt**2, run.key))
        ends.sort()
        return ends

    def _held_units(self, view: View) -> dict[int, int]:
        if self._held is None:
            held: dict[int, int] = {}
            for run in view.under_way:
                held[run.key] = held.get(run.key, 0) + run.units
            self._held = held
        return self._held

    def _replan(self, view: View) -> None:
        """Count what was asked for; think about sizes again where load or models are not what they were."""
        now = view.now
        lanes = view.everyone
        since_ns = now - self._planned_at if self._planned_at != NEVER else 0
        if self._books.keys() != {lane.key for lane in lanes}:
            self._books = {lane.key: self._book(lane, view) for lane in lanes}
            self._planned = [one for one in self._planned if one.lane.key in self._books]
            self._rethink_at = now
        for book in self._books.values():
            book.count(since_ns)
        self._planned = [one._replace(rate=self._books[one.lane.key].rate) for one in self._planned]
        self._used = used(self._planned, view.all_units)
        if now >= self._rethink_at or not 1 / _MOVED < (self._used + _LITTLE) / (self._thought + _LITTLE) < _MOVED:
            self._rethink(view)
        for one in self._planned:
            self._books[one.lane.key].follow(one.size, self._used)
        self._share_out(self._planned, view.all_units)
        self._guarded = [book for book in self._books.values() if book.budget_ns < FAR]
        self._planned_at = now
        self._replan_at = now + _REPLAN_NS

    def _rethink(self, view: View) -> None:
        lanes = view.everyone
        self._board.turn_over(self._books)
        for key, book in self._books.items():
            book.score = self._board.served(key) / book.lane.spec.weight
        self._objective, self._planned = choose(lanes, [self._books[lane.key].rate for lane in lanes], view.all_units)
        self._used = self._thought = used(self._planned, view.all_units)
        self._all_units = view.all_units
        slos = [lane.spec.slo_ns for lane in lanes if lane.spec.slo_ns]
        self._lag_limit_ns = int(min(slos, default=_REPLAN_NS) * _LAG_PART)
        self._rethink_at = view.now + max(session_ns(lanes), _RETHINK_NS)

    def _share_out(self, planned: Sequence[Planned], all_units: int) -> None:
        """Where there is not enough for all, say what part of its requests each may bring."""
        demands = []
        for one in planned:
            book = self._books[one.lane.key]
            book.part = {}
            book.own_units = FAR
            if one.size is not None and book.lane.spec.slo_ns:
                per_row = one.size.area_ns / SECOND_NS
                weight = book.lane.spec.weight
                demands += [Demand(one.lane.key, *each, weight) for each in _asked_units(book, per_row)]
        total = sum(one.units for one in demands)
        if not total:
            return
        full = _FULL * all_units
        more = max(full / total, 1.0)
        own: dict[int, float] = {}
        for (key, priority), units in parts(demands, full).items():
            asked = next(one.units for one in demands if (one.key, one.priority) == (key, priority))
            own[key] = own.get(key, 0.0) + units * more
            if more == 1:
                self._books[key].part[priority] = units / asked
        for key, units in own.items():
            self._books[key].own_units = units


def _asked_units(book: Book, per_row: float) -> list[tuple[int, float]]:
    return [(priority, rate * per_row) for priority, rate in book.rates.items() if rate]


def _urgency(one: Waiting) -> tuple[int, int, int]:
    return one.priority, limit(one), one.request
