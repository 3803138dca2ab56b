"""Carry out the decisions of a cluster controller through its port, and recover them from a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from cotenant.cluster.journal import ClusterTurn
from cotenant.cluster.model.event import AckEnd, Answer, ClusterAction, ClusterEvent, StartJob, StopJob
from cotenant.cluster.ports import ClusterTransport
from cotenant.runner.host import Divergence, Effects, StateMachine, TurnHost
from cotenant.runner.ports import Journal
from cotenant.units.instant import Instant


class ClusterHost(TurnHost[ClusterEvent, ClusterAction]):
    """Runs the state machine of a cluster controller and applies its actions."""

    __slots__ = ()

    def __init__(
        self,
        machine: StateMachine[ClusterEvent, ClusterAction],
        transport: ClusterTransport,
        journal: Journal,
        observe: Callable[[Instant, ClusterEvent, list[ClusterAction]], None] | None = None,
    ) -> None:
        """Bind the state machine to its transport and journal."""
        effects: Effects = {
            StartJob: transport.start,
            StopJob: transport.stop,
            AckEnd: transport.acknowledge,
            Answer: transport.answer,
        }
        super().__init__(machine, effects, journal, observe)


class Redoes(Protocol):
    """State machine of a cluster controller, as recovery uses it."""

    def redo(self, event: ClusterEvent, recorded: Sequence[ClusterAction], *, now: Instant) -> list[ClusterAction]:
        """Apply a recorded event with the recorded decisions."""
        ...


def recover_cluster(machine: Redoes, turns: Iterable[ClusterTurn]) -> int:
    """Apply recorded turns and return their number.

    Raises `Divergence` where the orders to nodes differ from the recorded ones.
    """
    number = 0
    for turn in turns:
        number += 1
        actual = machine.redo(turn.event, turn.actions, now=turn.now)
        if _orders(turn.actions) != _orders(actual):
            raise Divergence(number, turn, actual)
    return number


def _orders(actions: Iterable[ClusterAction]) -> list[tuple[type, object, object]]:
    """Return the orders to nodes without their reasons. Answers are omitted: the peers that asked are gone."""
    return [
        (type(action), (action.node, action.attempt), action.gpus if isinstance(action, StartJob) else None)
        for action in actions
        if not isinstance(action, Answer)
    ]
