"""FIFO: the oldest request runs first, together with all requests that fit into its batch."""

from __future__ import annotations

from typing import ClassVar

from cotenant.serve.model.plan import ServePlan
from cotenant.serve.model.scheduling import ModelQueue, RunReport, StartRun, View, WaitUntil, Widths, assemble


class Fifo:
    """First in, first out. No state."""

    widths: ClassVar = Widths.DEFAULT

    def next(self, view: View) -> StartRun | WaitUntil | None:
        """Start the batch whose first request is the most urgent, among the batches that are due.

        A batch is due when it is full, when it has a preferred size, or when its first request has waited long enough.
        """
        now = view.now
        best: ModelQueue | None = None
        best_rank = (0, 0)
        chosen = (0, 0)
        until = None
        for queue in view.queues:
            spec = queue.spec
            if min(spec.share, view.all_units) > view.free_units:
                continue
            if spec.instances and queue.running >= spec.instances:
                continue
            head = queue.waiting[0]
            count, rows = assemble(queue)
            due = head.since + spec.wait_ns
            if now < due and rows < spec.max_batch and rows not in spec.preferred_batches:
                until = due if until is None else min(until, due)
                continue
            rank = (head.priority, head.since)
            if best is None or rank < best_rank:
                best, best_rank, chosen = queue, rank, (count, rows)
        if best is not None:
            return StartRun(best.key, *chosen, min(best.spec.share, view.all_units))
        return None if until is None else WaitUntil(until)

    def run_ended(self, run: RunReport, view: View) -> None:
        """Ignore the run; this policy keeps no state."""

    def plan(self) -> ServePlan | None:
        """Return None; this policy does not plan."""
        return None
