"""A node with devices to protect, small enough that tests can list all its actions."""

from typing import Any

import msgspec

from cotenant.gate.grant import Kind
from cotenant.gate.rules import GateEntry
from cotenant.node.model.action import Action, SetNeighbourCount, SetTenantTable
from cotenant.node.model.event import Event, NodeSettings, NodeStarted, TenantJoined, TenantResumed, TimerFired
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import ExitPhase, Lifecycle, ProtectLimits
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.state.node import NodeMachine

LIMITS = ProtectLimits(
    period_ns=1,
    samples=2,
    over_samples=2,
    calm_samples=2,
    init_samples=1,
    backoff_ns=500,
    drain_ns=20,
    grace_ns=100,
    fault_grace_ns=30,
    obey_ns=10,
    make_room_ns=150,
    online_first_ns=80,
)
WEB = TenantSpec(Kind.ONLINE, 2, "web", memory_bytes=60)
JOB = TenantSpec(Kind.OFFLINE, 7, "job", memory_bytes=60)
MINOR = TenantSpec(Kind.OFFLINE, 9, "minor", memory_bytes=30)


class ProtectedNode:
    """A state machine whose invariants are checked after every turn, and whose snapshot must always restore it."""

    def __init__(self, gpus: tuple[Gpu, ...] = (Gpu("a", 100),), limits: ProtectLimits = LIMITS) -> None:
        self.machine = NodeMachine()
        self.handle(NodeStarted(NodeSettings(4, 1000, gpus=gpus, limits=limits), "1", 0), 0)

    @property
    def turn(self) -> int:
        return self.machine.turn

    def handle(self, event: Event, now: int) -> list[Action]:
        """Handle an event and return its actions, without changes of neighbour counts."""
        actions = self.machine.handle(event, now=now)
        self.machine.check()
        restored = NodeMachine()
        assert restored.handle(self.machine.snapshot(), now=now) == []
        restored.check()
        assert restored.snapshot() == self.machine.snapshot()
        assert restored.next_wakeup() == self.machine.next_wakeup()
        return [action for action in actions if not isinstance(action, SetNeighbourCount)]

    def join(self, peer: int, spec: TenantSpec = JOB, now: int = 1, **changes: Any) -> list[Action]:
        requested = msgspec.structs.replace(spec, **changes)
        return self.handle(TenantJoined(peer, 10 + peer, 1000, requested), now)

    def wake(self, now: int) -> list[Action]:
        """Fire the timer, which must be due at this instant."""
        assert self.machine.next_wakeup() == now
        return self.handle(TimerFired(), now)

    def restart(self, now: int) -> list[Action]:
        return [
            action
            for action in self.handle(NodeStarted(self.machine.settings, "1", 0), now)
            if not isinstance(action, SetTenantTable)
        ]

    def resume(self, peer: int, slot: int, now: int) -> list[Action]:
        held = self.machine.registry.holders[slot]
        return self.handle(TenantResumed(peer, held.pid, held.uid, slot, held.grant.generation), now)

    def phase(self, slot: int = 0) -> ExitPhase:
        return self.lifecycle(slot).phase

    def lifecycle(self, slot: int = 0) -> Lifecycle:
        return self.machine.registry.holders[slot].lifecycle


def entry(slot: int, spec: TenantSpec, *, paused: bool = False, generation: int = 1) -> GateEntry:
    return GateEntry(slot, generation, spec.priority, spec.kind is Kind.ONLINE, paused)


def ending(slot: int, generation: int = 1) -> GateEntry:
    """Return the table entry of a terminating tenant, which has the lowest priority."""
    return GateEntry(slot, generation, 9, online=False, ending=True)
