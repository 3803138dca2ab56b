"""The registry of tenants: slots, peers, names, deadlines, and the operations that all events about tenants share.

A slot is an index with a generation and never moves: a tenant that reconnects after a restart finds its own slot, and
one that returns too late finds that the generation changed. Tenants of a restarted node are disconnected until they
resume or the grace period ends; nothing that they hold is granted to others before that.
"""

from __future__ import annotations

import functools
import heapq
import re
from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import Final

import msgspec

from cotenant.gate.grant import Grant
from cotenant.node.model.action import Action, Confirm, IssueGrant, Refuse, Revoke, SetNeighbourCount
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import DEPARTED_LIMIT, NodeSettings, TenantJoined
from cotenant.node.model.protection import ExitPhase, Lifecycle
from cotenant.node.model.tenant import NEIGHBOURS_LIMIT, Departure, Tenant, TenantSpec
from cotenant.node.state.capacity import Capacity, Choice
from cotenant.node.state.tenant_tables import TenantTables
from cotenant.units.instant import NEVER, Instant

NO_GPU: Final = -1
_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


class NodeContext:
    """Values that all parts of the node read: the number of the turn, the settings and the gate rules in force."""

    __slots__ = ("rules", "settings", "turn")

    def __init__(self) -> None:
        """Begin without slots or devices; the first event brings the settings."""
        self.turn = 0
        self.settings = NodeSettings(0, 0)
        self.rules = self.settings.gate
        """The rules of the settings until an operator changes them."""


class TenantRegistry:
    """Tenants by slot, peer and name, with their table entries, deadlines and reserved capacity."""

    def __init__(self, context: NodeContext) -> None:
        """Hold no tenants; `context` has the settings."""
        self._context = context
        self.departed: deque[Departure] = deque(maxlen=DEPARTED_LIMIT)
        self.holders: dict[int, Tenant] = {}
        self.peer_of: dict[int, int] = {}
        self.slot_of_peer: dict[int, int] = {}
        self.slot_of_name: dict[str, int] = {}
        self.generations: list[int] = []
        self.free: list[int] = []
        self.tables = TenantTables()
        self.capacity = Capacity(self._context.settings, (), self._context.rules)
        self.deadlines: dict[int, Instant] = {}  # by slot, of lifecycles with a deadline
        self.suspended: dict[int, tuple[int, ...]] = {}  # by slot, the devices of suspended tenants
        self.disconnected_until: Instant = NEVER
        self.idle_since: Instant = NEVER

    # -- queries ---------------------------------------------------------------------------------------------------

    def device_called(self, name: str) -> int | None:
        """Return the index of the device with this name."""
        matches = (index for index, gpu in enumerate(self._context.settings.gpus) if gpu.is_called(name, index))
        return next(matches, None)

    def tenants_on(self, gpu: int) -> list[Tenant]:
        """Return all tenants of a device, by slot."""
        return [self.holders[entry.slot] for entry in self.tables.entries(gpu)]

    def of_peer(self, peer: int) -> Tenant | None:
        """Return the tenant whose parent is this peer."""
        slot = self.slot_of_peer.get(peer)
        return None if slot is None else self.holders[slot]

    def of_slot(self, slot: int, generation: int) -> Tenant | None:
        """Return the tenant in a slot, unless the generation differs."""
        tenant = self.holders.get(slot)
        return tenant if tenant is not None and tenant.grant.generation == generation else None

    def find_tenant(self, name: str, uid: int, *, is_owner: bool) -> Tenant | Reject:
        """Return a tenant that this user may change: its own, or any if the user runs the node."""
        slot = self.slot_of_name.get(name)
        if slot is None:
            return Reject(Reason.UNKNOWN_TENANT, f"no tenant has the name {name!r}; list the tenants with: cotenant ps")
        tenant = self.holders[slot]
        if not is_owner and tenant.uid != uid:
            return Reject(Reason.NOT_YOURS, f"the tenant {name!r} belongs to another user")
        return tenant

    def choose(self, spec: TenantSpec, barred: dict[int, Reject]) -> Choice | Reject:
        """Return the devices for a new tenant, or the refusal; barred devices are not chosen."""
        if not spec.gpu:
            return self.capacity.find(spec, barred)
        chosen: list[int] = []
        for name in spec.gpu_names:
            index = self.device_called(name)
            if index is None:
                names = ", ".join(gpu.names(index)[0] for index, gpu in enumerate(self._context.settings.gpus))
                detail = f"the node has no GPU {name!r}, only {names}; request one of them, or none"
                return Reject(Reason.UNKNOWN_GPU, detail)
            if index in chosen:
                return Reject(Reason.UNKNOWN_GPU, f"{spec.gpu!r} names GPU {index} twice; name each GPU once")
            chosen.append(index)
        return self.capacity.choice_on_all(spec, chosen, barred)

    def devices_named(self, spec: TenantSpec) -> tuple[int, ...]:
        """Return the indexes of the devices that a spec names; none: it names none, or one that is unknown."""
        indexes = [self.device_called(name) for name in spec.gpu_names]
        return tuple(index for index in indexes if index is not None) if None not in indexes else ()

    # -- actions -------------------------------------------------------------------------------------------------

    def refuse(self, peer: int, reason: Reason, detail: str) -> list[Action]:
        """Return a refusal as the only action."""
        return [Refuse(self._context.turn, peer, Reject(reason, detail))]

    def issue_grant(self, peer: int, tenant: Tenant) -> IssueGrant:
        """Return the action that issues a tenant's grant to this peer."""
        first, *more = [min(self.tables.count(gpu) - 1, NEIGHBOURS_LIMIT) for gpu in tenant.grant.places]
        return IssueGrant(self._context.turn, peer, tenant.name, tenant.grant, first, tuple(more))

    def confirm(self, peer: int, *tenants: Tenant) -> Confirm:
        """Return the confirmation of a command for these tenants."""
        return Confirm(self._context.turn, peer, tuple(tenant.name for tenant in tenants), self._context.rules)

    def mark_all(self) -> None:
        """Mark the tenant tables of all devices as changed."""
        for gpu in (*range(len(self._context.settings.gpus)), *self.tables.devices()):
            self.tables.mark_all(gpu)

    def _neighbour_change(self, gpus: Iterable[int], leaving: int = 0) -> list[Action]:
        """Return the new neighbour counts for the tenants of devices, except counts that exceed the limit."""
        counts = [(gpu, self.tables.count(gpu)) for gpu in gpus]
        return [
            SetNeighbourCount(self._context.turn, gpu, count - leaving)
            for gpu, count in counts
            if 0 < count <= NEIGHBOURS_LIMIT
        ]

    # -- changes --------------------------------------------------------------------------------------------------

    def admit(self, event: TenantJoined, gpus: Sequence[int], now: Instant) -> list[Action]:
        """Give a new tenant the lowest free slot on these devices; (-1,): the node has none."""
        spec, peer = event.spec, event.peer
        slot = heapq.heappop(self.free)
        generation = self.generations[slot] = self.generations[slot] + 1
        name = spec.name or invent_name(spec.command, slot, self.slot_of_name)
        amounts = (spec.share_ppm, spec.memory_bytes, spec.slo_ns)
        grant = Grant(slot, generation, spec.kind, spec.priority, *amounts, gpus[0], tuple(gpus[1:]))
        tenant = self.holders[slot] = Tenant(name, grant, spec, event.pid, event.uid, now)
        self.peer_of[slot] = peer
        self.slot_of_peer[peer] = slot
        self.slot_of_name[name] = slot
        self.idle_since = NEVER
        self.capacity.occupy(grant.gpus, spec, 1)
        set_neighbour_count = self._neighbour_change(grant.places)
        self.tables.put(tenant)
        return [*set_neighbour_count, self.issue_grant(peer, tenant)]

    def replace(self, tenant: Tenant) -> None:
        """Replace the record of a tenant and update its table entry."""
        self.holders[tenant.grant.slot] = tenant
        self.tables.put(tenant)

    def set_lifecycle(self, tenant: Tenant, lifecycle: Lifecycle) -> None:
        """Set a tenant's lifecycle and update its table entry, deadline and reservation."""
        slot = tenant.grant.slot
        if lifecycle.suspended != tenant.lifecycle.suspended:
            self.capacity.reserve(tenant.grant.gpus, tenant.spec, -1 if lifecycle.suspended else 1)
        if lifecycle.phase is ExitPhase.SUSPENDED:
            self.suspended[slot] = tenant.grant.gpus
        else:
            self.suspended.pop(slot, None)
        if lifecycle.until_ns == NEVER:
            self.deadlines.pop(slot, None)
        else:
            self.deadlines[slot] = lifecycle.until_ns
        self.replace(msgspec.structs.replace(tenant, lifecycle=lifecycle))

    def release(self, slot: int, ending: str, peer: int, now: Instant) -> list[Action]:
        """Remove a tenant; its slot and its reservation are free."""
        tenant = self.holders.pop(slot)
        connected = self.peer_of.pop(slot, None)
        if connected is not None:
            del self.slot_of_peer[connected]
        del self.slot_of_name[tenant.name]
        self.deadlines.pop(slot, None)
        self.suspended.pop(slot, None)
        if slot < self._context.settings.slots:  # after a restart with fewer slots, surplus slots are not reused
            heapq.heappush(self.free, slot)
        if tenant.lifecycle.suspended:
            self.capacity.reserve(tenant.grant.gpus, tenant.spec, 1)
        self.capacity.occupy(tenant.grant.gpus, tenant.spec, -1)
        if not self.holders:
            self.idle_since = now
        self.departed.append(Departure(tenant, ending, now))
        self.tables.clear(tenant)
        revoked = Revoke(self._context.turn, peer, tenant.name, slot, tenant.grant.generation, ending)
        return [revoked, *self._neighbour_change(tenant.grant.places, leaving=1)]

    def rebuild(self) -> None:
        """Derive free slots, names, tables, capacity, deadlines and suspended tenants from the tenants."""
        settings = self._context.settings
        self.generations += [0] * (settings.slots - len(self.generations))
        self.free = [slot for slot in range(settings.slots) if slot not in self.holders]
        self.slot_of_name = {tenant.name: slot for slot, tenant in self.holders.items()}
        self.tables = TenantTables(self.holders.values(), self.tables.setpoints.values(), self.tables.calibrations)
        self.capacity = Capacity(settings, self.holders.values(), self._context.rules)
        lifecycles = {slot: tenant.lifecycle for slot, tenant in self.holders.items()}
        self.deadlines = {
            slot: lifecycle.until_ns for slot, lifecycle in lifecycles.items() if lifecycle.until_ns != NEVER
        }
        suspended = [slot for slot, lifecycle in lifecycles.items() if lifecycle.phase is ExitPhase.SUSPENDED]
        self.suspended = {slot: self.holders[slot].grant.gpus for slot in suspended}


def invent_name(command: str, slot: int, taken: Container[str]) -> str:
    """Return an unused name derived from the program and the slot."""
    base = program_of(command)
    name = f"{base}-{slot}"
    extra = 1
    while name in taken:
        extra += 1
        name = f"{base}-{slot}-{extra}"
    return name


@functools.lru_cache(maxsize=1024)
def program_of(command: str) -> str:
    """Return the program's name reduced to the characters of a tenant name."""
    words = command.split(maxsplit=1)
    base = _NOT_IN_NAME.sub("-", words[0].rsplit("/", 1)[-1]).strip("-._")[:32] if words else ""
    return base or "tenant"
