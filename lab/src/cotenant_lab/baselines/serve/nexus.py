"""Nexus: models take turns on the whole device in cycles, with batches that their rates fill within a cycle.

From Nexus (Shen et al., SOSP 2019), its *squishy bin packing* for one device. A model's largest batch B is one whose
run takes at most half of the objective: a request that just misses a batch makes the next. A model that needs more than
that gives is *saturated*. Each of the others has the largest batch b with l(b) + b/rate within the objective and so a
duty cycle of b/rate. On one device all share the shortest cycle, in which each model runs once, with the batch that its
rate fills in that time; they fit if the runs together are no longer than the cycle. In the paper, models that do not
fit go to another device. Here there is one: the cycle is stretched to the sum of its runs (our choice), batches grow
with it up to B, and models without enough time are late. Dropping is early, as published: of the requests at the front,
those that a run of the planned batch could not answer in time are dropped before it is formed.

In a cycle each model with waiting requests has one run on the whole device, one after the other; the next cycle starts
when the cycle is over, or at once if it took longer or a planned batch is complete. The plan is renewed when rates have
changed by a tenth, at most once per second (published: epochs of 30 s; both values here are ours).

Omitted: several devices, prefix batching, splitting the objective of a query over stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from cotenant.serve.model.event import QueuedRequest
from cotenant.serve.model.plan import ModelPlan, ServePlan
from cotenant.serve.model.scheduling import (
    ModelQueue,
    RejectQueued,
    RequestForecast,
    RunReport,
    StartRun,
    View,
    WaitUntil,
    Widths,
)
from cotenant.units.instant import SECOND_NS, Duration, Instant
from cotenant_lab.baselines.serve.batch_bounds import answered_ns, assemble_at_most, rows_in_half

_EPOCH_NS: Final = SECOND_NS
_MOVED: Final = 0.1
_STEPS: Final = 8


class CycleTurn(NamedTuple):
    """A model's part of a cycle."""

    batch: int
    took_ns: Duration


class Cycle(NamedTuple):
    """The repeating cycle of one device."""

    cycle_ns: Duration
    turns: dict[int, CycleTurn]


class Nexus:
    """Keeps the cycle, and the position in it."""

    widths: ClassVar = Widths.WHOLE

    def __init__(self) -> None:
        """Start without a plan."""
        self._cycle = Cycle(0, {})
        self._planned: dict[int, float] = {}
        self._planned_at: Instant = -_EPOCH_NS
        self._cycle_begin: Instant = 0
        self._has_run: set[int] = set()
        self._plan: ServePlan | None = None

    def next(self, view: View) -> StartRun | RejectQueued | WaitUntil | None:
        """Return the next model of the cycle, once the device is free."""
        if view.active_runs:
            return None
        self._replan(view)
        queues = [queue for queue in view.queues if queue.key not in self._has_run]
        if not queues:
            ends = self._cycle_begin + self._cycle.cycle_ns
            full = any(queue.rows >= self._batch(queue, view) for queue in view.queues)
            if view.now < ends and not full:
                return WaitUntil(ends)
            self._has_run = set()
            queues = list(view.queues)
        if not self._has_run:
            self._cycle_begin = view.now
        queue = min(queues, key=lambda queue: queue.key)
        hopeless = self._hopeless(queue, view)
        if hopeless:
            return RejectQueued(queue.key, hopeless)
        self._has_run.add(queue.key)
        return StartRun(queue.key, *assemble_at_most(queue, self._batch(queue, view)), view.all_units)

    def _hopeless(self, queue: ModelQueue, view: View) -> int:
        """Return how many at the front would be late even if they ran now in the planned batch."""
        given_up, remaining, batch = 0, queue.rows, self._batch(queue, view)
        for request in queue.waiting:
            rows = max(min(remaining, batch), request.rows)
            remaining -= request.rows
            if request.deadline < 0 or view.now + queue.expected_ns(rows, view.all_units) <= request.deadline:
                break
            given_up += 1
        return given_up

    def _batch(self, queue: ModelQueue, view: View) -> int:
        turn = self._cycle.turns.get(queue.key)
        return rows_in_half(queue, view.all_units) if turn is None else turn.batch

    def forecast(self, request: QueuedRequest, queue: ModelQueue, view: View) -> RequestForecast:
        """Predict: after the current run, the models before it in the cycle, and a cycle for each earlier batch."""
        busy_ns = sum(max(run.expected_end - view.now, 0) for run in view.active_runs)
        batch = self._batch(queue, view)
        rows = queue.rows + request.rows
        position = (queue.key in self._has_run, queue.key)
        before_ns = others_ns = 0
        for waiting in view.queues:
            if waiting.key != queue.key:
                takes_ns = waiting.high_ns(min(waiting.rows, self._batch(waiting, view)), view.all_units)
                others_ns += takes_ns
                before_ns += takes_ns if (waiting.key in self._has_run, waiting.key) < position else 0
        starts_ns = busy_ns + before_ns + (-(-rows // batch) - 1) * others_ns
        return RequestForecast(answered_ns(queue, rows, batch, view.all_units, starts_ns))

    def _replan(self, view: View) -> None:
        rates = {queue.key: queue.rate for queue in view.all_queues if queue.spec.slo_ns}
        if view.now - self._planned_at < _EPOCH_NS and rates.keys() == self._planned.keys():
            return
        has_changed = rates.keys() != self._planned.keys() or any(
            abs(rate - self._planned[key]) > _MOVED * max(self._planned[key], 1.0) for key, rate in rates.items()
        )
        self._planned_at = view.now
        if has_changed:
            self._planned = rates
            queues = [queue for queue in view.all_queues if rates.get(queue.key)]
            self._cycle = packed(queues, view.all_units)
            self._plan = _plan_of(queues, self._cycle, view.all_units)

    def run_ended(self, run: RunReport, view: View) -> None:
        """Do nothing: this policy learns nothing."""

    def plan(self) -> ServePlan | None:
        """Return the cycle as a plan."""
        return self._plan


def packed(queues: Sequence[ModelQueue], units: int) -> Cycle:
    """Pack all models into the shortest of their duty cycles, or a longer one if their runs do not fit it."""
    cycle_ns = min((_own_cycle_ns(queue, units) for queue in queues), default=0)
    turns = _turns(queues, units, cycle_ns)
    for _ in range(_STEPS):
        takes_ns = sum(turn.took_ns for turn in turns.values())
        if takes_ns <= cycle_ns:
            break
        cycle_ns = takes_ns
        turns = _turns(queues, units, cycle_ns)
    return Cycle(cycle_ns, turns)


def _turns(queues: Sequence[ModelQueue], units: int, cycle_ns: Duration) -> dict[int, CycleTurn]:
    """Return the batch that each model's rate fills in a cycle, up to its largest batch."""
    turns = {}
    for queue in queues:
        batch = min(max(math.ceil(queue.rate * cycle_ns / SECOND_NS), 1), rows_in_half(queue, units))
        turns[queue.key] = CycleTurn(batch, queue.expected_ns(batch, units))
    return turns


def _own_cycle_ns(queue: ModelQueue, units: int) -> Duration:
    """Return the cycle of the largest batch whose gathering and run are within the objective; of B if saturated."""
    max_rows, rate = rows_in_half(queue, units), queue.rate
    if rate * queue.expected_ns(max_rows, units) >= max_rows * SECOND_NS:
        return queue.expected_ns(max_rows, units)
    for rows in range(max(queue.spec.max_batch, 1), 0, -1):
        gather_ns = int(rows * SECOND_NS / rate)
        if gather_ns + queue.expected_ns(rows, units) <= queue.spec.slo_ns:
            return gather_ns
    return max(queue.spec.slo_ns - queue.expected_ns(1, units), queue.expected_ns(1, units))


def _plan_of(queues: Sequence[ModelQueue], cycle: Cycle, units: int) -> ServePlan:
    models = tuple(
        ModelPlan(
            model=queue.spec.name,
            batch=cycle.turns[queue.key].batch,
            units=units,
            expected_ns=queue.expected_ns(cycle.turns[queue.key].batch, units),
            runs=1,
            rate=queue.rate,
            objective="duty cycle",
            why="once in a cycle, with what its rate brings in that time",
        )
        for queue in queues
    )
    used = sum(turn.took_ns for turn in cycle.turns.values()) / max(cycle.cycle_ns, 1)
    return ServePlan(cycle.cycle_ns, units, models, used, "one after the other on the whole device")
