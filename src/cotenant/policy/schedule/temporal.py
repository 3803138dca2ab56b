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
        lane = min(view.lanes, key=self._turn)
        self._last = lane.key
        return Launch(lane.key, *assemble_at_most(lane, rows_in_half(lane, view.all_units)), view.all_units)

    def foresee(self, asked: Waiting, lane: Lane, view: View) -> Foreseen:
        """After what runs, those whose turn comes first, and a whole round for each batch before its own."""
        busy_ns = sum(max(run.expected_end - view.now, 0) for run in view.under_way)
        rows, batch = lane.rows + asked.rows, rows_in_half(lane, view.all_units)
        others = {other: _turn_ns(other, view.all_units) for other in view.lanes if other.key != lane.key}
        mine = self._turn(lane)
        before_ns = sum(takes_ns for other, takes_ns in others.items() if self._turn(other) < mine)
        starts_ns = busy_ns + before_ns + (-(-rows // batch) - 1) * sum(others.values())
        return Foreseen(answered_ns(lane, rows, batch, view.all_units, starts_ns))

    def _turn(self, lane: Lane) -> tuple[bool, int]:
        """Who has it first is lower."""
        return lane.key <= self._last, lane.key

    def ended(self, run: Ended, view: View) -> None:
        """Nothing to learn."""

    def plan(self) -> ServePlan | None:
        """It has none."""
        return None


def _turn_ns(lane: Lane, units: int) -> Duration:
    return lane.high_ns(min(lane.rows, rows_in_half(lane, units)), units)
