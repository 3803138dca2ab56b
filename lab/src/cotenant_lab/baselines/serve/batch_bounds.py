"""Batch bounds and completion estimates that the baseline policies share."""

from __future__ import annotations

from typing import Final

from cotenant.serve.model.event import QueuedRequest
from cotenant.serve.model.scheduling import ModelQueue, RequestForecast, View, assemble
from cotenant.units.instant import SECOND_NS, Duration

UNSHARED: Final = 0
"""`units` of a run that shares the whole device with the other runs."""


def rows_in_half(queue: ModelQueue, units: int) -> int:
    """Return the largest batch whose run takes at most half of the objective; at least one row.

    Half, because a request that just missed a run waits for it and then has to run itself.
    """
    rows, half_ns = max(queue.spec.max_batch, 1), queue.spec.slo_ns // 2
    while half_ns and rows > 1 and queue.expected_ns(rows, units) > half_ns:
        rows -= 1
    return rows


def assemble_at_most(queue: ModelQueue, limit: int) -> tuple[int, int]:
    """Return how many requests from the front fit into a run of `most` rows, and their rows; at least one."""
    count, rows = assemble(queue)
    while count > 1 and rows > limit:
        count -= 1
        rows -= queue.waiting[count].rows
    return count, rows


def answered_ns(queue: ModelQueue, rows: int, batch: int, units: int, starts_ns: Duration) -> Duration:
    """Return the time until the last row is answered if the batches run one after the other from `starts_ns` on.

    The last batch grows while it waits, by the arrival rate.
    """
    full_batches, last = divmod(rows - 1, batch)
    waits_ns = starts_ns + full_batches * queue.high_ns(batch, units)
    joined = int(queue.rate * waits_ns / SECOND_NS)
    return waits_ns + queue.high_ns(min(last + 1 + joined, batch), units)


def forecast(request: QueuedRequest, queue: ModelQueue, view: View, batch: int) -> RequestForecast:
    """Predict the answer time if the runs of all models with work divide the device evenly.

    Active runs of the same model end first, then whole batches of queued requests run. How such runs divide a device is
    not published; an even division is our assumption.
    """
    models = len({run.key for run in view.active_runs} | {waiting.key for waiting in view.queues} | {queue.key})
    units = max(view.all_units // models, 1)
    own_ns = sum(
        max(queue.high_ns(run.rows, units) - (view.now - run.began), 0)
        for run in view.active_runs
        if run.key == queue.key
    )
    return RequestForecast(answered_ns(queue, queue.rows + request.rows, max(batch, 1), units, own_ns))
