"""Fixed: each model waits for a batch of one size, and all models run concurrently without shares.

D-STACK's "fixed batch with default MPS": a server that was tuned once. A model runs one batch at a time, of exactly its
batch limit; runs of different models share the device without control. So that the last requests do not wait for ever,
a smaller batch starts when its oldest request has waited `wait_ns`, or, if that is not set, half the objective, or 100
ms without one. That rule is ours: none is published.
"""

from __future__ import annotations

from typing import ClassVar, Final

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
from cotenant.units.instant import MILLISECOND_NS, Duration
from cotenant_lab.baselines.serve.batch_bounds import UNSHARED, forecast

_WAIT_NS: Final = 100 * MILLISECOND_NS


class FixedBatch:
    """Has no state."""

    widths: ClassVar = Widths.WHOLE

    def next(self, view: View) -> StartRun | WaitUntil | None:
        """Return a full batch of a model that does not run."""
        wakeup = None
        for queue in view.queues:
            if queue.running:
                continue
            count, rows = assemble(queue)
            due = queue.waiting[0].since + _wait_ns(queue)
            if rows >= queue.spec.max_batch or view.now >= due:
                return StartRun(queue.key, count, rows, UNSHARED)
            wakeup = due if wakeup is None else min(wakeup, due)
        return None if wakeup is None else WaitUntil(wakeup)

    def forecast(self, request: QueuedRequest, queue: ModelQueue, view: View) -> RequestForecast:
        """Predict as for all policies without shares, plus the wait of a batch that is not full."""
        base = forecast(request, queue, view, queue.spec.max_batch)
        since = queue.waiting[0].since if queue.waiting else view.now
        waits_ns = 0 if queue.rows + request.rows >= queue.spec.max_batch else since + _wait_ns(queue) - view.now
        return RequestForecast(base.wait_ns + max(waits_ns, 0))

    def run_ended(self, run: RunReport, view: View) -> None:
        """Do nothing: this policy learns nothing."""

    def plan(self) -> ServePlan | None:
        """Return None: this policy has no plan."""
        return None


def _wait_ns(queue: ModelQueue) -> Duration:
    return queue.spec.wait_ns or queue.spec.slo_ns // 2 or _WAIT_NS
