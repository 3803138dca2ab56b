"""What do models have in common that run beside each other without shares? One batch at a time of each, any time."""

from __future__ import annotations

from cotenant.domain.lane import Foreseen, Lane, View
from cotenant.domain.serving import Waiting
from cotenant.policy.schedule.batch import answered_ns

UNSHARED = 0
"""`units` of a run that takes what the others leave."""


def foresee(asked: Waiting, lane: Lane, view: View, batch: int) -> Foreseen:
    """When one more request is answered if runs of all models that have work divide the device evenly.

    What runs of its own model goes first, then whole batches of what waits before it. Nothing says how such runs divide
    a device; an even part for each is a guess that this project makes for baselines that would have none.
    """
    beside = len({run.key for run in view.under_way} | {other.key for other in view.lanes} | {lane.key})
    units = max(view.all_units // beside, 1)
    own_ns = sum(
        max(lane.high_ns(run.rows, units) - (view.now - run.began), 0) for run in view.under_way if run.key == lane.key
    )
    return Foreseen(answered_ns(lane, lane.rows + asked.rows, max(batch, 1), units, own_ns))
