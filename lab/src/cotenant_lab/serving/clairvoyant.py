"""Goodput of a scheduler that knows all arrivals and run times in advance.

The fluid bounds (`bound`, `arrival_bound`) divide the device's space-time by what each request needs at least; no
schedule reaches them. This scheduler makes real schedules: whole runs on whole units, one after the other. It differs
from a server in what it knows. It drops requests before they arrive, the same fraction of every model, one by one or in
groups so that batches form from the others, and it may keep units idle until the requests of a larger batch have come.
Of several fractions, rules for the order of models and objectives for the size of runs, the best schedule counts that
is as fair to the models as the caller requires; otherwise it would serve the cheapest models alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple

import msgspec

from cotenant.serve.model.run_times import RunTimes
from cotenant.serve.sim.run_speed import RunSpeeds
from cotenant.units.instant import SECOND_NS, Duration, Instant
from cotenant_lab.serving.fairness import jain
from cotenant_lab.serving.simulated import Arrivals, ServedModel, Setting

KEPT_FRACTIONS: Final = (1.0, 0.92, 0.85, 0.78, 0.71, 0.64, 0.57, 0.5, 0.43, 0.36)
"""Fractions of the requests that are not dropped in advance."""
_GROUPS: Final = (1, 4, 8)
"""Numbers of consecutive requests that are kept together."""


class _Rule(NamedTuple):
    """How a schedule chooses runs."""

    order: str
    """The next model: `due` (its first request is due first), `cost` (least relative cost) or `fair` (least served)."""
    fast: bool
    """Sizes are chosen by space-time per row times run time; otherwise by space-time per row."""
    waits: bool
    """Units may be idle until the requests of a larger batch have come."""


def scaled(times: RunTimes, factor: float) -> RunTimes:
    """Return run times of a device on which everything takes `factor` times as long."""
    cells = tuple(
        msgspec.structs.replace(time, typical_ns=round(time.typical_ns * factor), high_ns=round(time.high_ns * factor))
        for time in times.times
    )
    return msgspec.structs.replace(times, times=cells)


def without_spread(times: RunTimes) -> RunTimes:
    """Return run times whose 99th percentile is the typical time, so that a policy plans without a margin."""
    cells = tuple(msgspec.structs.replace(time, high_ns=time.typical_ns) for time in times.times)
    return msgspec.structs.replace(times, times=cells)


class _Candidate(NamedTuple):
    start: Instant
    end: Instant
    rows: int
    units: int
    cost: float
    """By the rule's objective, relative to the model's least possible one."""


class _Queue:
    """The requests of one model that are neither run nor dropped."""

    def __init__(self, model: ServedModel, instants: Sequence[Instant], all_units: int) -> None:
        speeds = RunSpeeds(model.truth or model.times)
        widths = [width for width in speeds.widths if width <= all_units]
        self.instants = instants
        self.slo_ns = model.slo_ns
        self.next = 0
        self.run_ns = {
            (rows, units): round(speeds.run_ns(rows, units))
            for rows in range(1, model.batch_limit + 1)
            for units in widths
        }
        self.fastest_ns = min(self.run_ns[1, units] for units in widths)
        self.least_cost = {
            fast: min(_cost(units, run_ns, rows, fast=fast) for (rows, units), run_ns in self.run_ns.items())
            for fast in (False, True)
        }

    def drop_late(self, now: Instant) -> None:
        """Drop the requests that no run can answer in time any more."""
        while self.next < len(self.instants) and self.instants[self.next] + self.slo_ns < now + self.fastest_ns:
            self.next += 1

    def best(self, now: Instant, free: int, rule: _Rule) -> _Candidate | None:
        """Return the run of the next requests with the least cost; None: none is in time."""
        left = len(self.instants) - self.next
        if not left:
            return None
        due = self.instants[self.next] + self.slo_ns
        best = None
        for (rows, units), run_ns in self.run_ns.items():
            if rows > left or units > free:
                continue
            last = self.instants[self.next + rows - 1]
            start = max(now, last)
            end = start + run_ns
            if end > due or (start > now and not rule.waits):
                continue
            cost = _cost(units, end - now, rows, fast=rule.fast) / self.least_cost[rule.fast]
            if best is None or cost < best.cost:
                best = _Candidate(start, end, rows, units, cost)
        return best


def _cost(units: int, took_ns: Duration, rows: int, *, fast: bool) -> float:
    return units * took_ns * (took_ns if fast else 1) / rows


def clairvoyant_goodput(
    models: Sequence[ServedModel], arrivals: Arrivals, setting: Setting, *, min_fairness: float, waits: bool = True
) -> float:
    """Return the requests per second that the best schedule answers in time; `waits`: it may wait for batches.

    `min_fairness` is the least Jain's index of the fractions of requests in time by model; if no schedule has it, the
    fairest one counts.
    """
    rules = [
        _Rule(*choices)
        for choices in product(("due", "cost", "fair"), (True, False), (False, True) if waits else (False,))
    ]
    offered = [max(_offered(arrivals[model.name], setting), 1) for model in models]
    best = fairest = (0.0, 0)
    for fraction, group in product(KEPT_FRACTIONS, _GROUPS):
        if fraction == 1.0 and group > 1:
            continue
        kept = {model.name: _thinned(arrivals[model.name], fraction, group) for model in models}
        for rule in rules:
            in_time = _played(models, kept, setting, rule)
            fairness = jain([count / total for count, total in zip(in_time, offered, strict=True)])
            fairest = max(fairest, (fairness, sum(in_time)))
            if fairness >= min_fairness and sum(in_time) > best[1]:
                best = (fairness, sum(in_time))
    return (best[1] or fairest[1]) * SECOND_NS / setting.for_ns


def _offered(instants: Sequence[Instant], setting: Setting) -> int:
    return sum(setting.warm_ns <= instant < setting.warm_ns + setting.for_ns for instant in instants)


def _thinned(instants: Sequence[Instant], fraction: float, group: int) -> list[Instant]:
    """Return a fraction of the instants, in groups of this size, evenly over their order."""
    kept = []
    for index, instant in enumerate(instants):
        cycle = group / fraction
        if index % cycle < group:
            kept.append(instant)
    return kept


def _played(models: Sequence[ServedModel], kept: Arrivals, setting: Setting, rule: _Rule) -> list[int]:
    """Return how many requests of the measured window one schedule answers in time, by model."""
    queues = [_Queue(model, kept[model.name], setting.all_units) for model in models]
    first, last = setting.warm_ns, setting.warm_ns + setting.for_ns
    free = setting.all_units
    ends: list[tuple[Instant, int]] = []
    now: Instant = 0
    in_time = dict.fromkeys(queues, 0)
    while True:
        while ends and ends[0][0] <= now:
            free += heapq.heappop(ends)[1]
        for queue in queues:
            queue.drop_late(now)
        chosen = _choose(queues, now, free, rule)
        if chosen is None:
            pending = [queue.instants[queue.next] for queue in queues if queue.next < len(queue.instants)]
            later = [instant for instant in (*pending, *(end for end, _ in ends)) if instant > now]
            if not pending or not later:
                return list(in_time.values())
            now = min(later)
            continue
        queue, run = chosen
        in_time[queue] += sum(first <= instant < last for instant in queue.instants[queue.next : queue.next + run.rows])
        queue.next += run.rows
        free -= run.units
        heapq.heappush(ends, (run.end, run.units))


def _choose(queues: Sequence[_Queue], now: Instant, free: int, rule: _Rule) -> tuple[_Queue, _Candidate] | None:
    """Return the next run: of the model whose first request is due first, or with the least relative cost."""
    chosen: tuple[_Queue, _Candidate] | None = None
    least = (0.0, 0)
    for queue in queues if free else ():
        run = queue.best(now, free, rule)
        if run is None or run.start > now + queue.slo_ns:
            continue
        due = queue.instants[queue.next] + queue.slo_ns
        part = queue.next / max(len(queue.instants), 1)
        key = {"due": (float(due), 0), "cost": (run.cost, due), "fair": (part, due)}[rule.order]
        if chosen is None or key < least:
            chosen, least = (queue, run), key
    return chosen
