"""Temporal: one model at a time has the whole device, in turns.

This is what a GPU does for processes without MPS, and what D-STACK calls temporal sharing: a model's batch runs alone
on the whole device; then it is the next model's turn, round robin over models with waiting requests. A batch has all
waiting requests, up to the model's limit and, if an objective is known, to what a run does in half of it.

Omitted: time slices that split a run (a driver's slice is about 2 ms and ends a kernel, not a batch; splitting batches
has no benefit here), and the cost of context switches.
"""

from __future__ import annotations

from typing import ClassVar

from cotenant.serve.model.event import QueuedRequest
from cotenant.serve.model.plan import ServePlan
from cotenant.serve.model.scheduling import ModelQueue, RequestForecast, RunReport, StartRun, View, WaitUntil, Widths
from cotenant.units.instant import Duration
from cotenant_lab.baselines.serve.batch_bounds import answered_ns, assemble_at_most, rows_in_half


class Temporal:
    """Keeps which model had the last turn."""

    widths: ClassVar = Widths.WHOLE

    def __init__(self) -> None:
        """Start before the first turn."""
        self._last = -1

    def next(self, view: View) -> StartRun | WaitUntil | None:
        """Return the next model in turn, if nothing runs."""
        if view.active_runs:
            return None
        queue = min(view.queues, key=self._turn)
        self._last = queue.key
        return StartRun(queue.key, *assemble_at_most(queue, rows_in_half(queue, view.all_units)), view.all_units)

    def forecast(self, request: QueuedRequest, queue: ModelQueue, view: View) -> RequestForecast:
        """Predict: after the current run, the models before it, and a whole round for each batch before its own."""
        busy_ns = sum(max(run.expected_end - view.now, 0) for run in view.active_runs)
        rows, batch = queue.rows + request.rows, rows_in_half(queue, view.all_units)
        turn_by_queue = {
            waiting: _turn_ns(waiting, view.all_units) for waiting in view.queues if waiting.key != queue.key
        }
        position = self._turn(queue)
        before_ns = sum(takes_ns for waiting, takes_ns in turn_by_queue.items() if self._turn(waiting) < position)
        starts_ns = busy_ns + before_ns + (-(-rows // batch) - 1) * sum(turn_by_queue.values())
        return RequestForecast(answered_ns(queue, rows, batch, view.all_units, starts_ns))

    def _turn(self, queue: ModelQueue) -> tuple[bool, int]:
        """Return the sort key of a turn; the lowest is first."""
        return queue.key <= self._last, queue.key

    def run_ended(self, run: RunReport, view: View) -> None:
        """Do nothing: this policy learns nothing."""

    def plan(self) -> ServePlan | None:
        """Return None: this policy has no plan."""
        return None


def _turn_ns(queue: ModelQueue, units: int) -> Duration:
    return queue.high_ns(min(queue.rows, rows_in_half(queue, units)), units)
