"""Temporal: one model at a time has the whole device, in turns.

What a GPU does for processes without MPS, and what D-STACK names temporal sharing: a model's batch runs on all of
the device and nothing beside it; then it is the next model's turn, round robin, of those in which something waits.
A batch is all that waits, up to the model's limit and, where an objective is known, what a run does in half of it.

Left out: time slices that cut a run in two (a driver's are about 2 ms and end a kernel, not a batch; cutting batches
helps nobody here), and the cost of changing contexts.
"""

from __future__ import annotations

from cotenant.domain.instant import Duration
from cotenant.domain.lane import Ended, Foreseen, Hold, Lane, Launch, View
from cotenant.domain.serveplan import ServePlan
from cotenant.domain.serving import Waiting
from cotenant.policy.schedule.batch import answered_ns, assemble_at_most, rows_in_half


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
        return Launch(lane.key, *assemble_at_most(lane, rows_in_half(lane, view.all_units)), view.all_units)

    def foresee(self, asked: Waiting, lane: Lane, view: View) -> Foreseen:
        """After what runs, as many rounds as its lane needs for all before it and itself; each as long as its runs."""
        busy_ns = sum(max(run.expected_end - view.now, 0) for run in view.under_way)
        own_rows, batch = lane.rows + asked.rows, rows_in_half(lane, view.all_units)
        rounds = -(-own_rows // batch)
        round_ns = sum(_turn_ns(other, view.all_units) for other in view.lanes if other.key != lane.key)
        return Foreseen(answered_ns(lane, own_rows, batch, view.all_units, busy_ns + rounds * round_ns))

    def ended(self, run: Ended, view: View) -> None:
        """Nothing to learn."""

    def plan(self) -> ServePlan | None:
        """It has none."""
        return None


def _turn_ns(lane: Lane, units: int) -> Duration:
    return lane.high_ns(min(lane.rows, rows_in_half(lane, units)), units)
