"""Fifo: whoever came first runs first, with all that fits into its batch."""

from __future__ import annotations

from cotenant.domain.lane import Ended, Hold, Lane, Launch, View, assemble
from cotenant.domain.serveplan import ServePlan


class Fifo:
    """Remembers nothing."""

    def next(self, view: View) -> Launch | Hold | None:
        """Of the batches that are due, the one whose first request is the most urgent.

        A batch is due when it is full, when it has a preferred size, or when its first request has waited long enough.
        """
        now = view.now
        best: Lane | None = None
        best_rank = (0, 0)
        chosen = (0, 0)
        until = None
        for lane in view.lanes:
            spec = lane.spec
            if min(spec.share, view.all_units) > view.free_units:
                continue
            if spec.instances and lane.running >= spec.instances:
                continue
            head = lane.waiting[0]
            count, rows = assemble(lane)
            due = head.since + spec.wait_ns
            if now < due and rows < spec.max_batch and rows not in spec.preferred_batches:
                until = due if until is None else min(until, due)
                continue
            rank = (head.priority, head.since)
            if best is None or rank < best_rank:
                best, best_rank, chosen = lane, rank, (count, rows)
        if best is not None:
            return Launch(best.key, *chosen, min(best.spec.share, view.all_units))
        return None if until is None else Hold(until)

    def ended(self, run: Ended, view: View) -> None:
        """Nothing to learn."""

    def plan(self) -> ServePlan | None:
        """It has none."""
        return None
