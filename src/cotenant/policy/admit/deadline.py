"""Deadline: a request that cannot be answered in time is told so at once."""

from __future__ import annotations

from cotenant.domain.instant import Duration
from cotenant.domain.lane import Lane, View


def deadline(view: View, lane: Lane, rows: int) -> Duration:
    """When the answer to one more request of these rows is expected, counted from now.

    All that waits before it is taken to run first, spread over the device, from when a part of it is free. A
    model whose runs are not known yet is believed to take no time, so its first requests are never refused.
    """
    backlog_ns = sum(_backlog_ns(other) for other in view.lanes) // max(view.all_units, 1)
    own_ns = lane.expected_ns(min(max(rows, 1), lane.spec.max_batch or rows), lane.spec.share)
    return max(view.free_at - view.now, 0) + backlog_ns + own_ns


def _backlog_ns(lane: Lane) -> Duration:
    batch, share = lane.spec.max_batch or 1, lane.spec.share
    full, rest = divmod(lane.rows if lane.spec.max_batch else len(lane.waiting), batch)
    ahead_ns = full * lane.expected_ns(batch, share) + (lane.expected_ns(rest, share) if rest else 0)
    return ahead_ns * share
