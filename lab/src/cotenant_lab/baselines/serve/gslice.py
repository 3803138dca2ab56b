"""Gslice: every model has its own part of the device, sized by its need and tuned while serving.

From GSLICE (Dhakal et al., SoCC 2020): spatial sharing by MPS percentages. A model's part starts at the knee of its
curve, since more hardly helps; parts are corrected by measurements while serving, taking from models with spare time
and giving to those without; batches are as large as the objective allows; a standby process takes over with a changed
part, so that serving does not stop. One run at a time per model, on its own part; other models cannot use what it
leaves idle. If the parts add up to more than the device, all are cut in proportion.

Our choices: half of the objective for a run (the remainder is for waiting), a correction each second by one measured
width (published: by steps of percent after a number of batches), up if more than 1 % of its requests were late or more
than one batch waits, down if its runs filled less than half of the time. Omitted: sharing of weights between the
serving and the standby process, and copies that it overlaps with computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from cotenant.serve.model.event import QueuedRequest
from cotenant.serve.model.plan import ModelPlan, ServePlan
from cotenant.serve.model.scheduling import ModelQueue, RequestForecast, RunReport, StartRun, View, WaitUntil, Widths
from cotenant.units.instant import SECOND_NS, Duration, Instant
from cotenant_lab.baselines.serve.batch_bounds import answered_ns, assemble_at_most, rows_in_half

_EVERY_NS: Final = SECOND_NS
_LATE: Final = 0.01
_IDLE: Final = 0.5


class _PartResult:
    """Results of a model's part since the last correction."""

    __slots__ = ("busy_ns", "in_time", "late")

    def __init__(self) -> None:
        self.busy_ns: Duration = 0
        self.in_time = 0
        self.late = 0


class Gslice:
    """Keeps each model's part of the device, and its results."""

    widths: ClassVar = Widths.MEASURED

    def __init__(self) -> None:
        """Start without parts."""
        self._requests: dict[int, int] = {}
        self._parts: dict[int, int] = {}
        self._served: dict[int, _PartResult] = {}
        self._since: Instant = 0
        self._plan: ServePlan | None = None

    def next(self, view: View) -> StartRun | WaitUntil | None:
        """Return a batch of a model that does not run, on its part."""
        self._tune(view)
        for queue in view.queues:
            units = self._parts[queue.key]
            if queue.running or units > view.free_units:  # runs that started on larger parts must end first
                continue
            return StartRun(queue.key, *assemble_at_most(queue, rows_in_half(queue, units)), units)
        return None

    def forecast(self, request: QueuedRequest, queue: ModelQueue, view: View) -> RequestForecast:
        """Predict: after its own run and the batches before it; other models do not delay it."""
        units = self._parts.get(queue.key) or queue.knee_units
        own_ns = sum(max(run.expected_end - view.now, 0) for run in view.active_runs if run.key == queue.key)
        batch = rows_in_half(queue, units)
        return RequestForecast(answered_ns(queue, queue.rows + request.rows, batch, units, own_ns))

    def run_ended(self, run: RunReport, view: View) -> None:  # noqa: ARG002  other policies use it
        """Count the run."""
        served = self._served.setdefault(run.key, _PartResult())
        served.busy_ns += run.took_ns
        served.in_time += run.in_time
        served.late += run.late

    def plan(self) -> ServePlan | None:
        """Return the parts."""
        return self._plan

    def _tune(self, view: View) -> None:
        keys = {queue.key for queue in view.all_queues}
        is_due = view.now - self._since >= _EVERY_NS
        if keys == self._requests.keys() and not is_due:
            return
        for queue in view.all_queues:
            request = self._requests.get(queue.key)
            self._requests[queue.key] = queue.knee_units if request is None else self._corrected(queue, request, view)
        self._requests = {queue.key: self._requests[queue.key] for queue in view.all_queues}
        self._parts = cut(self._requests, view.all_queues, view.all_units)
        self._served = {}
        self._since = view.now
        self._plan = self._plan_of(view)

    def _corrected(self, queue: ModelQueue, request: int, view: View) -> int:
        served = self._served.get(queue.key)
        if served is None:
            return request
        answered = served.in_time + served.late
        is_short = served.late > _LATE * answered or queue.rows > rows_in_half(queue, self._parts[queue.key])
        widths = [units for units in queue.widths if units <= queue.knee_units]
        if is_short:
            return min((units for units in widths if units > request), default=request)
        if served.busy_ns < _IDLE * (view.now - self._since):
            return max((units for units in widths if units < request), default=request)
        return request

    def _plan_of(self, view: View) -> ServePlan:
        models = tuple(
            ModelPlan(
                model=queue.spec.name,
                batch=rows_in_half(queue, self._parts[queue.key]),
                units=self._parts[queue.key],
                expected_ns=queue.expected_ns(rows_in_half(queue, self._parts[queue.key]), self._parts[queue.key]),
                runs=1,
                rate=queue.rate,
                objective="knee",
                why=f"wants {self._requests[queue.key]} by its knee and what was late",
            )
            for queue in view.all_queues
        )
        used = sum(self._requests.values()) / view.all_units
        return ServePlan(_EVERY_NS, view.all_units, models, used, "each model has a part of its own")


def cut(requests: dict[int, int], queues: Sequence[ModelQueue], all_units: int) -> dict[int, int]:
    """Return parts that fit the device: as requested, or all cut in proportion, to a measured width if there is one."""
    total = sum(requests.values())
    if total <= all_units:
        return dict(requests)
    parts = {}
    for queue in queues:
        proportional = max(requests[queue.key] * all_units // total, 1)
        parts[queue.key] = max((units for units in queue.widths if units <= proportional), default=proportional)
    return parts
