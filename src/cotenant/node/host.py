"""Carries out the node's decisions through its ports, under any clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from cotenant.node.model.action import (
    NO_PEER,
    Action,
    Confirm,
    IssueGrant,
    KillTenant,
    RecordPlacement,
    Refuse,
    RemoveEntry,
    ReportGpuHealth,
    RestartMps,
    RestoreTenant,
    Revoke,
    SetNeighbourCount,
    SetOnlineShare,
    SetTenantTable,
    SignalTenant,
    Stop,
    SuspendTenant,
    UpsertEntry,
    promises,
)
from cotenant.node.model.event import Event
from cotenant.node.ports import Enforcer, Gates, Ledgers, Listener, Pages
from cotenant.runner.host import Effects, StateMachine, TurnHost
from cotenant.units.dispatch import handler
from cotenant.units.instant import Instant

Machine: TypeAlias = StateMachine[Event, Action]
"""The state machine of a node."""

Observer: TypeAlias = Callable[[Instant, Event, list[Action]], None]
"""A function that is called after each turn of a node."""


class NodePorts(NamedTuple):
    """The ports of a node."""

    listener: Listener
    pages: Pages
    gates: Gates
    ledgers: Ledgers
    enforcer: Enforcer


class NodeEffects:
    """Carries out the node's actions through the ports, in the same way under both clocks."""

    def __init__(self, ports: NodePorts, stop: Callable[[str], None]) -> None:
        """Bind the ports; `stop` ends the loop that drives the host."""
        self._listener, self._pages, self._gates, self._ledgers, self._enforcer = ports
        self._stop = stop

    def effects(self) -> Effects:
        """Return the effect of each type of action."""
        return dict(
            (
                handler(IssueGrant, self._grant),
                handler(Refuse, self._refuse),
                handler(Revoke, self._revoke),
                handler(SetNeighbourCount, self._neighbour_change),
                handler(SetTenantTable, self._set_table),
                handler(UpsertEntry, self._upsert),
                handler(RemoveEntry, self._remove),
                handler(Confirm, self._confirm),
                handler(SignalTenant, self._signal),
                handler(KillTenant, self._kill),
                handler(SuspendTenant, self._suspend),
                handler(RestoreTenant, self._restore),
                handler(ReportGpuHealth, self._watch),
                handler(SetOnlineShare, self._adjusted),
                handler(RecordPlacement, self._placed),
                handler(RestartMps, self._mps_restart),
                handler(Stop, self._end),
            )
        )

    def _grant(self, action: IssueGrant) -> None:
        """Write the page before the peer is notified, so that the peer reads the new grant."""
        grant = action.grant
        neighbours = (action.neighbours, *action.more_neighbours)
        pages = [self._pages.publish(grant.on(gpu), count) for gpu, count in zip(grant.places, neighbours, strict=True)]
        for gpu in grant.gpus:
            self._ledgers.grant(gpu, grant.slot, grant.generation)
        if action.peer != NO_PEER:
            handles = (pages[0], *self._gates.handles(grant.gpu), *self._ledgers.handles(grant.gpu))
            self._listener.welcome(action.peer, action.tenant, grant, handles)

    def _refuse(self, action: Refuse) -> None:
        self._listener.refuse(action.peer, action.reject)

    def _revoke(self, action: Revoke) -> None:
        self._pages.revoke(action.slot, action.generation)
        if action.peer != NO_PEER:
            self._listener.farewell(action.peer, action.ending)
        self._listener.released(action.slot, action.generation)

    def _neighbour_change(self, action: SetNeighbourCount) -> None:
        assert isinstance(action.where, int)  # only old journals have slots here, and their actions are not carried out
        self._pages.set_neighbour_count(action.where, action.neighbours)

    def _set_table(self, action: SetTenantTable) -> None:
        self._gates.set_table(action.gpu, action.rules)

    def _upsert(self, action: UpsertEntry) -> None:
        self._gates.upsert(action.gpu, action.entry)

    def _remove(self, action: RemoveEntry) -> None:
        self._gates.remove(action.gpu, action.slot)

    def _confirm(self, action: Confirm) -> None:
        self._listener.confirm(action.peer, action.tenants, action.rules)

    def _signal(self, action: SignalTenant) -> None:
        self._listener.signal(action.peer, action.kind, action.why, may_restart=action.may_restart)

    def _kill(self, action: KillTenant) -> None:
        self._enforcer.kill(action.gpu, action.slot, action.pid, keep_parent=action.keep_parent)

    def _suspend(self, action: SuspendTenant) -> None:
        self._listener.suspend(action.peer, action.why)

    def _restore(self, action: RestoreTenant) -> None:
        self._listener.restore(action.peer)

    def _watch(self, action: ReportGpuHealth) -> None:
        """Do nothing; observers of the turn log the change."""

    def _adjusted(self, action: SetOnlineShare) -> None:
        """Do nothing; the tenant table of the same turn puts the share into effect."""

    def _placed(self, action: RecordPlacement) -> None:
        """Do nothing; the grant of the same turn put the placement into effect."""

    def _mps_restart(self, action: RestartMps) -> None:
        self._enforcer.restart_mps(action.gpu)

    def _end(self, action: Stop) -> None:
        self._stop(action.reason)


class NodeHost(TurnHost[Event, Action]):
    """The host of a node's state machine."""

    __slots__ = ()


def same_promises(recorded: list[Action], actual: list[Action]) -> bool:
    """Return whether two lists of actions grant and revoke the same."""
    return promises(recorded) == promises(actual)
