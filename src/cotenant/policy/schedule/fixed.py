"""Fixed: each model waits for a batch of one size, and all run beside each other without shares.

D-STACK's "fixed batch with default MPS": a server that was tuned once. A model runs one batch at a time, of exactly as
many rows as its limit says; runs of different models divide the device as it happens. So that the last requests are not
left waiting, a batch goes as it is when its oldest request has waited `wait_ns`, or, where that is not set, half the
objective, or 100 ms where there is none. That is ours: nothing is published about it.
"""

from __future__ import annotations

from typing import Final

from cotenant.domain.instant import MILLISECOND_NS, Duration
from cotenant.domain.lane import Ended, Foreseen, Hold, Lane, Launch, View, assemble
from cotenant.domain.serveplan import ServePlan
from cotenant.domain.serving import Waiting
from cotenant.policy.schedule.unshared import UNSHARED, foresee

_WAIT_NS: Final = 100 * MILLISECOND_NS


class Fixed:
    """Remembers nothing."""

    def next(self, view: View) -> Launch | Hold | None:
        """A full batch of a model that does not run."""
        until = None
        for lane in view.lanes:
            if lane.running:
                continue
            count, rows = assemble(lane)
            due = lane.waiting[0].since + _wait_ns(lane)
            if rows >= lane.spec.max_batch or view.now >= due:
                return Launch(lane.key, count, rows, UNSHARED)
            until = due if until is None else min(until, due)
        return None if until is None else Hold(until)

    def foresee(self, asked: Waiting, lane: Lane, view: View) -> Foreseen:
        """As for all that run without shares; and a batch that is not full waits."""
        found = foresee(asked, lane, view, lane.spec.max_batch)
        since = lane.waiting[0].since if lane.waiting else view.now
        waits_ns = 0 if lane.rows + asked.rows >= lane.spec.max_batch else since + _wait_ns(lane) - view.now
        return Foreseen(found.wait_ns + max(waits_ns, 0))

    def ended(self, run: Ended, view: View) -> None:
        """Nothing to learn."""

    def plan(self) -> ServePlan | None:
        """It has none."""
        return None


def _wait_ns(lane: Lane) -> Duration:
    return lane.spec.wait_ns or lane.spec.slo_ns // 2 or _WAIT_NS
