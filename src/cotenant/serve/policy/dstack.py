"""D-STACK: each model has its right size; the next run is the one of most value, spare units go to other requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from cotenant.serve.model.event import QueuedRequest
from cotenant.serve.model.plan import ServePlan
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
from cotenant.serve.policy.fairness import Demand, DeviceTimeRecord, fair_shares
from cotenant.serve.policy.model_state import FAR, ModelState
from cotenant.serve.policy.order import QueueCursor, RunChoice, UnitRelease, ValueOrder, deadline_of, free_at
from cotenant.serve.policy.right_size import allowed, run_sizes
from cotenant.serve.policy.session import PlannedModel, choose, plan_of, session_ns, used
from cotenant.units.instant import MILLISECOND_NS, NEVER, SECOND_NS, Duration, Instant

_REPLAN_NS: Final = 100 * MILLISECOND_NS
"""Interval at which rates are measured and shares of the device are set. Our choice."""
_CHOOSE_NS: Final = 500 * MILLISECOND_NS
_LOAD_CHANGE: Final = 1.2
_SMALL_LOAD: Final = 0.1
"""Batches and units are chosen again after a session, after `_CHOOSE_NS`, or when the load changed by a fifth.

Loads below this fraction of the device count as equal. Our choice.
"""
_FULL: Final = 0.9
"""Runs wait for other requests if requests need at least this fraction of the device in the best runs. Our choice."""
_FRESH_NS: Final = 20 * MILLISECOND_NS
"""Period for which cached run times of a model are reused before new measurements are considered. Our choice."""
_DOUBT_FACTOR: Final = 4
"""An estimate that exceeds the remaining time by at most this factor may be wrong, and is tried. Our choice."""
_LAG_FRACTION: Final = 0.25
"""Maximum margin for delays, as a fraction of the shortest objective. Our choice."""
_PRICE_POWER: Final = 3.0
_PRICE_LIMIT: Final = 10.0
_SMALL_PART: Final = 0.02
"""A model's price is the mean served part over its own, to this power; the ratio is limited. Our choice.

A higher power makes parts more even, a lower one serves more requests.
"""


class Dstack:
    """D-STACK scheduling of one device. State: the chosen size of each model and what each one has used and started."""

    widths: ClassVar = Widths.MEASURED

    def __init__(self) -> None:
        """Start without any measurement."""
        self._states: dict[int, ModelState] = {}
        self._with_budget: list[ModelState] = []
        self._device_time = DeviceTimeRecord()
        self._planned: list[PlannedModel] = []
        self._objective = ""
        self._all_units = 0
        self._chosen_used = 0.0
        self._choose_at: Instant = NEVER
        self._planned_at: Instant = NEVER
        self._replan_at: Instant = NEVER
        self._used = 0.0
        self._demand = 0.0
        self._served_part = 1.0
        self._lag_limit_ns: Duration = FAR

    def next(self, view: View) -> StartRun | RejectQueued | WaitUntil | None:
        """Start the run of most value, or reject requests that are late or that a better run leaves out."""
        if view.now >= self._replan_at:
            self._replan(view)
        cursors = [self._cursor(queue, view) for queue in view.queues]
        order = ValueOrder(
            view.now,
            view.free_units,
            self._expected_ends(view),
            self._margin_ns(view),
            idle=len(cursors) == 1 and self._used < 0.5,
            is_full=self._demand >= _FULL,
        )
        if not view.active_runs and len(cursors) == 1 and len(cursors[0].waiting) == 1:
            return self._start_alone(cursors[0], order, view)
        late = order.late(cursors)
        if late is not None:
            return RejectQueued(late.cursor.state.queue.key, late.requests)
        if view.free_units:
            choice = order.pick(cursors, lambda choice: self._leaves_units(choice, view))
            if choice is not None:
                return self._start(choice)
        hopeless_at = min(
            (order.hopeless_at(cursor.state, cursor.waiting[0]) for cursor in cursors if cursor.waiting), default=FAR
        )
        until = min(hopeless_at + 1, order.waits_until)
        return WaitUntil(until) if until < FAR else None

    def _cursor(self, queue: ModelQueue, view: View) -> QueueCursor:
        state = self._state(queue, view)
        return QueueCursor(state, queue.waiting, self._price(state, queue.waiting[0].priority))

    def _price(self, state: ModelState, priority: int) -> float:
        """Return the value of an answer: higher if less than the usual part of these requests was served."""
        wanted = state.wanted.get(priority, 0.0) * state.parts.get(priority, 1.0)
        part = state.started.get(priority, 0.0) / wanted if wanted >= 1 else self._served_part
        ratio = (self._served_part + _SMALL_PART) / (part + _SMALL_PART)
        return float(min(max(ratio, 1 / _PRICE_LIMIT), _PRICE_LIMIT) ** _PRICE_POWER)

    def _margin_ns(self, view: View) -> Duration:
        return min(2 * view.lag_ns, self._lag_limit_ns)

    def _start_alone(self, cursor: QueueCursor, order: ValueOrder, view: View) -> StartRun:
        """Start the only request of an idle device, even if it is expected to be late: it delays no other request."""
        choice = order.pick([cursor], lambda choice: self._leaves_units(choice, view))
        if choice is None:
            choice = RunChoice(cursor, 0, 1, cursor.waiting[0].rows, cursor.state.widths[-1])
        return self._started(choice)

    def _start(self, choice: RunChoice) -> StartRun | RejectQueued:
        if choice.skipped:
            return RejectQueued(choice.cursor.state.queue.key, choice.skipped, is_late=False)
        return self._started(choice)

    def _started(self, choice: RunChoice) -> StartRun:
        state = choice.cursor.state
        for request in choice.cursor.waiting[: choice.requests]:
            state.started[request.priority] = state.started.get(request.priority, 0.0) + request.rows
        return StartRun(state.queue.key, choice.requests, choice.rows, choice.units)

    def _leaves_units(self, choice: RunChoice, view: View) -> bool:
        """Return whether models with deadlines that receive requests find units in time during this run."""
        state = choice.cursor.state
        run_ns = state.typical_ns(choice.rows, choice.units)
        free = view.free_units - choice.units
        ends: list[UnitRelease] | None = None
        for other in self._with_budget:
            if other is not state and other.units > free and other.budget_ns < run_ns:
                ends = self._expected_ends(view) if ends is None else ends
                if free_at(other.units, free, view.now, ends) - view.now > other.budget_ns:
                    return False
        return True

    def run_ended(self, run: RunReport, view: View) -> None:
        """Record the device time of the run and the outcome of its requests."""
        self._device_time.add(run.key, (run.units or view.all_units) * run.took_ns)
        state = self._states.get(run.key)
        if state is not None:
            state.ran_at = view.now
            state.record_answers(run.in_time, run.late)
            state.score = self._device_time.served(run.key) / state.queue.spec.weight
            if view.now >= state.fresh_until:
                state.forget_times()
                state.fresh_until = view.now + _FRESH_NS

    def plan(self) -> ServePlan | None:
        """Return the current plan."""
        return plan_of(self._objective, self._planned, self._all_units) if self._planned else None

    def forecast(self, request: QueuedRequest, queue: ModelQueue, view: View) -> RequestForecast:
        """Predict the earliest answer: of a run of this request on the first units that are free.

        Requests that wait may be left out for it, so they delay it only if they are more than the whole device serves.
        """
        if view.now >= self._replan_at:
            self._replan(view)
        state = self._state(queue, view)
        if self._admit_anyway(request, state, view):
            return RequestForecast(0)
        left_ns = deadline_of(request) - view.now
        full_ns = self._backlog_ns(request, state, view)
        if full_ns > left_ns:
            return RequestForecast(full_ns, "more requests of this model wait than the whole device can answer in time")
        ends = () if view.free_units else self._expected_ends(view)
        finish = FAR
        for units in state.widths:
            start = view.now if units <= view.free_units else free_at(units, view.free_units, view.now, ends)
            finish = min(finish, start + state.high_ns(request.rows, units))
        return RequestForecast(max(finish + self._margin_ns(view) - view.now, 0))

    def _backlog_ns(self, request: QueuedRequest, state: ModelState, view: View) -> Duration:
        """Return how long the whole device needs for the rows of this model that are due before this request."""
        queue = state.queue
        ahead = queue.rows + request.rows
        best = max((state.value(state.cap, units) for units in state.widths), default=0.0)
        return round(ahead / (best * view.all_units)) if best and ahead > state.cap else 0

    def _admit_anyway(self, request: QueuedRequest, state: ModelState, view: View) -> bool:
        """Return whether to admit a request that is predicted late: the device is idle, or the estimate is stale.

        An estimate that is too high by more than `_DOUBT_FACTOR` is believed.
        """
        if state.queue.waiting or state.queue.running:
            return False
        if state.typical_ns(request.rows, state.widths[-1]) > _DOUBT_FACTOR * (deadline_of(request) - view.now):
            return False
        return state.stale(view.now) or not (view.active_runs or any(view.queues))

    def _state(self, queue: ModelQueue, view: View) -> ModelState:
        state = self._states.get(queue.key)
        if state is None:
            state = self._states[queue.key] = ModelState(queue, view.all_units)
        return state

    def _expected_ends(self, view: View) -> list[UnitRelease]:
        now = view.now
        ends = []
        for run in view.active_runs:
            if run.units:
                end = run.expected_end
                if end <= now:  # overdue: the later it is, the later its end is assumed
                    end = now + 1 + (now - run.began) // 16
                ends.append(UnitRelease(end, run.units))
        ends.sort()
        return ends

    def _replan(self, view: View) -> None:
        """Measure the request rates; choose sizes again if the load or the set of models changed."""
        now = view.now
        queues = view.all_queues
        elapsed_ns = now - self._planned_at if self._planned_at != NEVER else 0
        if self._states.keys() != {queue.key for queue in queues}:
            self._states = {queue.key: self._state(queue, view) for queue in queues}
            self._planned = [planned for planned in self._planned if planned.queue.key in self._states]
            self._choose_at = now
        for state in self._states.values():
            state.count(elapsed_ns)
        self._planned = [planned._replace(rate=self._states[planned.queue.key].rate) for planned in self._planned]
        self._used = used(self._planned, view.all_units)
        if (
            now >= self._choose_at
            or not 1 / _LOAD_CHANGE < (self._used + _SMALL_LOAD) / (self._chosen_used + _SMALL_LOAD) < _LOAD_CHANGE
        ):
            self._choose_sizes(view)
        for planned in self._planned:
            self._states[planned.queue.key].apply_size(planned.size)
        self._set_shares(self._planned, view.all_units)
        self._with_budget = [state for state in self._states.values() if state.budget_ns < FAR]
        self._planned_at = now
        self._replan_at = now + _REPLAN_NS

    def _choose_sizes(self, view: View) -> None:
        queues = view.all_queues
        self._device_time.turn_over(self._states)
        for key, state in self._states.items():
            state.score = self._device_time.served(key) / state.queue.spec.weight
        self._objective, self._planned = choose(
            queues, [self._states[queue.key].rate for queue in queues], view.all_units
        )
        for planned in self._planned:
            state, slo_ns = self._states[planned.queue.key], planned.queue.spec.slo_ns
            areas = [
                size.area_ns for size in run_sizes(planned.queue, view.all_units) if allowed(size, slo_ns, planned.rate)
            ]
            state.row_area_ns = min(areas, default=planned.size.area_ns if planned.size else 0.0)
        self._used = self._chosen_used = used(self._planned, view.all_units)
        self._all_units = view.all_units
        slos = [queue.spec.slo_ns for queue in queues if queue.spec.slo_ns]
        self._lag_limit_ns = int(min(slos, default=_REPLAN_NS) * _LAG_FRACTION)
        self._choose_at = view.now + max(session_ns(queues), _CHOOSE_NS)

    def _set_shares(self, planned: Sequence[PlannedModel], all_units: int) -> None:
        """Set the fraction of each model's requests that its fair share of the device answers."""
        demands = []
        for model in planned:
            state = self._states[model.queue.key]
            state.parts = {}
            if model.size is not None and state.queue.spec.slo_ns:
                per_row = state.row_area_ns / SECOND_NS
                weight = state.queue.spec.weight
                demands += [
                    Demand(model.queue.key, priority, rate * per_row, weight)
                    for priority, rate in state.rates.items()
                    if rate
                ]
        self._demand = sum(demand.units for demand in demands) / all_units
        shares = fair_shares(demands, all_units)
        for demand in demands:
            self._states[demand.key].parts[demand.priority] = shares[demand.key, demand.priority] / demand.units
        wanted = started = 0.0
        for state in self._states.values():
            if state.queue.spec.slo_ns:
                wanted += sum(rows * state.parts.get(priority, 1.0) for priority, rows in state.wanted.items())
                started += sum(state.started.values())
        self._served_part = started / wanted if wanted else 1.0
