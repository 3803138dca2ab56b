"""Who holds which slot, and what do all events about tenants have in common?

A slot is an index with a generation and never moves: a tenant that comes back after a restart finds its own, a tenant
that stayed away too long finds the generation gone. Tenants of a node that restarted are *away* until they resume or
the grace ends; nothing they hold is granted to anybody else before.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

import msgspec

from cotenant.domain.action import Action, Confirm, Crowd, Grant, Refuse, Revoke
from cotenant.domain.event import DEPARTED_LIMIT, NodeSettings, TenantJoined
from cotenant.domain.instant import NEVER, Instant
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.protect import Stage, Standing
from cotenant.domain.tenant import NEIGHBOURS_LIMIT, Departure, Tenant, TenantSpec, Terms
from cotenant.machine.name import invent_name
from cotenant.machine.rooms import Choice, Rooms
from cotenant.machine.seats import Seats

NO_GPU: Final = -1


class Roll:
    """Tenants by slot, peer and name; their seats, their deadlines, and what they leave of each device."""

    def __init__(self) -> None:
        """Nobody is here, and nothing is set up."""
        self.turn = 0
        self.settings = NodeSettings(0, 0)
        self.departed: deque[Departure] = deque(maxlen=DEPARTED_LIMIT)
        self.holders: dict[int, Tenant] = {}
        self.peer_of: dict[int, int] = {}
        self.slot_of_peer: dict[int, int] = {}
        self.slot_of_name: dict[str, int] = {}
        self.generations: list[int] = []
        self.free: list[int] = []
        self.rules = self.settings.gate  # in force: those of the settings until somebody changed them
        self.seats = Seats()
        self.rooms = Rooms(self.settings, (), self.rules)
        self.deadlines: dict[int, Instant] = {}  # of those whose standing has one
        self.aside: dict[int, int] = {}  # of those who are suspended, their devices
        self.away_until: Instant = NEVER
        self.idle_since: Instant = NEVER

    # -- looking ---------------------------------------------------------------------------------------------------

    def device_called(self, wish: str) -> int | None:
        """The place of the device that somebody means by this name."""
        named = (index for index, gpu in enumerate(self.settings.gpus) if gpu.is_called(wish, index))
        return next(named, None)

    def on(self, gpu: int) -> list[Tenant]:
        """Everybody on a device, by slot."""
        return [self.holders[seat.slot] for seat in self.seats.seats(gpu)]

    def of_peer(self, peer: int) -> Tenant | None:
        """The tenant that this peer is the parent of."""
        slot = self.slot_of_peer.get(peer)
        return None if slot is None else self.holders[slot]

    def of_slot(self, slot: int, generation: int) -> Tenant | None:
        """The tenant that somebody speaks of, unless it is gone by now."""
        tenant = self.holders.get(slot)
        return tenant if tenant is not None and tenant.terms.generation == generation else None

    def find_tenant(self, name: str, uid: int, *, is_owner: bool) -> Tenant | Reject:
        """A tenant that this user may change: its own, or anybody's on a node of its own."""
        slot = self.slot_of_name.get(name)
        if slot is None:
            return Reject(Reason.UNKNOWN_TENANT, f"no tenant is called {name!r}; see: cotenant ps")
        tenant = self.holders[slot]
        if not is_owner and tenant.uid != uid:
            return Reject(Reason.NOT_YOURS, f"the tenant {name!r} is another user's")
        return tenant

    def choose(self, spec: TenantSpec, barred: dict[int, Reject]) -> Choice | Reject:
        """The device for a newcomer, or what is against it; nobody comes to one that is barred."""
        if not spec.gpu:
            return self.rooms.find(spec, barred)
        index = self.device_called(spec.gpu)
        if index is not None:
            return self.rooms.objection(spec, index, barred) or self.rooms.here(spec, index)
        known = ", ".join(gpu.names(index)[0] for index, gpu in enumerate(self.settings.gpus))
        return Reject(Reason.UNKNOWN_GPU, f"the node has no GPU {spec.gpu!r}, only {known}; name one of them, or none")

    # -- answering -------------------------------------------------------------------------------------------------

    def refuse(self, peer: int, reason: Reason, detail: str) -> list[Action]:
        """A refusal, and nothing else."""
        return [Refuse(self.turn, peer, Reject(reason, detail))]

    def grant(self, peer: int, tenant: Tenant) -> Grant:
        """What a tenant holds, told to this peer."""
        others = self.seats.count(tenant.terms.gpu) - 1
        return Grant(self.turn, peer, tenant.name, tenant.terms, min(others, NEIGHBOURS_LIMIT))

    def confirm(self, peer: int, *tenants: Tenant) -> Confirm:
        """What somebody wanted is so, for these."""
        return Confirm(self.turn, peer, tuple(tenant.name for tenant in tenants), self.rules)

    def say_all(self) -> None:
        """Every roster must be said."""
        for gpu in (*range(len(self.settings.gpus)), *self.seats.devices()):
            self.seats.say_all(gpu)

    def _crowd(self, gpu: int, leaving: int = 0) -> list[Action]:
        """What the others on a device must hear when somebody joins them, or has left: nothing if they are many."""
        here = self.seats.count(gpu)
        if not 0 < here <= NEIGHBOURS_LIMIT:
            return []
        return [Crowd(self.turn, gpu, here - leaving)]

    # -- changing --------------------------------------------------------------------------------------------------

    def admit(self, event: TenantJoined, gpu: int, now: Instant) -> list[Action]:
        """Give a newcomer the lowest free slot, on this device."""
        spec, peer = event.spec, event.peer
        slot = heapq.heappop(self.free)
        generation = self.generations[slot] = self.generations[slot] + 1
        name = spec.name or invent_name(spec.command, slot, self.slot_of_name)
        terms = Terms(slot, generation, spec.kind, spec.priority, spec.share_ppm, spec.memory_bytes, spec.slo_ns, gpu)
        tenant = self.holders[slot] = Tenant(name, terms, spec, event.pid, event.uid, now)
        self.peer_of[slot] = peer
        self.slot_of_peer[peer] = slot
        self.slot_of_name[name] = slot
        self.idle_since = NEVER
        self.rooms.occupy(gpu, spec, 1)
        crowd = self._crowd(gpu)
        self.seats.put(tenant)
        return [*crowd, self.grant(peer, tenant)]

    def replace(self, tenant: Tenant) -> None:
        """Say something else of a tenant that is here."""
        self.holders[tenant.terms.slot] = tenant
        self.seats.put(tenant)

    def stand(self, tenant: Tenant, standing: Standing) -> None:
        """A tenant stands otherwise with the node: its seat, its deadline and its reservation follow."""
        slot = tenant.terms.slot
        if standing.aside != tenant.standing.aside:
            self.rooms.reserve(tenant.terms.gpu, tenant.spec, -1 if standing.aside else 1)
        if standing.stage is Stage.SUSPENDED:
            self.aside[slot] = tenant.terms.gpu
        else:
            self.aside.pop(slot, None)
        if standing.until_ns == NEVER:
            self.deadlines.pop(slot, None)
        else:
            self.deadlines[slot] = standing.until_ns
        self.replace(msgspec.structs.replace(tenant, standing=standing))

    def release(self, slot: int, ending: str, peer: int, now: Instant) -> list[Action]:
        """A tenant is gone: its slot and what it held are free."""
        tenant = self.holders.pop(slot)
        connected = self.peer_of.pop(slot, None)
        if connected is not None:
            del self.slot_of_peer[connected]
        del self.slot_of_name[tenant.name]
        self.deadlines.pop(slot, None)
        self.aside.pop(slot, None)
        if slot < self.settings.slots:  # a node restarted with fewer slots lets the surplus run out
            heapq.heappush(self.free, slot)
        if tenant.standing.aside:
            self.rooms.reserve(tenant.terms.gpu, tenant.spec, 1)
        self.rooms.occupy(tenant.terms.gpu, tenant.spec, -1)
        if not self.holders:
            self.idle_since = now
        self.departed.append(Departure(tenant, ending, now))
        self.seats.clear(tenant)
        revoked = Revoke(self.turn, peer, tenant.name, slot, tenant.terms.generation, ending)
        return [revoked, *self._crowd(tenant.terms.gpu, leaving=1)]

    def lay_out(self) -> None:
        """Derive the free slots, the names, the seats, rooms, deadlines and who is aside from what is known."""
        settings = self.settings
        self.generations += [0] * (settings.slots - len(self.generations))
        self.free = [slot for slot in range(settings.slots) if slot not in self.holders]
        self.slot_of_name = {tenant.name: slot for slot, tenant in self.holders.items()}
        self.seats = Seats(self.holders.values(), self.seats.dials.values())
        self.rooms = Rooms(settings, self.holders.values(), self.rules)
        standings = {slot: tenant.standing for slot, tenant in self.holders.items()}
        self.deadlines = {slot: one.until_ns for slot, one in standings.items() if one.until_ns != NEVER}
        suspended = [slot for slot, one in standings.items() if one.stage is Stage.SUSPENDED]
        self.aside = {slot: self.holders[slot].terms.gpu for slot in suspended}
