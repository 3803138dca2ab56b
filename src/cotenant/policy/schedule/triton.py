"""Triton: dynamic batching for each model by itself, all of them on one device without shares.

As NVIDIA documents its dynamic batcher and instance groups: a model has so many instances (`instances`, one if nothing
is said) and each runs one batch at a time. When an instance is free, a batch is formed of what waits: as large as the
model's limit if no preferred sizes are named, else the largest preferred size that is there. A batch that reaches no
preferred size (or, without any, the limit) is delayed until its oldest request has waited `max_queue_delay` (`wait_ns`,
none by default) and then goes as it is. Instances of different models do not know of each other: their runs
take no shares and divide the device among themselves as it happens.

It knows no objectives. Left out: its rate limiter, priorities between models, sequence batching, ensembles.
"""

from __future__ import annotations

from cotenant.domain.lane import Ended, Foreseen, Hold, Lane, Launch, View, assemble
from cotenant.domain.serveplan import ServePlan
from cotenant.domain.serving import Waiting
from cotenant.policy.schedule.unshared import UNSHARED, foresee


class Triton:
    """Remembers nothing."""

    def next(self, view: View) -> Launch | Hold | None:
        """A batch of whichever model has an instance free, the longest waiting first."""
        until = None
        for lane in sorted(view.lanes, key=lambda one: (one.waiting[0].since, one.key)):
            spec = lane.spec
            if lane.running >= max(spec.instances, 1):
                continue
            count, rows = _batch(lane)
            due = lane.waiting[0].since + spec.wait_ns
            if view.now >= due or rows >= spec.max_batch or rows in spec.preferred_batches:
                return Launch(lane.key, count, rows, UNSHARED)
            until = due if until is None else min(until, due)
        return None if until is None else Hold(until)

    def foresee(self, asked: Waiting, lane: Lane, view: View) -> Foreseen:
        """As for all that run without shares, by batches of the model's limit."""
        return foresee(asked, lane, view, max(lane.spec.max_batch, 1))

    def ended(self, run: Ended, view: View) -> None:
        """Nothing to learn."""

    def plan(self) -> ServePlan | None:
        """It has none."""
        return None


def _batch(lane: Lane) -> tuple[int, int]:
    """What fits; cut down to the largest preferred size within it, if it reaches one exactly."""
    count, rows = assemble(lane)
    preferred = [size for size in lane.spec.preferred_batches if size <= rows]
    if not preferred:
        return count, rows
    wanted, taken = max(preferred), 0
    for place, one in enumerate(lane.waiting[:count], 1):
        taken += one.rows
        if taken == wanted:
            return place, taken
    return count, rows
