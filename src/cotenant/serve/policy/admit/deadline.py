"""Deadline: a request that cannot be answered in time is rejected on arrival."""

from __future__ import annotations

from cotenant.serve.model.scheduling import ModelQueue, View
from cotenant.units.instant import Duration


def expected_answer_ns(view: View, queue: ModelQueue, rows: int) -> Duration:
    """Return the expected time until the response to a request with this many rows.

    All queued requests are assumed to run first, spread over the device, from the instant at which a unit is free. A
    model whose run times are unknown is assumed to take no time, so its first requests are never rejected.
    """
    backlog_ns = sum(_backlog_ns(other) for other in view.queues) // max(view.all_units, 1)
    own_ns = queue.expected_ns(min(max(rows, 1), queue.spec.max_batch or rows), queue.spec.share)
    return max(view.free_at - view.now, 0) + backlog_ns + own_ns


def _backlog_ns(queue: ModelQueue) -> Duration:
    batch, share = queue.spec.max_batch or 1, queue.spec.share
    full, rest = divmod(queue.rows if queue.spec.max_batch else len(queue.waiting), batch)
    ahead_ns = full * queue.expected_ns(batch, share) + (queue.expected_ns(rest, share) if rest else 0)
    return ahead_ns * share
