"""D-STACK: each model runs at its right size, earliest deadline first; spare units go to queued requests."""

from __future__ import annotations

from bisect import insort
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
from cotenant.serve.policy.order import (
    DeadlineOrder,
    LateRequests,
    QueueCursor,
    RunChoice,
    UnitRelease,
    deadline_of,
    urgency,
)
from cotenant.serve.policy.queue_simulation import QueueSimulation
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
_FRESH_NS: Final = 20 * MILLISECOND_NS
"""Period for which cached run times of a model are reused before new measurements are considered. Our choice."""
_DOUBT_FACTOR: Final = 4
"""An estimate that exceeds the remaining time by at most this factor may be wrong, and is tried. Our choice."""
_LAG_FRACTION: Final = 0.25
"""Maximum margin for delays, as a fraction of the shortest objective. Our choice."""
_USABLE_FRACTION: Final = 0.95
"""Fraction of the device that is shared out under overload; the rest is lost between runs. Our choice."""


class Dstack:
    """D-STACK scheduling of one device. State: the chosen size of each model and the device time that each one used."""

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
        self._lag_limit_ns: Duration = FAR
        self._spare_ns: Duration = 0
        self._forecasts: dict[int, Instant] = {}
        self._ends: list[UnitRelease] | None = None
        self._held_units_by_key: dict[int, int] | None = None
        self._last_free = 0

    def next(self, view: View) -> StartRun | RejectQueued | WaitUntil | None:
        """Start the most urgent request that has units and time, or reject requests that are late."""
        if view.now >= self._replan_at:
            self._replan(view)
        if not view.free_units:
            return None
        self._drop_stale_ends(view)
        held_units = self._held_units(view)
        cursors = [
            QueueCursor(self._state(queue, view), queue.waiting, held_units.get(queue.key, 0), view.now)
            for queue in view.queues
        ]
        if len(cursors) > 1:
            cursors.sort(key=urgency)
        order = self._order(view, idle=len(cursors) == 1 and self._used < 0.5)
        choice = order.pick(cursors)
        self._forecasts.clear()
        if isinstance(choice, RunChoice):
            self._ends = self._held_units_by_key = None
            return StartRun(choice.cursor.state.queue.key, choice.requests, choice.rows, choice.units)
        if isinstance(choice, LateRequests):
            if not view.active_runs and len(cursors) == 1 and len(cursors[0].waiting) == 1:
                return self._start_alone(cursors[0])
            return RejectQueued(choice.cursor.state.queue.key, choice.requests)
        return None

    def _start_alone(self, cursor: QueueCursor) -> StartRun:
        """Start the only request of an idle device, even if it is expected to be late: it delays no other request."""
        self._ends = self._held_units_by_key = None
        return StartRun(cursor.state.queue.key, 1, cursor.waiting[0].rows, cursor.state.widths[-1])

    def run_ended(self, run: RunReport, view: View) -> None:
        """Record the device time of the run and the outcome of its requests."""
        self._forecasts.clear()
        self._ends = self._held_units_by_key = None
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
        """Predict the answer time in scheduling order.

        A request that would make admitted ones late is predicted late as well.
        """
        if view.now >= self._replan_at:
            self._replan(view)
        state = self._state(queue, view)
        admitted_part = state.admitted_part.get(request.priority, 1.0)
        if admitted_part < 1:
            state.credit[request.priority] = min(state.credit.get(request.priority, 0.0) + admitted_part, 2.0)
            if state.credit[request.priority] < 1 and view.free_units < view.all_units:
                return RequestForecast(0, "the device is overloaded, and this model has used its share")
        if self._admit_anyway(request, state, view):
            return RequestForecast(0)
        finish = self._expected_finish(request, state, view)
        if finish <= deadline_of(request) and admitted_part < 1:
            state.credit[request.priority] = max(state.credit[request.priority] - 1, 0.0)
        return RequestForecast(max(finish - view.now, 0))

    def _admit_anyway(self, request: QueuedRequest, state: ModelState, view: View) -> bool:
        """Return whether to admit a request that is predicted late: the device is idle, or the estimate is stale.

        An estimate that is too high by more than `_DOUBT_FACTOR` is believed.
        """
        if state.queue.waiting or state.queue.running:
            return False
        if state.typical_ns(request.rows, state.widths[-1]) > _DOUBT_FACTOR * (deadline_of(request) - view.now):
            return False
        return state.stale(view.now) or not (view.active_runs or any(view.queues))

    def _expected_finish(self, request: QueuedRequest, state: ModelState, view: View) -> Instant:
        """Return the predicted finish.

        Reuse the last prediction if no run started or ended since and it left enough spare time.
        """
        key = state.queue.key
        last_finish = self._forecasts.get(key)
        if last_finish is not None:
            if last_finish > deadline_of(request):
                return last_finish
            cost_ns = request.rows * state.row_ns
            spec = state.queue.spec
            is_default = request.deadline - request.since == spec.slo_ns and request.priority == spec.priority
            if is_default and cost_ns <= self._spare_ns:
                self._spare_ns -= cost_ns
                return last_finish
        elif not self._forecasts:
            self._spare_ns = FAR
        finish = self._forecasts[key] = self._predict_finish(request, state.queue, view)
        return finish

    def _predict_finish(self, request: QueuedRequest, queue: ModelQueue, view: View) -> Instant:
        state = self._state(queue, view)
        if state.units <= view.free_units and not state.queue.running and not any(view.queues):
            self._spare_ns = 0
            planned_high_ns = max(state.high_ns(request.rows, state.units), state.planned_ns)
            return view.now + planned_high_ns + min(2 * view.lag_ns, self._lag_limit_ns)
        simulation = self._simulate(request, queue, view)
        self._spare_ns = min(simulation.spare_ns // 2, self._spare_ns)
        if simulation.late_ns and simulation.late_ns > self._simulate(None, queue, view).late_ns:
            return max(simulation.finish, deadline_of(request) + simulation.late_ns)
        return simulation.finish

    def _simulate(self, request: QueuedRequest | None, queue: ModelQueue, view: View) -> QueueSimulation:
        cursors = []
        added = request
        self._drop_stale_ends(view)
        held_units = self._held_units(view)
        for model_queue in view.queues:
            waiting: Sequence[QueuedRequest] = model_queue.waiting
            if model_queue.key == queue.key and added is not None:
                with_request = list(waiting)
                insort(with_request, added, key=_urgency)
                waiting, added = with_request, None
            cursors.append(
                QueueCursor(self._state(model_queue, view), waiting, held_units.get(model_queue.key, 0), view.now)
            )
        if added is not None:
            cursors.append(QueueCursor(self._state(queue, view), [added], held_units.get(queue.key, 0), view.now))
        cursors.sort(key=urgency)
        simulation = QueueSimulation(self._order(view, idle=False), cursors, request)
        simulation.run()
        return simulation

    def _state(self, queue: ModelQueue, view: View) -> ModelState:
        state = self._states.get(queue.key)
        if state is None:
            state = self._states[queue.key] = ModelState(queue, view.all_units)
        return state

    def _drop_stale_ends(self, view: View) -> None:
        """Drop the cached ends of active runs when the number of free units changed."""
        if view.free_units != self._last_free:
            self._last_free = view.free_units
            self._ends = self._held_units_by_key = None

    def _order(self, view: View, *, idle: bool) -> DeadlineOrder:
        now = view.now
        if self._ends is None or (self._ends and self._ends[0].at <= now):
            self._ends = self._expected_ends(view)
        ends = self._ends.copy()
        margin_ns = min(2 * view.lag_ns, self._lag_limit_ns)
        return DeadlineOrder(now, view.free_units, ends, margin_ns, self._with_budget, idle=idle)

    def _expected_ends(self, view: View) -> list[UnitRelease]:
        now = view.now
        ends = []
        for run in view.active_runs:
            if run.units:
                state = self._states[run.key]
                variance = state.high_ns(run.rows, run.units) - state.typical_ns(run.rows, run.units)
                end = run.expected_end
                if end <= now:  # overdue: the later it is, the later its end is assumed
                    end = now + 1 + (now - run.began) // 16
                ends.append(UnitRelease(end, run.units, variance**2, run.key))
        ends.sort()
        return ends

    def _held_units(self, view: View) -> dict[int, int]:
        if self._held_units_by_key is None:
            units_by_key: dict[int, int] = {}
            for run in view.active_runs:
                units_by_key[run.key] = units_by_key.get(run.key, 0) + run.units
            self._held_units_by_key = units_by_key
        return self._held_units_by_key

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
            self._states[planned.queue.key].apply_size(planned.size, self._used)
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
        self._used = self._chosen_used = used(self._planned, view.all_units)
        self._all_units = view.all_units
        slos = [queue.spec.slo_ns for queue in queues if queue.spec.slo_ns]
        self._lag_limit_ns = int(min(slos, default=_REPLAN_NS) * _LAG_FRACTION)
        self._choose_at = view.now + max(session_ns(queues), _CHOOSE_NS)

    def _set_shares(self, planned: Sequence[PlannedModel], all_units: int) -> None:
        """Under overload, set the fraction of each model's requests that is admitted."""
        demands = []
        for model in planned:
            state = self._states[model.queue.key]
            state.admitted_part = {}
            state.share_units = FAR
            if model.size is not None and state.queue.spec.slo_ns:
                per_row = model.size.area_ns / SECOND_NS
                weight = state.queue.spec.weight
                demands += [
                    Demand(model.queue.key, *priority_and_units, weight)
                    for priority_and_units in _requested_units(state, per_row)
                ]
        total = sum(demand.units for demand in demands)
        if not total:
            return
        usable_units = _USABLE_FRACTION * all_units
        scale = max(usable_units / total, 1.0)
        share_by_key: dict[int, float] = {}
        for (key, priority), units in fair_shares(demands, usable_units).items():
            requested = next(demand.units for demand in demands if (demand.key, demand.priority) == (key, priority))
            share_by_key[key] = share_by_key.get(key, 0.0) + units * scale
            if scale == 1:
                self._states[key].admitted_part[priority] = units / requested
        for key, units in share_by_key.items():
            self._states[key].share_units = units


def _requested_units(state: ModelState, per_row: float) -> list[tuple[int, float]]:
    return [(priority, rate * per_row) for priority, rate in state.rates.items() if rate]


def _urgency(request: QueuedRequest) -> tuple[int, int, int]:
    return request.priority, deadline_of(request), request.request
