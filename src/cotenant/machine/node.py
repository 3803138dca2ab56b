"""Who is on this node, in which slot, under which terms?

A slot is an index with a generation and never moves: a tenant that comes back after a restart finds its own, a tenant
that stayed away too long finds the generation gone. Tenants of a node that restarted are *away* until they resume or
the grace ends; nothing they hold is granted to anybody else before.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any, Final

import msgspec

from cotenant.domain.action import NO_PEER, Action, Confirm, Crowd, Grant, Refuse, Revoke, Stop
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
    NodeSettings,
    NodeStarted,
    NodeStopping,
    PeerLost,
    PriorityChanged,
    QuitAsked,
    RulesChanged,
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
from cotenant.domain.gate import GateRules
from cotenant.domain.instant import NEVER, Instant
from cotenant.domain.plan import Plan, Reason, Reject, Seat
from cotenant.domain.protect import GpuWatch
from cotenant.domain.tenant import NEIGHBOURS_LIMIT, Departure, Kind, Tenant, TenantSpec, TenantView, Terms
from cotenant.errors import InvariantError
from cotenant.machine.name import invent_name
from cotenant.machine.rooms import Rooms
from cotenant.machine.seats import Seats, seat_of

_NO_GPU: Final = -1


class NodeMachine:
    """Events in, actions out. Everything it knows came from `handle`."""

    def __init__(self) -> None:
        """Know nothing; the first event says how the node is set up."""
        self.turn = 0
        self.settings = NodeSettings(0, 0)
        self.departed: deque[Departure] = deque(maxlen=DEPARTED_LIMIT)
        self._tenants: dict[int, Tenant] = {}
        self._peer_of: dict[int, int] = {}
        self._slot_of_peer: dict[int, int] = {}
        self._slot_of_name: dict[str, int] = {}
        self._generations: list[int] = []
        self._free: list[int] = []
        self._rules = self.settings.gate  # in force: those of the settings until somebody changed them
        self._seats = Seats()
        self._rooms = Rooms(self.settings, ())
        self._away_until: Instant = NEVER
        self._idle_since: Instant = NEVER
        self._handlers: dict[type, Any] = {
            NodeStarted: self._started,
            NodeRestored: self._restored,
            TenantJoined: self._joined,
            TenantResumed: self._resumed,
            TenantLeft: self._left,
            PeerLost: self._lost,
            TenantsPaused: self._paused,
            PriorityChanged: self._reprioritized,
            RulesChanged: self._ruled,
            GpusFound: self._found,
            Woke: self._woke,
            **dict.fromkeys(
                (
                    *(GpuSeen, GpuFaulted, GpuLost, GpuBack, TenantFaulted, TenantHangs, TenantDrained, MemoryWanted),
                    *(EvictAsked, QuitAsked, TenantSuspended, TenantRestored, TenantRestarted, MpsSeen),
                ),
                lambda *_: [],
            ),
            NodeStopping: self._stopping,
        }

    def handle(self, event: Event, *, now: Instant) -> list[Action]:
        """Take one event in; the answer is what must be done, in this order."""
        self.turn += 1
        actions: list[Action] = self._handlers[type(event)](event, now)
        return [*self._seats.changes(self.turn, self._rules), *actions] if self._seats.stirred else actions

    def next_wakeup(self) -> Instant | None:
        """The end of the grace, or of the patience of an idle node."""
        if self._away_until != NEVER:
            return self._away_until
        if self._idle_since != NEVER and self.settings.idle_exit_ns:
            return self._idle_since + self.settings.idle_exit_ns
        return None

    @property
    def rules(self) -> GateRules:
        """By which the tenants of a device let each other pass now."""
        return self._rules

    def device_called(self, wish: str) -> int | None:
        """The place of the device that somebody means by this name."""
        named = (index for index, gpu in enumerate(self.settings.gpus) if gpu.is_called(wish, index))
        return next(named, None)

    def tenants(self) -> list[TenantView]:
        """Everybody who holds a slot, by slot."""
        return [TenantView(self._tenants[slot], slot in self._peer_of) for slot in sorted(self._tenants)]

    def watches(self) -> list[GpuWatch]:
        """How each device is doing, by its number."""
        return [GpuWatch() for _ in self.settings.gpus]

    def snapshot(self) -> NodeRestored:
        """The whole state as the event that restores it."""
        return NodeRestored(
            self.settings,
            self.turn,
            tuple(self._generations),
            tuple((self._peer_of.get(slot, NO_PEER), self._tenants[slot]) for slot in sorted(self._tenants)),
            tuple(self.departed),
            self._away_until,
            self._idle_since,
            self._rules,
        )

    def plan(self) -> Plan:
        """Who holds what of which device."""
        seats = [
            Seat(tenant.name, tenant.terms.gpu, tenant.spec.memory_bytes, tenant.spec.share_ppm)
            for tenant in self._tenants.values()
            if tenant.terms.gpu < len(self.settings.gpus)
        ]
        return Plan(self.settings.gpus, tuple(seats))

    # -- events ------------------------------------------------------------------------------------------------

    def _started(self, event: NodeStarted, now: Instant) -> list[Action]:
        """Everybody known is away until it resumes: their connections died with the process before.

        Their terms are granted anew to nobody in particular, so that the pages say what the journal says. Rules that
        were changed while the node ran outlive it, unless the new one was set up with others than the one before.
        """
        if event.settings.gate != self.settings.gate:
            self._rules = event.settings.gate
        self.settings = event.settings
        self._peer_of.clear()
        self._slot_of_peer.clear()
        self._away_until = now + event.settings.grace_ns if self._tenants else NEVER
        self._idle_since = NEVER if self._tenants else now
        self._lay_out()
        self._say_all()
        return [self._grant(NO_PEER, self._tenants[slot]) for slot in sorted(self._tenants)]

    def _restored(self, event: NodeRestored, now: Instant) -> list[Action]:
        del now
        self.settings = event.settings
        self.turn = event.turn
        self.departed = deque(event.departed, maxlen=DEPARTED_LIMIT)
        self._tenants = {tenant.terms.slot: tenant for _, tenant in event.tenants}
        self._peer_of = {tenant.terms.slot: peer for peer, tenant in event.tenants if peer != NO_PEER}
        self._slot_of_peer = {peer: slot for slot, peer in self._peer_of.items()}
        self._generations = list(event.generations)
        self._away_until = event.away_until_ns
        self._idle_since = event.idle_since_ns
        self._rules = event.settings.gate if event.gate is None else event.gate
        self._lay_out()
        return []

    def _joined(self, event: TenantJoined, now: Instant) -> list[Action]:
        spec, peer = event.spec, event.peer
        if peer in self._slot_of_peer:
            return self._refuse(peer, Reason.ALREADY_HERE, "this connection is a tenant already")
        if not self._free:
            detail = f"all {self.settings.slots} slots are taken; wait for a tenant to leave or raise node.slots"
            return self._refuse(peer, Reason.NO_SLOT, detail)
        if spec.name in self._slot_of_name:
            detail = f"the name {spec.name!r} is taken by the tenant in slot {self._slot_of_name[spec.name]}"
            return self._refuse(peer, Reason.NAME_TAKEN, detail)
        gpu = self._choose(spec) if self.settings.gpus else _NO_GPU
        if isinstance(gpu, Reject):
            return [Refuse(self.turn, peer, gpu)]
        slot = heapq.heappop(self._free)
        generation = self._generations[slot] = self._generations[slot] + 1
        name = spec.name or invent_name(spec.command, slot, self._slot_of_name)
        terms = Terms(slot, generation, spec.kind, spec.priority, spec.share_ppm, spec.memory_bytes, spec.slo_ns, gpu)
        tenant = self._tenants[slot] = Tenant(name, terms, spec, event.pid, event.uid, now)
        self._peer_of[slot] = peer
        self._slot_of_peer[peer] = slot
        self._slot_of_name[name] = slot
        self._idle_since = NEVER
        self._rooms.occupy(gpu, spec, 1)
        crowd = self._crowd(gpu)
        self._seats.put(tenant)
        return [*crowd, self._grant(peer, tenant)]

    def _resumed(self, event: TenantResumed, now: Instant) -> list[Action]:
        del now
        tenant = self._tenants.get(event.slot)
        if event.peer in self._slot_of_peer:
            return self._refuse(event.peer, Reason.ALREADY_HERE, "this connection is a tenant already")
        if tenant is None:
            return self._refuse(event.peer, Reason.UNKNOWN_SLOT, f"nobody holds slot {event.slot}")
        if (tenant.pid, tenant.uid) != (event.pid, event.uid):
            return self._refuse(event.peer, Reason.NOT_YOURS, f"slot {event.slot} is another process's")
        if tenant.terms.generation != event.generation:
            detail = f"slot {event.slot} is at generation {tenant.terms.generation}, not {event.generation}"
            return self._refuse(event.peer, Reason.STALE, detail)
        if event.slot in self._peer_of:
            return self._refuse(event.peer, Reason.ALREADY_HERE, f"the holder of slot {event.slot} is connected")
        self._peer_of[event.slot] = event.peer
        self._slot_of_peer[event.peer] = event.slot
        if len(self._peer_of) == len(self._tenants):
            self._away_until = NEVER
        return [self._grant(event.peer, tenant)]

    def _left(self, event: TenantLeft, now: Instant) -> list[Action]:
        slot = self._slot_of_peer.get(event.peer)
        if slot is None:  # a peer that never was a tenant may say goodbye
            return []
        return self._release(slot, event.ending, event.peer, now)

    def _lost(self, event: PeerLost, now: Instant) -> list[Action]:
        slot = self._slot_of_peer.get(event.peer)
        if slot is None:
            return []
        return self._release(slot, "lost: its connection closed", NO_PEER, now)

    def _paused(self, event: TenantsPaused, now: Instant) -> list[Action]:
        """Its launches wait at the gate from the next one on; who is as it should be already stays so."""
        del now
        if event.all_offline:
            everybody = [self._tenants[slot] for slot in sorted(self._tenants)]  # by slot: their order is journaled
            chosen = [tenant for tenant in everybody if tenant.terms.kind is Kind.OFFLINE]
            chosen = [tenant for tenant in chosen if event.is_owner or tenant.uid == event.uid]
            chosen = [tenant for tenant in chosen if tenant.terms.gpu != _NO_GPU]
        else:
            chosen = []
            for name in event.names:
                found = self._find_tenant(name, event.uid, is_owner=event.is_owner)
                if isinstance(found, Reject):
                    return [Refuse(self.turn, event.peer, found)]
                if found.terms.gpu == _NO_GPU:
                    detail = f"nothing holds {name!r} back: the node knows no GPU; start it with --gpu NAME=MEMORY"
                    return self._refuse(event.peer, Reason.NO_GATE, detail)
                chosen.append(found)
        for tenant in chosen:
            if tenant.paused != event.paused:
                self._replace(msgspec.structs.replace(tenant, paused=event.paused))
        return [self._confirm(event.peer, *chosen)]

    def _reprioritized(self, event: PriorityChanged, now: Instant) -> list[Action]:
        del now
        tenant = self._find_tenant(event.name, event.uid, is_owner=event.is_owner)
        if isinstance(tenant, Reject):
            return [Refuse(self.turn, event.peer, tenant)]
        if tenant.terms.priority == event.priority:
            return [self._confirm(event.peer, tenant)]
        terms = msgspec.structs.replace(tenant.terms, priority=event.priority)
        tenant = msgspec.structs.replace(tenant, terms=terms)
        self._replace(tenant)
        return [self._grant(NO_PEER, tenant), self._confirm(event.peer, tenant)]

    def _ruled(self, event: RulesChanged, now: Instant) -> list[Action]:
        del now
        if not event.is_owner:
            detail = "the rules of a node are changed by the user that runs it"
            return self._refuse(event.peer, Reason.NOT_YOURS, detail)
        rules = event.change.applied(self._rules)
        if rules != self._rules:
            self._rules = rules
            self._say_all()
        return [self._confirm(event.peer)]

    def _found(self, event: GpusFound, now: Instant) -> list[Action]:
        del now
        known = self.settings.gpus
        self.settings = msgspec.structs.replace(self.settings, gpus=(*known, *event.gpus))
        self._rooms = Rooms(self.settings, self._tenants.values())
        for gpu in range(len(known), len(self.settings.gpus)):
            self._seats.say_all(gpu)
        return []

    def _woke(self, event: Woke, now: Instant) -> list[Action]:
        del event
        actions: list[Action] = []
        if self._away_until != NEVER and now >= self._away_until:
            self._away_until = NEVER
            away = [slot for slot in sorted(self._tenants) if slot not in self._peer_of]
            for slot in away:
                actions += self._release(slot, "lost: did not come back in time", NO_PEER, now)
        patience = self.settings.idle_exit_ns
        if patience and self._idle_since != NEVER and now >= self._idle_since + patience:
            self._idle_since = NEVER
            actions.append(Stop(self.turn, "idle: no tenant for as long as node.idle_exit allows"))
        return actions

    def _stopping(self, event: NodeStopping, now: Instant) -> list[Action]:
        """Who is away stays awaited: the next start begins their grace anew."""
        del now
        self._idle_since = NEVER
        return [Stop(self.turn, event.reason)]

    # -- what events have in common ----------------------------------------------------------------------------

    def _refuse(self, peer: int, reason: Reason, detail: str) -> list[Action]:
        return [Refuse(self.turn, peer, Reject(reason, detail))]

    def _choose(self, spec: TenantSpec) -> int | Reject:
        if not spec.gpu:
            return self._rooms.find(spec)
        index = self.device_called(spec.gpu)
        if index is not None:
            return self._rooms.find(spec, index)
        known = ", ".join(gpu.names(index)[0] for index, gpu in enumerate(self.settings.gpus))
        return Reject(Reason.UNKNOWN_GPU, f"the node has no GPU {spec.gpu!r}, only {known}; name one of them, or none")

    def _grant(self, peer: int, tenant: Tenant) -> Grant:
        others = self._seats.count(tenant.terms.gpu) - 1
        return Grant(self.turn, peer, tenant.name, tenant.terms, min(others, NEIGHBOURS_LIMIT))

    def _crowd(self, gpu: int, leaving: int = 0) -> list[Action]:
        """What the others on a device must hear when somebody joins them, or has left: nothing if they are many."""
        here = self._seats.count(gpu)
        if not 0 < here <= NEIGHBOURS_LIMIT:
            return []
        return [Crowd(self.turn, gpu, here - leaving)]

    def _find_tenant(self, name: str, uid: int, *, is_owner: bool) -> Tenant | Reject:
        """A tenant that this user may change: its own, or anybody's on a node of its own."""
        slot = self._slot_of_name.get(name)
        if slot is None:
            return Reject(Reason.UNKNOWN_TENANT, f"no tenant is called {name!r}; see: cotenant ps")
        tenant = self._tenants[slot]
        if not is_owner and tenant.uid != uid:
            return Reject(Reason.NOT_YOURS, f"the tenant {name!r} is another user's")
        return tenant

    def _replace(self, tenant: Tenant) -> None:
        self._tenants[tenant.terms.slot] = tenant
        self._seats.put(tenant)

    def _confirm(self, peer: int, *tenants: Tenant) -> Confirm:
        return Confirm(self.turn, peer, tuple(tenant.name for tenant in tenants), self._rules)

    def _say_all(self) -> None:
        for gpu in (*range(len(self.settings.gpus)), *self._seats.devices()):
            self._seats.say_all(gpu)

    def _release(self, slot: int, ending: str, peer: int, now: Instant) -> list[Action]:
        tenant = self._tenants.pop(slot)
        connected = self._peer_of.pop(slot, None)
        if connected is not None:
            del self._slot_of_peer[connected]
        del self._slot_of_name[tenant.name]
        if slot < self.settings.slots:  # a node restarted with fewer slots lets the surplus run out
            heapq.heappush(self._free, slot)
        self._rooms.occupy(tenant.terms.gpu, tenant.spec, -1)
        if not self._tenants:
            self._idle_since = now
        self.departed.append(Departure(tenant, ending, now))
        self._seats.clear(tenant)
        revoked = Revoke(self.turn, peer, tenant.name, slot, tenant.terms.generation, ending)
        return [revoked, *self._crowd(tenant.terms.gpu, leaving=1)]

    def _lay_out(self) -> None:
        """Derive the free slots, the names, the seats and the rooms from the tenants and the settings."""
        settings = self.settings
        self._generations += [0] * (settings.slots - len(self._generations))
        self._free = [slot for slot in range(settings.slots) if slot not in self._tenants]
        self._slot_of_name = {tenant.name: slot for slot, tenant in self._tenants.items()}
        self._seats = Seats(self._tenants.values())
        self._rooms = Rooms(settings, self._tenants.values())

    def check(self) -> None:
        """Raise `InvariantError` with the story if any promise of this machine is broken."""
        held = {slot: tenant.terms for slot, tenant in self._tenants.items()}
        plan = self.plan()
        expected: list[tuple[str, object, object]] = [
            ("slots of the terms", {slot: terms.slot for slot, terms in held.items()}, {slot: slot for slot in held}),
            (
                "generations in force",
                {slot: terms.generation for slot, terms in held.items()},
                {slot: self._generations[slot] for slot in held},
            ),
            ("free slots", sorted(self._free), [slot for slot in range(self.settings.slots) if slot not in held]),
            ("peers by slot", {peer: slot for slot, peer in self._peer_of.items()}, self._slot_of_peer),
            ("connected slots", [slot for slot in self._peer_of if slot not in held], []),
            ("names", {tenant.name: slot for slot, tenant in self._tenants.items()}, self._slot_of_name),
            (
                "seats",
                {gpu: self._seats.seats(gpu) for gpu in self._seats.devices()},
                {
                    gpu: tuple(seat_of(self._tenants[slot]) for slot in sorted(held) if held[slot].gpu == gpu)
                    for gpu in sorted({terms.gpu for terms in held.values()})
                },
            ),
            ("rooms", self._rooms.rooms, [plan.room(room.index) for room in self._rooms.rooms]),
            ("waiting for somebody", self._away_until != NEVER, len(self._peer_of) < len(held)),
        ]
        wrong = [f"{what} are {found}, not {right}" for what, found, right in expected if found != right]
        if wrong:
            raise InvariantError(f"after turn {self.turn}: " + "; ".join(wrong))
