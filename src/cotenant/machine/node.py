"""What does a node do about what it is told? Every event goes to whoever knows about it; what they decide is done.

The tenants and their slots are in the roll, ends in exits, going aside in suspensions, who gives way and who waits in
pressure, the state of devices in devices, and what people want in wishes.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from cotenant.domain.action import NO_PEER, Action, Placed, Refuse, Stop
from cotenant.domain.event import (
    DEPARTED_LIMIT,
    Event,
    EvictAsked,
    GpuBack,
    GpuFaulted,
    GpuLost,
    GpuSeen,
    GpusFound,
    MemoryWanted,
    MpsSeen,
    NodeRestored,
    NodeStarted,
    NodeStopping,
    ObjectiveChanged,
    PeerLost,
    PriorityChanged,
    QuitAsked,
    RulesChanged,
    ShareChanged,
    SharesAdjusted,
    TenantDrained,
    TenantFaulted,
    TenantHangs,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantRestored,
    TenantResumed,
    TenantsPaused,
    TenantSuspended,
    Woke,
)
from cotenant.domain.instant import NEVER, Instant
from cotenant.domain.plan import Plan, Reason, Reject
from cotenant.domain.protect import GpuWatch, Stage, Standing
from cotenant.domain.tenant import Kind, Tenant, TenantView
from cotenant.format.quantity import format_duration
from cotenant.machine.devices import Devices
from cotenant.machine.dials import Dials
from cotenant.machine.exits import ENDING, Exits
from cotenant.machine.invariants import check, plan_of
from cotenant.machine.pressure import Pressure
from cotenant.machine.roll import NO_GPU, Roll
from cotenant.machine.rooms import Rooms
from cotenant.machine.seats import Seats
from cotenant.machine.suspensions import Suspensions
from cotenant.machine.wishes import Wishes


class NodeMachine(Roll):
    """Events in, actions out. Everything it knows came from `handle`."""

    def __init__(self) -> None:
        """Know nothing; the first event says how the node is set up."""
        super().__init__()
        exits = self._exits = Exits(self)
        suspensions = self._suspensions = Suspensions(self, exits)
        pressure = self._pressure = Pressure(self, exits, suspensions)
        devices = self._devices = Devices(self, exits, suspensions, pressure)
        wishes = Wishes(self, exits)
        dials = self._dials = Dials(self)
        self._handlers: dict[type, Any] = {
            NodeStarted: self._started,
            NodeRestored: self._restored,
            TenantJoined: self._joined,
            TenantResumed: self._resumed,
            TenantLeft: self._left,
            PeerLost: self._lost,
            TenantsPaused: wishes.paused,
            PriorityChanged: wishes.reprioritized,
            ShareChanged: wishes.resized,
            ObjectiveChanged: wishes.reaimed,
            RulesChanged: wishes.ruled,
            SharesAdjusted: dials.adjusted,
            EvictAsked: wishes.evicted,
            QuitAsked: self._quit,
            GpusFound: self._found,
            GpuSeen: devices.seen,
            GpuFaulted: devices.device_faulted,
            GpuLost: devices.lost,
            GpuBack: devices.back,
            MpsSeen: devices.mps,
            TenantFaulted: devices.tenant_faulted,
            TenantHangs: devices.hangs,
            MemoryWanted: pressure.wanted,
            TenantDrained: self._drained,
            TenantSuspended: suspensions.suspended,
            TenantRestored: suspensions.restored,
            TenantRestarted: self._restarted,
            Woke: self._woke,
            NodeStopping: self._stopping,
        }

    def handle(self, event: Event, *, now: Instant) -> list[Action]:
        """Take one event in; the answer is what must be done, in this order."""
        self.turn += 1
        actions: list[Action] = self._handlers[type(event)](event, now)
        if not self._devices.is_well or self._pressure.waiting:
            actions = [*actions, *self._settle(event, now)]
        if self.seats.dials and self.seats.stirred:
            self._dials.settle()
        return [*self.seats.changes(self.turn, self.rules), *actions] if self.seats.stirred else actions

    def _settle(self, event: Event, now: Instant) -> list[Action]:
        """What the event led to besides: room for those who wait, and devices that must be or are rid of tenants."""
        if isinstance(event, NodeRestored):  # whatever it led to, it led to before
            return []
        return [*self._devices.settle(now), *self._pressure.settle(now)]

    def next_wakeup(self) -> Instant | None:
        """The end of the grace or of the patience of an idle node, the first deadline of a tenant, or of a newcomer."""
        node: Instant | None = None
        if self.away_until != NEVER:
            node = self.away_until
        elif self.idle_since != NEVER and self.settings.idle_exit_ns:
            node = self.idle_since + self.settings.idle_exit_ns
        if not self.deadlines and not self._pressure.waiting:
            return node
        due = [*self.deadlines.values(), *(one.until_ns for one in self._pressure.waiting)]
        return min(due if node is None else [node, *due])

    def tenants(self) -> list[TenantView]:
        """Everybody who holds a slot, by slot."""
        return [TenantView(self.holders[slot], slot in self.peer_of) for slot in sorted(self.holders)]

    def watches(self) -> list[GpuWatch]:
        """How each device is doing, by its number."""
        return list(self._devices.watches)

    def is_moved_by(self, event: GpuSeen, now: Instant) -> bool:
        """Whether a sample is worth a turn."""
        return self._devices.is_moved_by(event, now)

    def snapshot(self) -> NodeRestored:
        """The whole state as the event that restores it."""
        return NodeRestored(
            self.settings,
            self.turn,
            tuple(self.generations),
            tuple((self.peer_of.get(slot, NO_PEER), self.holders[slot]) for slot in sorted(self.holders)),
            tuple(self.departed),
            self.away_until,
            self.idle_since,
            self.rules,
            tuple(self._devices.watches),
            tuple(self._pressure.waiting),
            tuple(one for _, one in sorted(self._devices.online_first.items())),
            tuple(dial for _, dial in sorted(self.seats.dials.items())),
        )

    def plan(self) -> Plan:
        """Who holds what of which device."""
        return plan_of(self)

    def check(self) -> None:
        """Raise `InvariantError` with the story if any promise of this machine is broken."""
        check(self, self._devices, self._pressure)

    # -- the node --------------------------------------------------------------------------------------------------

    def _started(self, event: NodeStarted, now: Instant) -> list[Action]:
        """Everybody known is away until it resumes: their connections died with the process before.

        Their terms are granted anew to nobody in particular, so that the pages say what the journal says. Rules that
        were changed while the node ran outlive it, unless the new one was set up with others than the one before. Who
        was about to end or to go aside goes on with that once its parent is there to be told; who waited to join is
        gone.
        """
        if event.settings.gate != self.settings.gate:
            self.rules = event.settings.gate
        before = self.settings.gpus
        self.settings = event.settings
        self.peer_of.clear()
        self.slot_of_peer.clear()
        self._pressure.waiting.clear()
        for slot in self.deadlines:
            tenant = self.holders[slot]
            standing = msgspec.structs.replace(tenant.standing, until_ns=NEVER)
            self.holders[slot] = msgspec.structs.replace(tenant, standing=standing)
        self.away_until = now + event.settings.grace_ns if self.holders else NEVER
        self.idle_since = NEVER if self.holders else now
        self.lay_out()
        self.say_all()
        watched = self._devices.started(before, now)
        return [*(self.grant(NO_PEER, self.holders[slot]) for slot in sorted(self.holders)), *watched]

    def _restored(self, event: NodeRestored, now: Instant) -> list[Action]:
        del now
        self.settings = event.settings
        self.turn = event.turn
        self.departed = deque(event.departed, maxlen=DEPARTED_LIMIT)
        self.holders = {tenant.terms.slot: tenant for _, tenant in event.tenants}
        self.peer_of = {tenant.terms.slot: peer for peer, tenant in event.tenants if peer != NO_PEER}
        self.slot_of_peer = {peer: slot for slot, peer in self.peer_of.items()}
        self.generations = list(event.generations)
        self.away_until = event.away_until_ns
        self.idle_since = event.idle_since_ns
        self.rules = event.settings.gate if event.gate is None else event.gate
        self._pressure.waiting = list(event.waiting)
        self.seats = Seats((), event.dials)
        self.lay_out()
        self._devices.restore(event.watches, event.online_first)
        return []

    def _found(self, event: GpusFound, now: Instant) -> list[Action]:
        del now
        known = self.settings.gpus
        self.settings = msgspec.structs.replace(self.settings, gpus=(*known, *event.gpus))
        self.rooms = Rooms(self.settings, self.holders.values(), self.rules)
        self._devices.found(len(event.gpus))
        for gpu in range(len(known), len(self.settings.gpus)):
            self.seats.say_all(gpu)
        return []

    def _woke(self, event: Woke, now: Instant) -> list[Action]:
        del event
        actions: list[Action] = []
        for slot in sorted(slot for slot, until_ns in self.deadlines.items() if now >= until_ns):
            actions += self._due(self.holders[slot], now)
        if self.away_until != NEVER and now >= self.away_until:
            self.away_until = NEVER
            away = [slot for slot in sorted(self.holders) if slot not in self.peer_of]
            for slot in away:
                actions += self._exits.given_up(self.holders[slot])
                actions += self.release(slot, "lost: did not come back in time", NO_PEER, now)
        patience = self.settings.idle_exit_ns
        if patience and self.idle_since != NEVER and now >= self.idle_since + patience:
            self.idle_since = NEVER
            actions.append(Stop(self.turn, "idle: no tenant for as long as node.idle_exit allows"))
        return actions

    def _stopping(self, event: NodeStopping, now: Instant) -> list[Action]:
        """Who is away stays awaited: the next start begins their grace anew."""
        del now
        self.idle_since = NEVER
        return [Stop(self.turn, event.reason)]

    # -- coming and going ------------------------------------------------------------------------------------------

    def _joined(self, event: TenantJoined, now: Instant) -> list[Action]:
        spec, peer = event.spec, event.peer
        if peer in self.slot_of_peer or (self._pressure.waiting and self._pressure.is_waiting(peer)):
            return self._refuse_twice(peer)
        if not self.free:
            detail = f"all {self.settings.slots} slots are taken; wait for a tenant to leave or raise node.slots"
            return self.refuse(peer, Reason.NO_SLOT, detail)
        if spec.name in self.slot_of_name:
            detail = f"the name {spec.name!r} is taken by the tenant in slot {self.slot_of_name[spec.name]}"
            return self.refuse(peer, Reason.NAME_TAKEN, detail)
        if not self.settings.gpus:
            return self.admit(event, NO_GPU, now)
        is_easy = self._devices.is_well and not self._pressure.waiting and not self.aside
        barred = {} if is_easy else self._devices.bars(spec.kind, now)
        choice = self.choose(spec, barred)
        if isinstance(choice, Reject):
            makes_room = spec.kind is Kind.ONLINE and spec.memory_bytes > 0 and choice.reason is Reason.NO_MEMORY
            waits = self._pressure.make_room(event, now, barred) if makes_room else None
            return [Refuse(self.turn, peer, choice)] if waits is None else waits
        if choice.short_ppm and self.settings.refuse_unmet and spec.slo_ns and spec.use is not None:
            detail = f"its objective of {format_duration(spec.slo_ns)} is kept on no GPU by prediction: {choice.why}"
            return self.refuse(peer, Reason.NO_OBJECTIVE, detail)
        actions = self.admit(event, choice.gpu, now)
        if choice.why:
            slot = self.slot_of_peer[peer]
            actions.append(Placed(self.turn, slot, self.generations[slot], choice.gpu, choice.why, choice.short_ppm))
        if not is_easy:
            self._devices.came(self.holders[self.slot_of_peer[peer]])
        return actions

    def _resumed(self, event: TenantResumed, now: Instant) -> list[Action]:
        slot, generation = event.slot, event.generation
        tenant = self.holders.get(slot)
        if event.peer in self.slot_of_peer or self._pressure.is_waiting(event.peer):
            return self._refuse_twice(event.peer)
        if tenant is None or tenant.terms.generation != generation:
            evicted = self._evicted(slot, generation, event.pid, event.uid)
            if evicted is not None:
                return self.refuse(event.peer, Reason.EVICTED, evicted)
        if tenant is None:
            return self.refuse(event.peer, Reason.UNKNOWN_SLOT, f"nobody holds slot {slot}")
        if (tenant.pid, tenant.uid) != (event.pid, event.uid):
            return self.refuse(event.peer, Reason.NOT_YOURS, f"slot {slot} is another process's")
        if tenant.terms.generation != generation:
            detail = f"slot {slot} is at generation {tenant.terms.generation}, not {generation}"
            return self.refuse(event.peer, Reason.STALE, detail)
        if slot in self.peer_of:
            return self.refuse(event.peer, Reason.ALREADY_HERE, f"the holder of slot {slot} is connected")
        self.peer_of[slot] = event.peer
        self.slot_of_peer[event.peer] = slot
        if len(self.peer_of) == len(self.holders):
            self.away_until = NEVER
        return [self.grant(event.peer, tenant), *self._go_on(tenant, now)]

    def _refuse_twice(self, peer: int) -> list[Action]:
        what = "is a tenant already" if peer in self.slot_of_peer else "waits already to become a tenant"
        return self.refuse(peer, Reason.ALREADY_HERE, f"this connection {what}")

    def _evicted(self, slot: int, generation: int, pid: int, uid: int) -> str | None:
        """Why the tenant that comes back had to go while it was away, if it had to."""
        for gone in self.departed:
            tenant, terms = gone.tenant, gone.tenant.terms
            is_that = (terms.slot, terms.generation, tenant.pid, tenant.uid) == (slot, generation, pid, uid)
            if is_that and tenant.standing.stage in ENDING:
                return tenant.standing.why
        return None

    def _go_on(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Its parent is there again: where the tenant stood, it goes on."""
        stage = tenant.standing.stage
        if stage is Stage.RUNNING:
            return []
        return self._exits.resumed(tenant, now) if stage in ENDING else self._suspensions.resumed(tenant, now)

    def _left(self, event: TenantLeft, now: Instant) -> list[Action]:
        slot = self.slot_of_peer.get(event.peer)
        if slot is None:  # a peer that never was a tenant may say goodbye
            self._pressure.forget(event.peer)
            return []
        return self.release(slot, event.ending, event.peer, now)

    def _lost(self, event: PeerLost, now: Instant) -> list[Action]:
        slot = self.slot_of_peer.get(event.peer)
        if slot is None:
            self._pressure.forget(event.peer)
            return []
        return self.release(slot, "lost: its connection closed", NO_PEER, now)

    # -- the program of a tenant -----------------------------------------------------------------------------------

    def _quit(self, event: QuitAsked, now: Instant) -> list[Action]:
        slot = self.slot_of_peer.get(event.peer)
        if slot is None:
            return []
        why = "ended: its `cotenant run` was told to end"
        return self._exits.begin(slot, why, now, grace_ns=event.grace_ns, again=False)

    def _drained(self, event: TenantDrained, now: Instant) -> list[Action]:
        tenant = self.of_slot(event.slot, event.generation)
        if tenant is None:
            return []
        if tenant.standing.stage is Stage.SUSPENDING:
            return self._suspensions.drained(tenant, now)
        return self._exits.drained(tenant, now)

    def _restarted(self, event: TenantRestarted, now: Instant) -> list[Action]:
        tenant = self.of_peer(event.peer)
        if tenant is None:
            return []
        tenant = msgspec.structs.replace(tenant, restarts=event.restarts)
        self.replace(tenant)
        self._devices.came(tenant)
        stage = tenant.standing.stage
        if stage is Stage.RUNNING:  # since when another program does its work is what a device that drains must know
            self.replace(msgspec.structs.replace(tenant, standing=Standing(turn=self.turn, since_ns=now)))
            return []
        return self._exits.restarted(tenant, now) if stage in ENDING else self._suspensions.restarted(tenant, now)

    def _due(self, tenant: Tenant, now: Instant) -> list[Action]:
        stage = tenant.standing.stage
        return self._exits.due(tenant, now) if stage in ENDING else self._suspensions.due(tenant, now)
