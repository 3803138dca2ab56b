"""Who is on this node, in which slot, under which terms?

A slot is an index with a generation and never moves: a tenant that comes back after a restart finds its own, a tenant
that stayed away too long finds the generation gone. Tenants of a node that restarted are *away* until they resume or
the grace ends; nothing they hold is granted to anybody else before.
"""

from __future__ import annotations

import functools
import heapq
import re
from collections import deque
from typing import Any, Final

from cotenant.domain.action import NO_PEER, Action, Crowd, Grant, Refuse, Revoke, Stop
from cotenant.domain.event import (
    DEPARTED_LIMIT,
    NEVER,
    Event,
    NodeRestored,
    NodeSettings,
    NodeStarted,
    NodeStopping,
    PeerLost,
    TenantJoined,
    TenantLeft,
    TenantResumed,
    Woke,
)
from cotenant.domain.gpu import WHOLE_PPM, Gpu, GpuRoom
from cotenant.domain.instant import Instant
from cotenant.domain.plan import Plan, Reason, Reject, Seat
from cotenant.domain.tenant import NEIGHBOURS_LIMIT, Departure, Tenant, TenantSpec, TenantView, Terms
from cotenant.errors import InvariantError
from cotenant.policy import admit, place

_NO_GPU: Final = -1
_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


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
        self._seated: dict[int, set[int]] = {}  # slots by device; -1: those that got none may all be on the same
        self._rooms: list[GpuRoom] = []
        self._ranks: list[tuple[int, ...]] = []  # of the rooms, by the place policy: only a change is ranked anew
        self._judge = admit.POLICIES["reserve"]
        self._rank = place.POLICIES["spread"]
        self._away_until: Instant = NEVER
        self._idle_since: Instant = NEVER
        self._handlers: dict[type, Any] = {
            NodeStarted: self._started,
            NodeRestored: self._restored,
            TenantJoined: self._joined,
            TenantResumed: self._resumed,
            TenantLeft: self._left,
            PeerLost: self._lost,
            Woke: self._woke,
            NodeStopping: self._stopping,
        }

    def handle(self, event: Event, *, now: Instant) -> list[Action]:
        """Take one event in; the answer is what must be done, in this order."""
        self.turn += 1
        actions: list[Action] = self._handlers[type(event)](event, now)
        return actions

    def next_wakeup(self) -> Instant | None:
        """The end of the grace, or of the patience of an idle node."""
        if self._away_until != NEVER:
            return self._away_until
        if self._idle_since != NEVER and self.settings.idle_exit_ns:
            return self._idle_since + self.settings.idle_exit_ns
        return None

    def tenants(self) -> list[TenantView]:
        """Everybody who holds a slot, by slot."""
        return [TenantView(self._tenants[slot], slot in self._peer_of) for slot in sorted(self._tenants)]

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

        Their terms are granted anew to nobody in particular, so that the pages say what the journal says.
        """
        self.settings = event.settings
        self._peer_of.clear()
        self._slot_of_peer.clear()
        self._away_until = now + event.settings.grace_ns if self._tenants else NEVER
        self._idle_since = NEVER if self._tenants else now
        self._lay_out()
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
        gpu = self._find_gpu(spec) if self._rooms else _NO_GPU
        if isinstance(gpu, Reject):
            return [Refuse(self.turn, peer, gpu)]
        slot = heapq.heappop(self._free)
        generation = self._generations[slot] = self._generations[slot] + 1
        name = spec.name or self._invent_name(spec, slot)
        terms = Terms(slot, generation, spec.kind, spec.priority, spec.share_ppm, spec.memory_bytes, spec.slo_ns, gpu)
        self._tenants[slot] = Tenant(name, terms, spec, event.pid, event.uid, now)
        self._peer_of[slot] = peer
        self._slot_of_peer[peer] = slot
        self._slot_of_name[name] = slot
        self._idle_since = NEVER
        if gpu != _NO_GPU:
            self._occupy(gpu, spec, 1)
        crowd = self._crowd(gpu)
        self._seated.setdefault(gpu, set()).add(slot)
        return [*crowd, self._grant(peer, self._tenants[slot])]

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

    def _grant(self, peer: int, tenant: Tenant) -> Grant:
        others = len(self._seated[tenant.terms.gpu]) - 1
        return Grant(self.turn, peer, tenant.name, tenant.terms, min(others, NEIGHBOURS_LIMIT))

    def _crowd(self, gpu: int, leaving: int = 0) -> list[Action]:
        """What the others on a device must hear when somebody joins them, or has left: nothing if they are many."""
        slots = self._seated.get(gpu, set())
        others = len(slots) - leaving
        return [Crowd(self.turn, tuple(sorted(slots)), others)] if slots and len(slots) <= NEIGHBOURS_LIMIT else []

    def _release(self, slot: int, ending: str, peer: int, now: Instant) -> list[Action]:
        tenant = self._tenants.pop(slot)
        connected = self._peer_of.pop(slot, None)
        if connected is not None:
            del self._slot_of_peer[connected]
        del self._slot_of_name[tenant.name]
        if slot < self.settings.slots:  # a node restarted with fewer slots lets the surplus run out
            heapq.heappush(self._free, slot)
        if 0 <= tenant.terms.gpu < len(self._rooms):
            self._occupy(tenant.terms.gpu, tenant.spec, -1)
        if not self._tenants:
            self._idle_since = now
        self.departed.append(Departure(tenant, ending, now))
        self._seated[tenant.terms.gpu].remove(slot)
        revoked = Revoke(self.turn, peer, tenant.name, slot, tenant.terms.generation, ending)
        return [revoked, *self._crowd(tenant.terms.gpu, leaving=1)]

    def _find_gpu(self, spec: TenantSpec) -> int | Reject:
        """Of the devices that the admit policy accepts, the one the place policy likes best; else its objection."""
        ranks, rooms, judge = self._ranks, self._rooms, self._judge
        best = ranks.index(min(ranks))
        objection = judge(spec, rooms[best])
        if objection is None:
            return best
        fitting = [ranks[room.index] for room in rooms if judge(spec, room) is None]
        return ranks.index(min(fitting)) if fitting else objection

    def _occupy(self, gpu: int, spec: TenantSpec, sign: int) -> None:
        room = self._rooms[gpu]
        room = GpuRoom(
            gpu,
            room.memory_free_bytes - sign * spec.memory_bytes,
            room.share_free_ppm - sign * spec.share_ppm,
            room.tenants + sign,
        )
        self._rooms[gpu] = room
        self._ranks[gpu] = self._rank(room)

    def _invent_name(self, spec: TenantSpec, slot: int) -> str:
        base = _program_of(spec.command)
        name = f"{base}-{slot}"
        extra = 1
        while name in self._slot_of_name:
            extra += 1
            name = f"{base}-{slot}-{extra}"
        return name

    def _lay_out(self) -> None:
        """Derive the free slots, the names and the rooms from the tenants and the settings."""
        settings = self.settings
        for verb, policies, name in (
            ("place", place.POLICIES, settings.place),
            ("admit", admit.POLICIES, settings.admit),
        ):
            if name not in policies:
                raise InvariantError(f"the journal names the {verb} policy {name!r}, which this version does not have")
        self._judge = admit.POLICIES[settings.admit]
        self._rank = place.POLICIES[settings.place]
        self._generations += [0] * (settings.slots - len(self._generations))
        self._free = [slot for slot in range(settings.slots) if slot not in self._tenants]
        self._slot_of_name = {tenant.name: slot for slot, tenant in self._tenants.items()}
        self._seated = {}
        self._rooms = [_whole(index, gpu) for index, gpu in enumerate(settings.gpus)]
        self._ranks = [self._rank(room) for room in self._rooms]
        for slot, tenant in self._tenants.items():
            self._seated.setdefault(tenant.terms.gpu, set()).add(slot)
            if 0 <= tenant.terms.gpu < len(self._rooms):
                self._occupy(tenant.terms.gpu, tenant.spec, 1)

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
                sorted((gpu, slot) for gpu, slots in self._seated.items() for slot in slots),
                sorted((terms.gpu, slot) for slot, terms in held.items()),
            ),
            ("rooms", self._rooms, [plan.room(room.index) for room in self._rooms]),
            ("waiting for somebody", self._away_until != NEVER, len(self._peer_of) < len(held)),
        ]
        wrong = [f"{what} are {found}, not {right}" for what, found, right in expected if found != right]
        if wrong:
            raise InvariantError(f"after turn {self.turn}: " + "; ".join(wrong))


@functools.lru_cache(maxsize=1024)
def _program_of(command: str) -> str:
    """The program's name as far as a tenant's name allows it."""
    words = command.split(maxsplit=1)
    base = _NOT_IN_NAME.sub("-", words[0].rsplit("/", 1)[-1]).strip("-._")[:32] if words else ""
    return base or "tenant"


def _whole(index: int, gpu: Gpu) -> GpuRoom:
    return GpuRoom(index, gpu.memory_bytes, WHOLE_PPM, 0)
