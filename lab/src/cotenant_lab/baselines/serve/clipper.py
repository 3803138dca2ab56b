"""Clipper: each model's batch grows until its runs take longer than the objective, and then shrinks.

From Clipper (Crankshaw et al., NSDI 2017): batch sizes by additive increase and multiplicative decrease. A model's
largest batch grows by a fixed step while a full batch is done within the latency objective, and shrinks by a tenth when
one is not. The tenth is published, the step of 1 is ours. Each model has a container that runs one batch at a time;
containers do not know of each other, so runs have no shares. A batch starts as soon as the container is free (delayed
batching is off by default). Requests whose deadline has passed while they waited are dropped, as in its queue; no
others.

Omitted: the cache of answers, the choice among several models for one request, several replicas of a model.
"""

from __future__ import annotations

from typing import ClassVar, Final

from cotenant.serve.model.event import QueuedRequest
from cotenant.serve.model.plan import ServePlan
from cotenant.serve.model.scheduling import ModelQueue, RequestForecast, RunReport, StartRun, View, WaitUntil, Widths
from cotenant_lab.baselines.serve.batch_bounds import UNSHARED, assemble_at_most, forecast

_STEP: Final = 1.0
_BACK_OFF: Final = 0.9


class Clipper:
    """Keeps the largest batch of each model."""

    widths: ClassVar = Widths.WHOLE

    def __init__(self) -> None:
        """Start every model with single rows."""
        self._max_rows: dict[int, float] = {}

    def next(self, view: View) -> StartRun | WaitUntil | None:
        """Return a batch of a model that does not run, up to its size."""
        for queue in view.queues:
            if queue.running:
                continue
            return StartRun(queue.key, *assemble_at_most(queue, self._rows(queue.key)), UNSHARED)
        return None

    def forecast(self, request: QueuedRequest, queue: ModelQueue, view: View) -> RequestForecast:
        """Predict as for all policies without shares."""
        return forecast(request, queue, view, min(self._rows(queue.key), max(queue.spec.max_batch, 1)))

    def run_ended(self, run: RunReport, view: View) -> None:
        """Increase or decrease the model's batch."""
        queue = next((queue for queue in view.all_queues if queue.key == run.key), None)
        if queue is None or not queue.spec.slo_ns or run.failed:
            return
        max_rows = self._max_rows.get(run.key, 1.0)
        if run.took_ns > queue.spec.slo_ns:
            self._max_rows[run.key] = max(max_rows * _BACK_OFF, 1.0)
        elif run.rows >= int(max_rows):
            self._max_rows[run.key] = min(max_rows + _STEP, float(max(queue.spec.max_batch, 1)))

    def plan(self) -> ServePlan | None:
        """Return None: this policy has no plan."""
        return None

    def _rows(self, key: int) -> int:
        return int(self._max_rows.get(key, 1.0))
