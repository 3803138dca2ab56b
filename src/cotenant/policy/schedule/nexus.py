"""Nexus: models take turns on the whole device in cycles, with batches that their rates fill within a cycle.

From Nexus (Shen et al., SOSP 2019), its *squishy bin packing* for one device. A model's largest batch B is one whose
run takes at most half of the objective: a request that just misses a batch makes the next. A model that needs more than
that gives is *saturated*. Of the others, each has by itself the largest batch b with l(b) + b/rate within the objective
and so a duty cycle of b/rate. On one device all share the shortest cycle, in which each model runs once, with the batch
that its rate fills in that time; they fit if the runs together are no longer than the cycle. Published, what does not
fit goes to another device. Here there is one: the cycle is stretched to what its runs take (which is ours), batches
grow with it up to B, and who has not as much time is late. Dropping is early, as published: of the requests at the
front, those that could not be answered in time by a run of the planned batch are given up before it is formed.

In a cycle each model in which something waits has one run on all of the device, one after the other; the next cycle
begins when the cycle is over, or at once if it took longer or a planned batch is there already. Planned anew when rates
have moved by a tenth, at most once a second (published: epochs of 30 s; both figures here are ours).

Left out: several devices, prefix batching, splitting the objective of a query over stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from cotenant.domain.instant import SECOND_NS, Duration, Instant
from cotenant.domain.lane import Ended, Foreseen, GiveUp, Hold, Lane, Launch, View
from cotenant.domain.serveplan import ModelPlan, ServePlan
from cotenant.domain.serving import Waiting
from cotenant.policy.schedule.batch import answered_ns, assemble_at_most, rows_in_half

_EPOCH_NS: Final = SECOND_NS
_MOVED: Final = 0.1
_STEPS: Final = 8


class Turn(NamedTuple):
    """A model's part of a cycle."""

    batch: int
    took_ns: Duration


class Cycle(NamedTuple):
    """What one device does over and over."""

    cycle_ns: Duration
    turns: dict[int, Turn]


class Nexus:
    """Remembers the cycle, and where in it the device is."""

    def __init__(self) -> None:
        """Nothing is planned."""
        self._cycle = Cycle(0, {})
        self._planned: dict[int, float] = {}
        self._planned_at: Instant = -_EPOCH_NS
        self._begun: Instant = 0
        self._done: set[int] = set()
        self._told: ServePlan | None = None

    def next(self, view: View) -> Launch | GiveUp | Hold | None:
        """The next model of the cycle, once the device is free."""
        if view.under_way:
            return None
        self._replan(view)
        lanes = [lane for lane in view.lanes if lane.key not in self._done]
        if not lanes:
            ends = self._begun + self._cycle.cycle_ns
            full = any(lane.rows >= self._batch(lane, view) for lane in view.lanes)
            if view.now < ends and not full:
                return Hold(ends)
            self._done = set()
            lanes = list(view.lanes)
        if not self._done:
            self._begun = view.now
        lane = min(lanes, key=lambda one: one.key)
        hopeless = self._hopeless(lane, view)
        if hopeless:
            return GiveUp(lane.key, hopeless)
        self._done.add(lane.key)
        return Launch(lane.key, *assemble_at_most(lane, self._batch(lane, view)), view.all_units)

    def _hopeless(self, lane: Lane, view: View) -> int:
        """How many at the front would be late even if they ran now, in the batch that is planned."""
        given_up, left, batch = 0, lane.rows, self._batch(lane, view)
        for one in lane.waiting:
            rows = max(min(left, batch), one.rows)
            left -= one.rows
            if one.deadline < 0 or view.now + lane.expected_ns(rows, view.all_units) <= one.deadline:
                break
            given_up += 1
        return given_up

    def _batch(self, lane: Lane, view: View) -> int:
        turn = self._cycle.turns.get(lane.key)
        return rows_in_half(lane, view.all_units) if turn is None else turn.batch

    def foresee(self, asked: Waiting, lane: Lane, view: View) -> Foreseen:
        """After what runs, those whose turn comes first, and a whole cycle for each batch before its own."""
        busy_ns = sum(max(run.expected_end - view.now, 0) for run in view.under_way)
        batch = self._batch(lane, view)
        rows = lane.rows + asked.rows
        mine = (lane.key in self._done, lane.key)
        before_ns = others_ns = 0
        for other in view.lanes:
            if other.key != lane.key:
                takes_ns = other.high_ns(min(other.rows, self._batch(other, view)), view.all_units)
                others_ns += takes_ns
                before_ns += takes_ns if (other.key in self._done, other.key) < mine else 0
        starts_ns = busy_ns + before_ns + (-(-rows // batch) - 1) * others_ns
        return Foreseen(answered_ns(lane, rows, batch, view.all_units, starts_ns))

    def _replan(self, view: View) -> None:
        rates = {lane.key: lane.rate for lane in view.everyone if lane.spec.slo_ns}
        if view.now - self._planned_at < _EPOCH_NS and rates.keys() == self._planned.keys():
            return
        moved = rates.keys() != self._planned.keys() or any(
            abs(rate - self._planned[key]) > _MOVED * max(self._planned[key], 1.0) for key, rate in rates.items()
        )
        self._planned_at = view.now
        if moved:
            self._planned = rates
            lanes = [lane for lane in view.everyone if rates.get(lane.key)]
            self._cycle = packed(lanes, view.all_units)
            self._told = _plan_of(lanes, self._cycle, view.all_units)

    def ended(self, run: Ended, view: View) -> None:
        """Nothing to learn."""

    def plan(self) -> ServePlan | None:
        """The cycle."""
        return self._told


def packed(lanes: Sequence[Lane], units: int) -> Cycle:
    """All models in the shortest of their duty cycles; in a longer one, if their runs do not fit it."""
    cycle_ns = min((_own_cycle_ns(lane, units) for lane in lanes), default=0)
    turns = _turns(lanes, units, cycle_ns)
    for _ in range(_STEPS):
        takes_ns = sum(turn.took_ns for turn in turns.values())
        if takes_ns <= cycle_ns:
            break
        cycle_ns = takes_ns
        turns = _turns(lanes, units, cycle_ns)
    return Cycle(cycle_ns, turns)


def _turns(lanes: Sequence[Lane], units: int, cycle_ns: Duration) -> dict[int, Turn]:
    """What each model's rate brings in a cycle, up to its largest batch."""
    turns = {}
    for lane in lanes:
        batch = min(max(math.ceil(lane.rate * cycle_ns / SECOND_NS), 1), rows_in_half(lane, units))
        turns[lane.key] = Turn(batch, lane.expected_ns(batch, units))
    return turns


def _own_cycle_ns(lane: Lane, units: int) -> Duration:
    """Of the largest batch whose gathering and run are within the objective; of B, if the model is saturated."""
    most, rate = rows_in_half(lane, units), lane.rate
    if rate * lane.expected_ns(most, units) >= most * SECOND_NS:
        return lane.expected_ns(most, units)
    for rows in range(max(lane.spec.max_batch, 1), 0, -1):
        gather_ns = int(rows * SECOND_NS / rate)
        if gather_ns + lane.expected_ns(rows, units) <= lane.spec.slo_ns:
            return gather_ns
    return max(lane.spec.slo_ns - lane.expected_ns(1, units), lane.expected_ns(1, units))


def _plan_of(lanes: Sequence[Lane], cycle: Cycle, units: int) -> ServePlan:
    models = tuple(
        ModelPlan(
            model=lane.spec.name,
            batch=cycle.turns[lane.key].batch,
            units=units,
            expected_ns=lane.expected_ns(cycle.turns[lane.key].batch, units),
            runs=1,
            rate=lane.rate,
            objective="duty cycle",
            why="once in a cycle, with what its rate brings in that time",
        )
        for lane in lanes
    )
    used = sum(turn.took_ns for turn in cycle.turns.values()) / max(cycle.cycle_ns, 1)
    return ServePlan(cycle.cycle_ns, units, models, used, "one after the other on the whole device")
