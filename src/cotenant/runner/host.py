"""Run one turn of a state machine under any clock: handle the event, journal it, carry out the actions.

The journal comes before the effects, so that everything a tenant was sent is in the journal whenever the process dies.
The other order would let a restarted node grant a slot twice (docs/developer/decisions/0003).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from cotenant.runner.journal import Turn
from cotenant.runner.ports import Journal
from cotenant.units.instant import Instant
from cotenant.units.value import Value

E = TypeVar("E", bound=Value)
A = TypeVar("A", bound=Value)


class StateMachine(Protocol[E, A]):
    """A pure state machine that a host runs."""

    def handle(self, event: E, *, now: Instant) -> list[A]:
        """Change the state by one event and return the actions to carry out."""
        ...

    def next_wakeup(self) -> Instant | None:
        """Return when the machine needs a wake-up event; None where it needs none."""
        ...

    def snapshot(self) -> E:
        """Return an event that makes a new machine equal to this one."""
        ...


Effects: TypeAlias = dict[type, Callable[[Any], None]]
"""The function that carries out each type of action."""


class TurnHost(Generic[E, A]):
    """Runs the turns of one machine: handles an event, journals it, carries out the actions."""

    __slots__ = ("_effects", "_journal", "_observe", "machine")

    def __init__(
        self,
        machine: StateMachine[E, A],
        effects: Effects,
        journal: Journal,
        observe: Callable[[Instant, E, list[A]], None] | None = None,
    ) -> None:
        """Bind a machine to its effects and journal; `observe` is called after each turn and cannot change it."""
        self.machine = machine
        self._effects = effects
        self._journal = journal
        self._observe = observe

    def turn(self, event: E, now: Instant) -> Instant | None:
        """Run one turn and return when the machine needs a wake-up event."""
        machine = self.machine
        actions = machine.handle(event, now=now)
        full = self._journal.append(now, event, actions)
        for action in actions:
            self._effects[type(action)](action)
        if self._observe is not None:
            self._observe(now, event, actions)
        if full:
            self._journal.begin_segment(now, machine.snapshot())
        return machine.next_wakeup()


class Divergence(Exception):  # noqa: N818  a result of replay, not an error
    """A turn whose recorded actions differ from the actions that the machine returns now."""

    def __init__(self, number: int, turn: Turn[Any, Any], actual: Sequence[Any]) -> None:
        """Keep both lists of actions for the report."""
        self.number = number
        self.turn = turn
        self.actual = list(actual)
        super().__init__(f"turn {number}")


def _are_equal(recorded: list[A], actual: list[A]) -> bool:
    return recorded == actual


def replay(
    machine: StateMachine[E, A],
    turns: Iterable[Turn[E, A]],
    same: Callable[[list[A], list[A]], bool] = _are_equal,
) -> int:
    """Handle every recorded event again and return the number of turns; raise `Divergence` at the first difference.

    `cotenant replay` requires equal actions. A node that recovers requires only that the same grants were issued, so
    that a new version may word its messages differently.
    """
    number = 0
    for turn in turns:
        number += 1
        actual = machine.handle(turn.event, now=turn.now)
        if not same(turn.actions, actual):
            raise Divergence(number, turn, actual)
    return number
