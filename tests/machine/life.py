"""What does a small model of a node believe, by the actions that it is told of?"""

from typing import NamedTuple

import msgspec
from hypothesis.stateful import RuleBasedStateMachine

from cotenant.domain.action import (
    NO_PEER,
    Action,
    Crowd,
    Grant,
    Revoke,
    Rise,
    Roster,
    Sit,
)
from cotenant.domain.control import Dial
from cotenant.domain.event import (
    Event,
    NodeSettings,
    NodeStarted,
    ObjectiveChanged,
    PriorityChanged,
    ShareChanged,
    TenantJoined,
)
from cotenant.domain.gate import GateRules
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.tenant import Terms
from cotenant.format.journal import Turn
from cotenant.machine.node import NodeMachine
from tests.machine.worlds import DEVICES


class Holder(NamedTuple):
    """What the model knows of a tenant; everything else it asks the actions for."""

    pid: int
    name: str
    terms: Terms
    peer: int
    paused: bool = False


class Life(RuleBasedStateMachine):
    """The machine beside a small model of what tenants were promised, and beside twins made from its snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.machines = [NodeMachine()]
        self.turns: list[Turn] = []
        self.segment: list[Turn] = []
        self.held: dict[int, Holder] = {}
        self.neighbours: dict[int, int] = {}
        self.rosters: dict[int, GateRules] = {}
        self.in_force = GateRules()
        self.dials: dict[int, Dial] = {}
        self.granted_to: dict[tuple[int, int], int] = {}
        self.ended: set[tuple[int, int]] = set()
        self.sequence = 100
        self.settings = NodeSettings(3, 20, 0, "predict", "reserve", DEVICES[2])
        self.tell(NodeStarted(self.settings, "1", 0))

    # -- telling, and what the model makes of the answer ----------------------------------------------------------

    def tell(self, event: Event) -> list[Action]:
        actions, *others = [machine.handle(event, now=self.now) for machine in self.machines]
        assert all(other == actions for other in others)
        for machine in self.machines:
            machine.check()
        turn = Turn(self.now, event, actions)
        self.turns.append(turn)
        self.segment.append(turn)
        told = [action for action in actions if isinstance(action, Roster | Sit | Rise)]
        assert told == actions[: len(told)], "whoever hears of a change finds it made"
        assert len({roster.gpu for roster in told}) == len(told)
        for roster in told:
            self._believe_roster(roster)
        for action in actions:
            assert action.cause == self.machines[0].turn
            if isinstance(action, Grant):
                self._believe_grant(action, event)
                self.neighbours[action.terms.slot] = action.neighbours
            elif isinstance(action, Crowd):
                here = [slot for slot, holder in self.held.items() if holder.terms.gpu == action.where]
                assert here
                for slot in here:  # nobody is told what it knows
                    assert self.neighbours[slot] != action.neighbours
                    self.neighbours[slot] = action.neighbours
            elif isinstance(action, Revoke):
                self._believe_revoke(action)
        self.trim_dials()
        return actions[len(told) :]

    def _believe_roster(self, action: Roster | Sit | Rise) -> None:
        if isinstance(action, Roster):
            self.rosters[action.gpu] = action.rules
            return
        rules = self.rosters[action.gpu]
        seats = {seat.slot: seat for seat in rules.seats}
        if isinstance(action, Sit):
            assert seats.get(action.seat.slot) != action.seat
            seats[action.seat.slot] = action.seat
        else:
            del seats[action.slot]
        self.rosters[action.gpu] = msgspec.structs.replace(rules, seats=tuple(seats[slot] for slot in sorted(seats)))

    def _believe_grant(self, action: Grant, event: Event) -> None:
        slot, generation = action.terms.slot, action.terms.generation
        known = self.held.get(slot)
        if not isinstance(event, TenantJoined):
            assert known is not None
            changed = {"priority": event.priority} if isinstance(event, PriorityChanged) else {}
            changed |= {"share_ppm": event.share_ppm or 0} if isinstance(event, ShareChanged) else {}
            changed |= {"slo_ns": event.slo_ns} if isinstance(event, ObjectiveChanged) else {}
            assert (known.name, msgspec.structs.replace(known.terms, **changed)) == (action.tenant, action.terms)
            self.held[slot] = known._replace(terms=action.terms, peer=known.peer if changed else action.peer)
            return
        assert known is None
        assert action.peer == event.peer
        assert slot < self.settings.slots
        assert all(generation > later for where, later in self.granted_to if where == slot)
        assert all(holder.name != action.tenant for holder in self.held.values())
        self.granted_to[slot, generation] = event.pid
        self.held[slot] = Holder(event.pid, action.tenant, action.terms, action.peer)
        if self.settings.admit == "reserve" and action.terms.gpu >= 0:
            here = [holder.terms for holder in self.held.values() if holder.terms.gpu == action.terms.gpu]
            if action.terms.memory_bytes:
                assert sum(terms.memory_bytes for terms in here) <= self.settings.gpus[action.terms.gpu].memory_bytes
            if action.terms.share_ppm:
                assert sum(terms.share_ppm for terms in here) <= WHOLE_PPM

    def _believe_revoke(self, action: Revoke) -> None:
        key = (action.slot, action.generation)
        holder = self.held.pop(action.slot)
        del self.neighbours[action.slot]
        assert (holder.name, holder.terms.generation) == (action.tenant, action.generation)
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

    def trim_dials(self) -> None:
        """Nothing is said of a device without objectives, nor of a tenant without an equal that has one."""
        kept = self.kept_devices()
        terms = [holder.terms for holder in self.held.values() if holder.terms.slo_ns]
        places = [(one.gpu, one.priority) for one in terms]
        equals = {one.slot: one.gpu for one in terms if places.count((one.gpu, one.priority)) > 1}
        for gpu, dial in list(self.dials.items()):
            shares = tuple((slot, share_ppm) for slot, share_ppm in dial.shares if equals.get(slot) == gpu)
            self.dials[gpu] = msgspec.structs.replace(dial, shares=shares)
            if gpu not in kept:
                del self.dials[gpu]

    def kept_devices(self) -> set[int]:
        """Devices with an objective to keep, if any are kept."""
        if not self.settings.control.enabled:
            return set()
        return {holder.terms.gpu for holder in self.held.values() if holder.terms.slo_ns and holder.terms.gpu >= 0}
