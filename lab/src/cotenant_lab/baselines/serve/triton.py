"""Triton: dynamic batching for each model by itself, all of them on one device without shares.

As NVIDIA documents its dynamic batcher and instance groups: a model has a number of instances (`instances`, one by
default) and each runs one batch at a time. When an instance is free, a batch is formed of the waiting requests: up to
the model's limit if no preferred sizes are given, else the largest preferred size that is reached. A batch that reaches
no preferred size (or, without any, the limit) is delayed until its oldest request has waited `max_queue_delay`
(`wait_ns`, 0 by default) and then starts as it is. Instances of different models do not know of each other: their runs
have no shares and divide the device without control.

It has no objectives. Omitted: its rate limiter, priorities between models, sequence batching, ensembles.
"""

from __future__ import annotations

from typing import ClassVar

from cotenant.serve.model.event import QueuedRequest
from cotenant.serve.model.plan import ServePlan
from cotenant.serve.model.scheduling import (
    ModelQueue,
    RequestForecast,
    RunReport,
    StartRun,
    View,
    WaitUntil,
    Widths,
    assemble,
)
from cotenant_lab.baselines.serve.batch_bounds import UNSHARED, forecast


class Triton:
    """Has no state."""

    widths: ClassVar = Widths.WHOLE

    def next(self, view: View) -> StartRun | WaitUntil | None:
        """Return a batch of a model with a free instance, the longest waiting first."""
        wakeup = None
        for queue in sorted(view.queues, key=lambda queue: (queue.waiting[0].since, queue.key)):
            spec = queue.spec
            if queue.running >= max(spec.instances, 1):
                continue
            count, rows = _batch(queue)
            due = queue.waiting[0].since + spec.wait_ns
            if view.now >= due or rows >= spec.max_batch or rows in spec.preferred_batches:
                return StartRun(queue.key, count, rows, UNSHARED)
            wakeup = due if wakeup is None else min(wakeup, due)
        return None if wakeup is None else WaitUntil(wakeup)

    def forecast(self, request: QueuedRequest, queue: ModelQueue, view: View) -> RequestForecast:
        """Predict as for all policies without shares, with batches of the model's limit."""
        return forecast(request, queue, view, max(queue.spec.max_batch, 1))

    def run_ended(self, run: RunReport, view: View) -> None:
        """Do nothing: this policy learns nothing."""

    def plan(self) -> ServePlan | None:
        """Return None: this policy has no plan."""
        return None


def _batch(queue: ModelQueue) -> tuple[int, int]:
    """Return what fits, reduced to the largest preferred size if one is reached exactly."""
    count, rows = assemble(queue)
    preferred = [size for size in queue.spec.preferred_batches if size <= rows]
    if not preferred:
        return count, rows
    target, rows_taken = max(preferred), 0
    for index, request in enumerate(queue.waiting[:count], 1):
        rows_taken += request.rows
        if rows_taken == target:
            return index, rows_taken
    return count, rows
