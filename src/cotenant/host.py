"""How does one turn go, under any clock? Deliver the event, journal it, carry out the actions, ask when to wake.

The journal comes before the deeds: what a tenant was told is then always on record, whenever the process dies. The
other order would let a restarted node grant a slot twice (docs/decisions/0003).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from cotenant.domain.action import (
    NO_PEER,
    Action,
    Adjusted,
    Confirm,
    Crowd,
    Grant,
    Kill,
    MpsRestart,
    Placed,
    Refuse,
    Restore,
    Revoke,
    Rise,
    Roster,
    Signal,
    Sit,
    Stop,
    Suspend,
    Watch,
    promises,
)
from cotenant.domain.clusters import AckEnd, Answer, ClusterAction, ClusterEvent, StartJob, StopJob
from cotenant.domain.event import Event
from cotenant.domain.instant import Instant
from cotenant.domain.serving import Drained, Release, Run, ServerAction, ServerEvent, TurnAway
from cotenant.domain.value import Value
from cotenant.format.journal import ClusterTurn, Turn
from cotenant.port import ClusterDoor, Desk, Door, Gates, Journal, Ledgers, Pages, Runtime, Wardens

E = TypeVar("E", bound=Value)
A = TypeVar("A", bound=Value)


class Decides(Protocol[E, A]):
    """What a host can run: a pure state machine."""

    def handle(self, event: E, *, now: Instant) -> list[A]:
        """The only way state moves."""
        ...

    def next_wakeup(self) -> Instant | None:
        """When it wants to be woken, if at all."""
        ...

    def snapshot(self) -> E:
        """An event that, handled by a fresh machine, makes it equal to this one."""
        ...


Machine: TypeAlias = Decides[Event, Action]
"""A node's."""

Deeds: TypeAlias = dict[type, Callable[[Any], None]]
"""How each kind of action is carried out."""

Observer: TypeAlias = Callable[[Instant, Event, list[Action]], None]
"""Who is told of each turn of a node after it."""


class NodePorts(NamedTuple):
    """Where a node touches the outside."""

    door: Door
    pages: Pages
    gates: Gates
    ledgers: Ledgers
    wardens: Wardens


class NodeWorld:
    """Carries out a node's decisions through the ports: the same deeds under both clocks."""

    def __init__(self, ports: NodePorts, stop: Callable[[str], None]) -> None:
        """Hold the ports; `stop` ends the loop that drives the host."""
        self._door, self._pages, self._gates, self._ledgers, self._wardens = ports
        self._stop = stop

    def deeds(self) -> Deeds:
        """What to do for each kind of action."""
        return {
            Grant: self._grant,
            Refuse: self._refuse,
            Revoke: self._revoke,
            Crowd: self._crowd,
            Roster: self._roster,
            Sit: self._sit,
            Rise: self._rise,
            Confirm: self._confirm,
            Signal: self._signal,
            Kill: self._kill,
            Suspend: self._suspend,
            Restore: self._restore,
            Watch: self._watch,
            Adjusted: self._adjusted,
            Placed: self._placed,
            MpsRestart: self._mps_restart,
            Stop: self._end,
        }

    def _grant(self, action: Grant) -> None:
        """The page is written before the peer hears of it, so that what it reads is already true."""
        terms = action.terms
        page = self._pages.publish(terms, action.neighbours)
        if terms.gpu >= 0:
            self._ledgers.grant(terms.gpu, terms.slot, terms.generation)
        if action.peer != NO_PEER:
            handles = (page, *self._gates.handles(terms.gpu), *self._ledgers.handles(terms.gpu))
            self._door.welcome(action.peer, action.tenant, terms, handles)

    def _refuse(self, action: Refuse) -> None:
        self._door.refuse(action.peer, action.reject)

    def _revoke(self, action: Revoke) -> None:
        self._pages.revoke(action.slot, action.generation)
        if action.peer != NO_PEER:
            self._door.farewell(action.peer, action.ending)

    def _crowd(self, action: Crowd) -> None:
        assert isinstance(action.where, int)  # only what is read from old journals is otherwise, and never carried out
        self._pages.crowd(action.where, action.neighbours)

    def _roster(self, action: Roster) -> None:
        self._gates.seat(action.gpu, action.rules)

    def _sit(self, action: Sit) -> None:
        self._gates.sit(action.gpu, action.seat)

    def _rise(self, action: Rise) -> None:
        self._gates.rise(action.gpu, action.slot)

    def _confirm(self, action: Confirm) -> None:
        self._door.confirm(action.peer, action.tenants, action.rules)

    def _signal(self, action: Signal) -> None:
        self._door.signal(action.peer, action.kind, action.why, again=action.again)

    def _kill(self, action: Kill) -> None:
        self._wardens.kill(action.gpu, action.slot, action.pid)

    def _suspend(self, action: Suspend) -> None:
        self._door.suspend(action.peer, action.why)

    def _restore(self, action: Restore) -> None:
        self._door.restore(action.peer)

    def _watch(self, action: Watch) -> None:
        """Nobody is told by the world: whoever observes the turns tells of it, as of everything."""

    def _adjusted(self, action: Adjusted) -> None:
        """As for a watch: the roster before it has done it."""

    def _placed(self, action: Placed) -> None:
        """As for a watch: the grant before it has done it."""

    def _mps_restart(self, action: MpsRestart) -> None:
        self._wardens.restart_mps(action.gpu)

    def _end(self, action: Stop) -> None:
        self._stop(action.reason)


class TurnHost(Generic[E, A]):
    """One machine, its journal and its world."""

    __slots__ = ("_deeds", "_journal", "_observe", "machine")

    def __init__(
        self,
        machine: Decides[E, A],
        deeds: Deeds,
        journal: Journal,
        observe: Callable[[Instant, E, list[A]], None] | None = None,
    ) -> None:
        """Bind them; nothing happens yet. Who observes sees each turn once it is done, and has no say in it."""
        self.machine = machine
        self._deeds = deeds
        self._journal = journal
        self._observe = observe

    def turn(self, event: E, now: Instant) -> Instant | None:
        """One turn; returns when the machine wants to be woken."""
        machine = self.machine
        actions = machine.handle(event, now=now)
        full = self._journal.append(now, event, actions)
        for action in actions:
            self._deeds[type(action)](action)
        if self._observe is not None:
            self._observe(now, event, actions)
        if full:
            self._journal.begin_segment(now, machine.snapshot())
        return machine.next_wakeup()


class Host(TurnHost[Event, Action]):
    """A node's."""

    __slots__ = ()


class ClusterHost(TurnHost[ClusterEvent, ClusterAction]):
    """A cluster's."""

    __slots__ = ()

    def __init__(
        self,
        machine: Decides[ClusterEvent, ClusterAction],
        door: ClusterDoor,
        journal: Journal,
        observe: Callable[[Instant, ClusterEvent, list[ClusterAction]], None] | None = None,
    ) -> None:
        """Bind them; nothing happens yet."""
        deeds: Deeds = {StartJob: door.start, StopJob: door.stop, AckEnd: door.acknowledge, Answer: door.answer}
        super().__init__(machine, deeds, journal, observe)


class ServerDecides(Protocol):
    """What a server's host can run: a pure state machine."""

    def handle(self, event: ServerEvent, *, now: Instant) -> list[ServerAction]:
        """The only way state moves."""
        ...

    def next_wakeup(self) -> Instant | None:
        """When it wants to be woken, if at all."""
        ...


class ServerHost:
    """One server's machine and its world: the same deeds under both clocks.

    Nothing is journaled: a request lives as long as its connection, and both end with the process.
    """

    __slots__ = ("_desk", "_runtime", "machine")

    def __init__(self, machine: ServerDecides, runtime: Runtime, desk: Desk) -> None:
        """Bind them; nothing happens yet."""
        self.machine = machine
        self._runtime = runtime
        self._desk = desk

    def turn(self, event: ServerEvent, now: Instant) -> Instant | None:
        """One turn; returns when the machine wants to be woken."""
        for action in self.machine.handle(event, now=now):
            if isinstance(action, Run):
                self._runtime.start(action)
            elif isinstance(action, TurnAway):
                self._desk.turn_away(action)
            elif isinstance(action, Release):
                self._runtime.release(action.model, action.key)
            else:
                assert isinstance(action, Drained)
                self._desk.drained()
        return self.machine.next_wakeup()


class Divergence(Exception):  # noqa: N818  a finding of replay, not an error of ours
    """A turn whose recorded actions are not the ones the machine takes now."""

    def __init__(self, number: int, turn: Turn | ClusterTurn, actual: list[Any]) -> None:
        """Keep both sides for the report."""
        self.number = number
        self.turn = turn
        self.actual = actual
        super().__init__(f"turn {number}")


def _to_the_letter(recorded: list[Any], actual: list[Any]) -> bool:
    return recorded == actual


def replay(
    machine: Decides[Any, Any],
    turns: Iterable[Turn] | Iterable[ClusterTurn],
    same: Callable[[list[Any], list[Any]], bool] = _to_the_letter,
) -> int:
    """Handle every recorded event again; raises `Divergence` at the first turn that goes another way.

    Returns the number of turns. `cotenant replay` judges to the letter; a node that recovers asks only that the same
    promises were made, so that a new version may use other words.
    """
    number = 0
    for turn in turns:
        number += 1
        actual = machine.handle(turn.event, now=turn.now)
        if not same(turn.actions, actual):
            raise Divergence(number, turn, actual)
    return number


def same_promises(recorded: list[Action], actual: list[Action]) -> bool:
    """Whether tenants were promised the same."""
    return promises(recorded) == promises(actual)


class Redoes(Protocol):
    """A cluster's machine, as far as one that recovers asks it."""

    def redo(self, event: ClusterEvent, recorded: Sequence[ClusterAction], *, now: Instant) -> list[ClusterAction]:
        """Take in an event that is on record, deciding as was decided then."""
        ...


def recover_cluster(machine: Redoes, turns: Iterable[ClusterTurn]) -> int:
    """Do again what is on record; raises `Divergence` where a node was told otherwise. Returns the number of turns."""
    number = 0
    for turn in turns:
        number += 1
        actual = machine.redo(turn.event, turn.actions, now=turn.now)
        if _orders(turn.actions) != _orders(actual):
            raise Divergence(number, turn, actual)
    return number


def _orders(actions: Iterable[ClusterAction]) -> list[tuple[type, object, object]]:
    """What nodes were told, but for the words; answers are not known of any more by who asked."""
    return [
        (type(one), (one.node, one.attempt), one.gpus if isinstance(one, StartJob) else None)
        for one in actions
        if not isinstance(one, Answer)
    ]
