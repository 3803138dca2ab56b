"""A small model of a node's state, derived from its actions."""

from typing import NamedTuple

import msgspec
from hypothesis.stateful import RuleBasedStateMachine

from cotenant.gate.grant import Grant
from cotenant.gate.rules import GateRules
from cotenant.node.journal import NodeTurn
from cotenant.node.model.action import (
    NO_PEER,
    Action,
    IssueGrant,
    RemoveEntry,
    Revoke,
    SetNeighbourCount,
    SetTenantTable,
    UpsertEntry,
)
from cotenant.node.model.control import OnlineShareSetpoint
from cotenant.node.model.event import (
    Event,
    NodeSettings,
    NodeStarted,
    ObjectiveChanged,
    PriorityChanged,
    ShareChanged,
    TenantJoined,
)
from cotenant.node.state.node import NodeMachine
from cotenant.units.share import WHOLE_PPM
from tests.support.node_setup import DEVICES


class Holder(NamedTuple):
    """The model's state of a tenant; everything else is derived from the actions."""

    pid: int
    name: str
    grant: Grant
    peer: int
    paused: bool = False


class Life(RuleBasedStateMachine):
    """The state machine, a small model of its grants, and copies restored from its snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.machines = [NodeMachine()]
        self.turns: list[NodeTurn] = []
        self.segment: list[NodeTurn] = []
        self.held: dict[int, Holder] = {}
        self.neighbours: dict[int, dict[int, int]] = {}  # by slot and device
        self.tables: dict[int, GateRules] = {}
        self.in_force = GateRules()
        self.setpoints: dict[int, OnlineShareSetpoint] = {}
        self.granted_to: dict[tuple[int, int], int] = {}
        self.ended: set[tuple[int, int]] = set()
        self.sequence = 100
        self.settings = NodeSettings(3, 20, 0, "predict", "reserve", DEVICES[2])
        self.tell(NodeStarted(self.settings, "1", 0))

    # -- events, and the model's state after them -----------------------------------------------------------------

    def tell(self, event: Event) -> list[Action]:
        actions, *others = [machine.handle(event, now=self.now) for machine in self.machines]
        assert all(other == actions for other in others)
        for machine in self.machines:
            machine.check()
        turn = NodeTurn(self.now, event, actions)
        self.turns.append(turn)
        self.segment.append(turn)
        reported = [action for action in actions if isinstance(action, SetTenantTable | UpsertEntry | RemoveEntry)]
        assert reported == actions[: len(reported)], "table changes precede all other actions"
        assert len({table.gpu for table in reported}) == len(reported)
        for table in reported:
            self._apply_table(table)
        for action in actions:
            assert action.cause == self.machines[0].turn
            if isinstance(action, IssueGrant):
                self._apply_grant(action, event)
                counts = (action.neighbours, *action.more_neighbours)
                self.neighbours[action.grant.slot] = dict(zip(action.grant.places, counts, strict=True))
            elif isinstance(action, SetNeighbourCount):
                assert isinstance(action.where, int)
                slots = [slot for slot, holder in self.held.items() if action.where in holder.grant.places]
                assert slots
                for slot in slots:  # only changes are reported
                    assert self.neighbours[slot][action.where] != action.neighbours
                    self.neighbours[slot][action.where] = action.neighbours
            elif isinstance(action, Revoke):
                self._apply_revoke(action)
        self.trim_setpoints()
        return actions[len(reported) :]

    def _apply_table(self, action: SetTenantTable | UpsertEntry | RemoveEntry) -> None:
        if isinstance(action, SetTenantTable):
            self.tables[action.gpu] = action.rules
            return
        rules = self.tables[action.gpu]
        entries = {entry.slot: entry for entry in rules.entries}
        if isinstance(action, UpsertEntry):
            assert entries.get(action.entry.slot) != action.entry
            entries[action.entry.slot] = action.entry
        else:
            del entries[action.slot]
        self.tables[action.gpu] = msgspec.structs.replace(
            rules, entries=tuple(entries[slot] for slot in sorted(entries))
        )

    def _apply_grant(self, action: IssueGrant, event: Event) -> None:
        slot, generation = action.grant.slot, action.grant.generation
        holder = self.held.get(slot)
        if not isinstance(event, TenantJoined):
            assert holder is not None
            changed = {"priority": event.priority} if isinstance(event, PriorityChanged) else {}
            changed |= {"share_ppm": event.share_ppm or 0} if isinstance(event, ShareChanged) else {}
            changed |= {"slo_ns": event.slo_ns} if isinstance(event, ObjectiveChanged) else {}
            assert (holder.name, msgspec.structs.replace(holder.grant, **changed)) == (action.tenant, action.grant)
            self.held[slot] = holder._replace(grant=action.grant, peer=holder.peer if changed else action.peer)
            return
        assert holder is None
        assert action.peer == event.peer
        assert slot < self.settings.slots
        assert all(generation > earlier for granted_slot, earlier in self.granted_to if granted_slot == slot)
        assert all(other.name != action.tenant for other in self.held.values())
        self.granted_to[slot, generation] = event.pid
        self.held[slot] = Holder(event.pid, action.tenant, action.grant, action.peer)
        for gpu in action.grant.gpus if self.settings.admit == "reserve" else ():
            grants = [other.grant for other in self.held.values() if gpu in other.grant.gpus]
            if action.grant.memory_bytes:
                assert sum(grant.memory_bytes for grant in grants) <= self.settings.gpus[gpu].memory_bytes
            if action.grant.share_ppm:
                assert sum(grant.share_ppm for grant in grants) <= WHOLE_PPM

    def _apply_revoke(self, action: Revoke) -> None:
        key = (action.slot, action.generation)
        holder = self.held.pop(action.slot)
        del self.neighbours[action.slot]
        assert (holder.name, holder.grant.generation) == (action.tenant, action.generation)
        assert key in self.granted_to
        assert key not in self.ended
        self.ended.add(key)

    def away(self) -> list[Holder]:
        return [holder for _, holder in sorted(self.held.items()) if holder.peer == NO_PEER]

    def connected(self) -> list[Holder]:
        return [holder for _, holder in sorted(self.held.items()) if holder.peer != NO_PEER]

    def new_number(self) -> int:
        self.sequence += 1
        return self.sequence

    def trim_setpoints(self) -> None:
        """Remove setpoints of devices without objectives, and shares of tenants without an equal that has one."""
        devices = self.kept_devices()
        grants = [holder.grant for holder in self.held.values() if holder.grant.slo_ns]
        places = [(gpu, grant) for grant in grants for gpu in grant.gpus]
        keys = [(gpu, grant.priority) for gpu, grant in places]
        equals = {(gpu, grant.slot) for gpu, grant in places if keys.count((gpu, grant.priority)) > 1}
        for gpu, setpoint in list(self.setpoints.items()):
            shares = tuple((slot, share_ppm) for slot, share_ppm in setpoint.shares if (gpu, slot) in equals)
            self.setpoints[gpu] = msgspec.structs.replace(setpoint, shares=shares)
            if gpu not in devices:
                del self.setpoints[gpu]

    def kept_devices(self) -> set[int]:
        """Return the devices with an objective, if control is enabled."""
        if not self.settings.control.enabled:
            return set()
        return {gpu for holder in self.held.values() if holder.grant.slo_ns for gpu in holder.grant.gpus}
