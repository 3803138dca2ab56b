"""How many rows go into a run? Bounds that baselines have in common."""

from __future__ import annotations

from cotenant.domain.instant import SECOND_NS, Duration
from cotenant.domain.lane import Lane, assemble


def rows_in_half(lane: Lane, units: int) -> int:
    """As many as a run does in half of the objective, and the model takes; one at least.

    Half, because a request that just missed a run waits for it and then has to run itself.
    """
    rows, half_ns = max(lane.spec.max_batch, 1), lane.spec.slo_ns // 2
    while half_ns and rows > 1 and lane.expected_ns(rows, units) > half_ns:
        rows -= 1
    return rows


def assemble_at_most(lane: Lane, most: int) -> tuple[int, int]:
    """How many requests from the front go into a run of at most so many rows, and their rows; one at least goes."""
    count, rows = assemble(lane)
    while count > 1 and rows > most:
        count -= 1
        rows -= lane.waiting[count].rows
    return count, rows


def answered_ns(lane: Lane, rows: int, batch: int, units: int, starts_ns: Duration) -> Duration:
    """Until the last of so many rows is answered, if the first batch of them starts then and each follows the other.

    The last batch is larger than what waits now: others come while it waits.
    """
    before, last = divmod(rows - 1, batch)
    waits_ns = starts_ns + before * lane.high_ns(batch, units)
    joined = int(lane.rate * waits_ns / SECOND_NS)
    return waits_ns + lane.high_ns(min(last + 1 + joined, batch), units)
