"""Temporal: one model at a time has the whole device, in turns.

What a GPU does for processes without MPS, and what D-STACK names temporal sharing: a model's batch runs on all of
the device and nothing beside it; then it is the next model's turn, round robin, of those in which something waits.
A batch is all that waits, up to the model's limit and, where an objective is known, up to what a run does in half of it.

Left out: time slices that cut a run in two (a driver's are about 2 ms and end a kernel, not a batch; cutting batches
helps nobody here), and the cost of changing contexts.
"""

from __future__ import annotations

from cotenant.domain.lane import Ended, Hold, Lane, Launch, View, assemble
from cotenant.domain.serveplan import ServePlan


class Temporal:
    """Remembers whose turn it was."""

    def __init__(self) -> None:
        """Nobody has had a turn."""
        self._last = -1

    def next(self, view: View) -> Launch | Hold | None:
        """The next model in turn, if nothing runs."""
        if view.under_way:
            return None
        lane = min(view.lanes, key=lambda one: (one.key <= self._last, one.key))
        self._last = lane.key
        return Launch(lane.key, *fitting(lane, view.all_units), view.all_units)

    def ended(self, run: Ended, view: View) -> None:
        """Nothing to learn."""

    def plan(self) -> ServePlan | None:
        """It has none."""
        return None


def fitting(lane: Lane, units: int) -> tuple[int, int]:
    """Requests from the front that go into a run, and their rows: no more than it does in half the objective.

    Half, because a request that just missed a run waits for it and then has to run itself. One at least goes.
    """
    count, rows = assemble(lane)
    half_ns = lane.spec.slo_ns // 2
    while half_ns and count > 1 and lane.expected_ns(rows, units) > half_ns:
        count -= 1
        rows -= lane.waiting[count].rows
    return count, rows
