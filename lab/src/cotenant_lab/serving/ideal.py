"""Goodput of an ideal scheduler that preempts runs at any instant and gives each the share that it needs.

D-STACK compares itself with such a scheduler: every kernel has the share that it needs, and a kernel of a more urgent
model takes units from others at once. It does not know the future. Here a run begins when units are free, or when its
first request cannot wait any longer, with the rows and units that cost least of the device among those in time. Units
are divided again at every arrival and end of a run, by one of two orders, of which the better one counts: runs that are
due first, or runs that answer most requests per unit and time. A run that can no longer be in time is given up. Runs at
the same time slow each other down as on the device that the policies have.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Final

from cotenant.serve.sim.run_speed import RunSpeeds
from cotenant.units.instant import SECOND_NS, Instant
from cotenant_lab.serving.simulated import Arrivals, ServedModel, Setting

_ORDERS: Final = ("due", "value")
_DONE: Final = 1e-9


class _Run:
    """A run whose units may change."""

    def __init__(self, queue: _Queue, rows: Sequence[Instant], need: int) -> None:
        self.queue = queue
        self.rows = rows
        self.need = need
        self.due = rows[0] + queue.slo_ns
        self.remaining = 1.0
        self.units = 0.0
        self.speed = 0.0

    def rank(self, order: str) -> float:
        """Return the place in an order: lower is served first."""
        if order == "due":
            return float(self.due)
        return -len(self.rows) / (self.need * self.queue.run_ns(len(self.rows), self.need) * max(self.remaining, _DONE))

    def widen(self, now: Instant) -> None:
        """Raise its need to the fewest units with which it is still in time."""
        for units in self.queue.widths:
            if units > self.need and now + self.remaining * self.queue.run_ns(len(self.rows), self.need) > self.due:
                self.need = units

    def is_late(self, now: Instant) -> bool:
        """Return whether it is late even on the whole device."""
        return now + self.remaining * self.queue.run_ns(len(self.rows), self.queue.widest) > self.due + 1


class _Queue:
    """The waiting requests of a model."""

    def __init__(self, model: ServedModel, setting: Setting) -> None:
        self.speeds = RunSpeeds(model.truth or model.times)
        self.widths = [units for units in self.speeds.widths if units <= setting.all_units]
        self.widest = self.widths[-1]
        self.slo_ns = model.slo_ns
        self.limit = model.batch_limit
        self.waiting: deque[Instant] = deque()
        self._run_ns = {
            (rows, units): self.speeds.run_ns(rows, units) * setting.contention
            for rows in range(1, self.limit + 1)
            for units in self.widths
        }
        self.fastest_ns = self.run_ns(1, self.widest)
        self._sizes = sorted(self._run_ns, key=lambda size: size[1] * self._run_ns[size] / size[0])

    def run_ns(self, rows: int, units: int) -> float:
        return self._run_ns[rows, units]

    def patient_until(self) -> Instant:
        """Return when a run of the first request has to begin, if it may take twice the time on the whole device."""
        return round(self.waiting[0] + self.slo_ns - 2 * self.fastest_ns)

    def next_run(self, now: Instant) -> _Run | None:
        """Return the run of most value of the requests that wait, without those that are late anyway."""
        while self.waiting and now + self.fastest_ns > self.waiting[0] + self.slo_ns:
            self.waiting.popleft()
        if not self.waiting:
            return None
        left_ns = self.waiting[0] + self.slo_ns - now
        count = len(self.waiting)
        rows, units = next(
            (size for size in self._sizes if size[0] <= count and self._run_ns[size] <= left_ns), (1, self.widest)
        )
        return _Run(self, [self.waiting[index] for index in range(rows)], units)


def ideal_goodput(models: Sequence[ServedModel], arrivals: Arrivals, setting: Setting) -> float:
    """Return the requests per second in time of the better order."""
    return max(_played(models, arrivals, setting, order) for order in _ORDERS) * SECOND_NS / setting.for_ns


def _played(models: Sequence[ServedModel], arrivals: Arrivals, setting: Setting, order: str) -> int:
    queues = [_Queue(model, setting) for model in models]
    events = [(when, index) for index, model in enumerate(models) for when in arrivals[model.name]]
    heapq.heapify(events)
    first, last = setting.warm_ns, setting.warm_ns + setting.for_ns
    runs: list[_Run] = []
    in_time = 0
    now: Instant = 0
    while True:
        while events and events[0][0] <= now:
            when, index = heapq.heappop(events)
            queues[index].waiting.append(when)
        runs = [run for run in runs if not run.is_late(now)]
        _begin(queues, runs, now, setting.all_units, order)
        for run in runs:
            run.widen(now)
        _divide(runs, setting, order)
        upcoming = [now + max(round(run.remaining / run.speed), 1) for run in runs if run.speed]
        upcoming += [queue.patient_until() for queue in queues if queue.waiting and queue.patient_until() > now]
        if events:
            upcoming.append(events[0][0])
        if not upcoming:
            return in_time
        then = max(min(upcoming), now + 1)
        for run in runs:
            run.remaining -= run.speed * (then - now)
            if run.remaining <= run.speed:
                slo_ns = run.queue.slo_ns
                in_time += sum(first <= when < last and then <= when + slo_ns for when in run.rows)
        runs = [run for run in runs if run.remaining > run.speed]
        now = then


def _begin(queues: Sequence[_Queue], runs: list[_Run], now: Instant, all_units: int, order: str) -> None:
    """Begin runs while units are free, and those that cannot wait."""
    free = all_units - sum(run.need for run in runs)
    while True:
        if free <= 0 and not any(queue.waiting and queue.patient_until() <= now for queue in queues):
            return
        choices = [run for queue in queues if (run := queue.next_run(now)) is not None]
        choices = [run for run in choices if free > 0 or run.queue.patient_until() <= now]
        if not choices:
            return
        run = min(choices, key=lambda run: run.rank(order))
        for _ in run.rows:
            run.queue.waiting.popleft()
        runs.append(run)
        free -= run.need


def _divide(runs: Sequence[_Run], setting: Setting, order: str) -> None:
    """Give units to runs in their order, each up to its need."""
    free = float(setting.all_units)
    for run in sorted(runs, key=lambda run: run.rank(order)):
        run.units = min(float(run.need), free)
        free -= run.units
    sharing = sum(run.units > 0 for run in runs)
    slower = setting.contention if sharing > 1 else 1.0
    for run in runs:
        run.speed = run.queue.speeds.speed(len(run.rows), run.units) / slower if run.units else 0.0
