"""Clipper: each model's batch grows until its runs take longer than the objective, and then shrinks a little.

From Clipper (Crankshaw et al., NSDI 2017): batch sizes by additive increase and multiplicative decrease. A model's
largest batch grows by a fixed step for as long as a full batch is done within the latency objective, and shrinks by a
tenth when one is not. The tenth is published, the step of 1 is ours. Each model has a container that runs one batch at
a time; containers do not know of each other, so runs take no shares. A batch goes as soon as the container is free (its
delayed batching is off by default). Requests whose deadline has passed while they waited are dropped, as in its queue;
no others.

Left out: the cache of answers, the choice among several models for one request, several replicas of a model.
"""

from __future__ import annotations

from typing import Final

from cotenant.domain.lane import Ended, Foreseen, Hold, Lane, Launch, View
from cotenant.domain.serveplan import ServePlan
from cotenant.domain.serving import Waiting
from cotenant.policy.schedule.batch import assemble_at_most
from cotenant.policy.schedule.unshared import UNSHARED, foresee

_STEP: Final = 1.0
_BACK_OFF: Final = 0.9


class Clipper:
    """Remembers how large a batch each model's runs may be."""

    def __init__(self) -> None:
        """Every model begins with single rows."""
        self._most: dict[int, float] = {}

    def next(self, view: View) -> Launch | Hold | None:
        """A batch of a model that does not run, up to its size."""
        for lane in view.lanes:
            if lane.running:
                continue
            return Launch(lane.key, *assemble_at_most(lane, self._rows(lane.key)), UNSHARED)
        return None

    def foresee(self, asked: Waiting, lane: Lane, view: View) -> Foreseen:
        """As for all that run without shares."""
        return foresee(asked, lane, view, min(self._rows(lane.key), max(lane.spec.max_batch, 1)))

    def ended(self, run: Ended, view: View) -> None:
        """Try more, or less."""
        lane = next((one for one in view.everyone if one.key == run.key), None)
        if lane is None or not lane.spec.slo_ns or run.failed:
            return
        most = self._most.get(run.key, 1.0)
        if run.took_ns > lane.spec.slo_ns:
            self._most[run.key] = max(most * _BACK_OFF, 1.0)
        elif run.rows >= int(most):
            self._most[run.key] = min(most + _STEP, float(max(lane.spec.max_batch, 1)))

    def plan(self) -> ServePlan | None:
        """It has none."""
        return None

    def _rows(self, key: int) -> int:
        return int(self._most.get(key, 1.0))
