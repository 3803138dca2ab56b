"""The controller without threads and sockets: objects and answers in, requests out, under any clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from cotenant.cluster.host import ClusterHost
from cotenant.cluster.kubernetes.api import ApiRequest, Response
from cotenant.cluster.kubernetes.controller.conditions import Conditions
from cotenant.cluster.kubernetes.controller.dispatcher import Dispatcher, Limits
from cotenant.cluster.kubernetes.controller.placement import Placement, PlacementOptions
from cotenant.cluster.kubernetes.controller.predictions import Learned, PredictionStore
from cotenant.cluster.kubernetes.controller.restore import restore
from cotenant.cluster.model.cluster import ClusterSettings
from cotenant.cluster.model.event import ClusterAction, ClusterEvent, ClusterWoke
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.runner.ports import Clock
from cotenant.units.histogram import Recorder
from cotenant.units.instant import SECOND_NS, Instant

_TICK_NS: Final = SECOND_NS
_NO_LEASE_NS: Final = 1 << 60
"""The state machine watches no leases: the adapter closes the GPUs of silent nodes, and Kubernetes decides about the
pods of a node that is gone."""

Observe = Callable[[Instant, ClusterEvent, list[ClusterAction]], None]


class ControllerSettings(NamedTuple):
    """Settings of a controller."""

    namespace: str
    """Namespace of the controller's own objects."""
    cluster: ClusterSettings = ClusterSettings(round_ns=10 * SECOND_NS)
    limits: Limits = Limits()
    placement: PlacementOptions = PlacementOptions()


def machine_settings(settings: ClusterSettings) -> ClusterSettings:
    """Return the settings with which the state machine runs.

    A pod cannot be moved: it would be evicted and another one created, so rounds move nothing. Ended pods are not
    remembered, since their objects tell more.
    """
    return ClusterSettings(
        round_ns=settings.round_ns,
        lease_ns=_NO_LEASE_NS,
        grace_ns=_NO_LEASE_NS,
        place=settings.place,
        fair=settings.fair,
        remember=0,
        slowdown_limit_ppm=settings.slowdown_limit_ppm,
        moves_limit=0,
    )


class Controller:
    """The state machine, its adapter to the API, and the queue of requests."""

    def __init__(
        self,
        send: Callable[[int, ApiRequest], None],
        settings: ControllerSettings,
        clock: Clock,
        observe: Observe | None = None,
    ) -> None:
        """`send(ticket, request)` sends a request; its answer is passed to `answered`."""
        self.settings = settings
        self._clock = clock
        self.machine = ClusterMachine()
        self.dispatcher = Dispatcher(send, settings.limits)
        self.placement = Placement(self.post, self.dispatcher, settings.placement)
        self._host = ClusterHost(self.machine, self.placement.starts, observe)
        view, starts = self.placement.view, self.placement.starts
        self.conditions = Conditions(view, starts, self.machine, self.dispatcher)
        self.placement.explain = self.placement.starts.explain = self.conditions.watch
        self._predictions: PredictionStore | None = None
        self._queue: deque[ClusterEvent] = deque()
        self._is_busy = False
        self._now: Instant = 0
        self._tick_due: Instant = 0
        self._machine_due: Instant | None = None
        self.round_ns = Recorder()
        self.first_round: Instant | None = None
        """End of the first round."""

    def start(self, learned: Learned, now: Instant) -> None:
        """Rebuild the state machine from the objects collected so far, and begin."""
        self._now = now
        settings = machine_settings(self.settings.cluster)
        state = restore(self.placement, settings, learned, now)
        self.placement.starts.delete_claims(state.unused_claims)
        self.post(state.event)
        self.placement.started(state.drained)
        predictor = self.machine.pair_weights.predictor
        self._predictions = PredictionStore(self.settings.namespace, predictor.learned, self.dispatcher, learned)

    def post(self, event: ClusterEvent) -> None:
        """Deliver an event to the state machine, after the turn that is running."""
        self._queue.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._queue:
                self._machine_due = self._host.turn(self._queue.popleft(), self._now)
        finally:
            self._is_busy = False

    def answered(self, ticket: int, response: Response, now: Instant) -> None:
        """Take the answer to a request."""
        self._now = now
        self.dispatcher.answered(ticket, response, now)

    def wake(self, now: Instant) -> None:
        """Do what is due: ticks, rounds, and requests."""
        self._now = now
        if self.placement.is_started and now >= self._tick_due:
            self._tick_due = now + _TICK_NS
            self.placement.tick(now)
            self._explain(now)
        if self._machine_due is not None and now >= self._machine_due:
            self.placement.post_pools()
            rounds, before = self.machine.rounds, self._clock.now()
            self.post(ClusterWoke())
            if self.machine.rounds != rounds:
                after = self._clock.now()
                self.round_ns.record(after - before)
                self.first_round = after if self.first_round is None else self.first_round
        self.dispatcher.dispatch(now)

    def next_wakeup(self) -> Instant | None:
        """Return when `wake` has something to do."""
        if not self.placement.is_started:
            return None
        due = (self._tick_due, self._machine_due, self.dispatcher.next_wakeup())
        return min(instant for instant in due if instant is not None)

    def _explain(self, now: Instant) -> None:
        if self.first_round is not None:  # before it, every pod would wait for a round
            self.conditions.tick(now)
        if self._predictions is not None:
            self._predictions.tick(now)
