"""Carry out the decisions of a cluster controller through its port."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.cluster.model.event import ClusterAction, ClusterEvent, StartJob, StopJob
from cotenant.cluster.ports import ClusterTransport
from cotenant.runner.host import Effects, StateMachine, TurnHost
from cotenant.runner.journal_memory import NullJournal
from cotenant.units.instant import Instant


class ClusterHost(TurnHost[ClusterEvent, ClusterAction]):
    """Runs the state machine of a cluster controller and applies its actions.

    There is no journal: a controller that starts again rebuilds the state from what the API server stores.
    """

    __slots__ = ()

    def __init__(
        self,
        machine: StateMachine[ClusterEvent, ClusterAction],
        transport: ClusterTransport,
        observe: Callable[[Instant, ClusterEvent, list[ClusterAction]], None] | None = None,
    ) -> None:
        """Bind the state machine to its transport."""
        effects: Effects = {StartJob: transport.start, StopJob: transport.stop}
        super().__init__(machine, effects, NullJournal(), observe)
