"""Memory pressure: which offline tenants give up memory for an online tenant, and which joins wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cotenant.gate.grant import Kind
from cotenant.node.model.action import Action, Refuse
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import MemoryRequested, TenantJoined, WaitingJoin
from cotenant.node.model.gpu import name_gpus
from cotenant.node.model.protection import ExitPhase, OnPressure
from cotenant.node.model.tenant import Tenant, TenantSpec
from cotenant.node.policy.protect.pressure import Candidate, victims
from cotenant.node.state.registry import NodeContext, TenantRegistry
from cotenant.node.state.suspension import Suspensions
from cotenant.node.state.tenant_exit import ENDING, TenantExits
from cotenant.units.instant import Instant
from cotenant.units.text import format_size, round_size

WAITING_LIMIT: Final = 64
"""Maximum number of joins that wait for memory at once; further ones are refused."""
_NO_BARS: Final[dict[int, Reject]] = {}


class MemoryPressure:
    """Waiting joins in order of arrival, and the tenants that give up memory for them."""

    __slots__ = ("_context", "_exits", "_registry", "_suspensions", "waiting")

    def __init__(
        self, context: NodeContext, registry: TenantRegistry, exits: TenantExits, suspensions: Suspensions
    ) -> None:
        """Begin without waiting joins."""
        self._context = context
        self._registry = registry
        self._exits = exits
        self._suspensions = suspensions
        self.waiting: list[WaitingJoin] = []

    def make_room(self, event: TenantJoined, now: Instant, barred: dict[int, Reject]) -> list[Action] | None:
        """Make offline tenants give up memory for an online join, which waits; None: that would not suffice.

        Unless the join requests a device, this is the device on which the fewest tenants must give up memory.
        """
        spec = event.spec
        if len(self.waiting) >= WAITING_LIMIT:
            return None
        if spec.device_count > 1:
            return self._make_room_on_all(event, now, barred)
        devices = self._registry.devices_named(spec) or range(len(self._context.settings.gpus))
        plans = [
            (gpu, victim_slots)
            for gpu in devices
            if (victim_slots := self._choose_victims(spec, gpu, barred)) is not None
        ]
        if not plans:
            return None
        gpu, victim_slots = min(plans, key=lambda candidate: len(candidate[1]))
        return self._wait_for(event, (gpu,), victim_slots, now)

    def _make_room_on_all(self, event: TenantJoined, now: Instant, barred: dict[int, Reject]) -> list[Action] | None:
        """Make offline tenants give up memory on each of several devices that lacks it; None: that would not suffice.

        Unless the join requests devices, these are the ones on which the fewest tenants must give up memory.
        """
        spec, capacity = event.spec, self._registry.capacity
        candidates = self._registry.devices_named(spec) or range(len(self._context.settings.gpus))
        plans: list[tuple[int, list[int]]] = []
        for gpu in candidates:
            has_capacity = capacity.objection(spec, gpu, barred) is None
            victim_slots = [] if has_capacity else self._choose_victims(spec, gpu, barred)
            if victim_slots is not None:
                plans.append((gpu, victim_slots))
        if len(plans) < spec.device_count:
            return None
        plans = sorted(plans, key=lambda plan: len(plan[1]))[: spec.device_count] if not spec.gpu else plans
        gpus = [gpu for gpu, _ in plans]
        ordered = tuple(gpus if spec.gpu else sorted(gpus))
        return self._wait_for(event, ordered, sorted({slot for _, slots in plans for slot in slots}), now)

    def _wait_for(
        self, event: TenantJoined, gpus: tuple[int, ...], victim_slots: Sequence[int], now: Instant
    ) -> list[Action]:
        """Let a join wait for devices, and make these tenants give up their memory."""
        spec = event.spec
        until_ns = now + self._context.settings.limits.make_room_ns
        self.waiting.append(WaitingJoin(event.peer, event.pid, event.uid, spec, gpus[0], until_ns, gpus[1:]))
        name = f"online tenant {spec.name}" if spec.name else "an online tenant"
        why = f"{name} needs {format_size(spec.memory_bytes)} on {name_gpus(gpus)}"
        actions: list[Action] = []
        for slot in victim_slots:
            tenant = self._registry.holders[slot]
            actions += self.suspend_or_evict(tenant, why, tenant.spec.memory_bytes, now)
        return actions

    def _choose_victims(self, spec: TenantSpec, gpu: int, barred: dict[int, Reject]) -> list[int] | None:
        """Return the further tenants that must give up memory for this join on this device."""
        objection = self._registry.capacity.objection(spec, gpu, barred)
        if objection is None or objection.reason is not Reason.NO_MEMORY:
            return None
        tenants = self._registry.tenants_on(gpu)
        leaving = [tenant for tenant in tenants if _is_freeing_memory(tenant)]
        waiting = [join.spec for join in self.waiting if gpu in join.gpus]
        freed_bytes = _memory_of(tenant.spec for tenant in leaving) - _memory_of(waiting)
        short_bytes = spec.memory_bytes - self._registry.capacity.devices[gpu].memory_free_bytes - freed_bytes
        candidates = [
            _candidate(tenant, tenant.spec.memory_bytes)
            for tenant in tenants
            if tenant.lifecycle.phase is ExitPhase.RUNNING
        ]
        chosen = victims(candidates, max(short_bytes, 0))
        if chosen is None:
            return None
        freed = [*(tenant.spec for tenant in leaving), *(self._registry.holders[slot].spec for slot in chosen)]
        freed_bytes = _memory_of(freed) - _memory_of(waiting)
        freed_ppm = sum(other.share_ppm for other in freed) - sum(other.share_ppm for other in waiting)
        return chosen if self._registry.capacity.would_fit(gpu, spec, freed_bytes, freed_ppm) else None

    def memory_requested(self, event: MemoryRequested, now: Instant) -> list[Action]:
        """Make offline tenants give up the memory that an online tenant's allocation waits for.

        If all of them together would not suffice, none gives up any: the allocation fails in any case.
        """
        requester = self._registry.of_slot(event.slot, event.generation)
        if requester is None or requester.grant.kind is not Kind.ONLINE or requester.lifecycle.phase in ENDING:
            return []
        held = dict(event.held)
        gpu = event.gpu if event.gpu in requester.grant.gpus else requester.grant.gpu
        tenants = [tenant for tenant in self._registry.tenants_on(gpu) if tenant.grant.slot in held]
        freed_bytes = sum(held[tenant.grant.slot] for tenant in tenants if _is_freeing_memory(tenant))
        candidates = [
            _candidate(tenant, held[tenant.grant.slot])
            for tenant in tenants
            if tenant.lifecycle.phase is ExitPhase.RUNNING
        ]
        why = f"online tenant {requester.name} needs {round_size(event.bytes)} on GPU {gpu}"
        actions: list[Action] = []
        for slot in victims(candidates, max(event.bytes - event.free_bytes - freed_bytes, 0)) or ():
            actions += self.suspend_or_evict(self._registry.holders[slot], why, held[slot], now)
        return actions

    def suspend_or_evict(self, tenant: Tenant, why: str, held_bytes: int, now: Instant) -> list[Action]:
        """Suspend the tenant if it may be suspended, else evict it."""
        if tenant.spec.on_pressure is OnPressure.SUSPEND:
            return self._suspensions.begin(tenant.grant.slot, f"suspended: {why}", held_bytes, now)
        return self._exits.begin(tenant.grant.slot, f"evicted: {why}", now)

    # -- waiting joins --------------------------------------------------------------------------------------------

    def bars(self, gpu: int) -> Instant | None:
        """Return until when offline tenants must not join a device because an online join waits for it."""
        return max((join.until_ns for join in self.waiting if gpu in join.gpus), default=None)

    def is_waiting(self, peer: int) -> bool:
        """Return whether a peer's join waits."""
        return any(join.peer == peer for join in self.waiting)

    def forget(self, peer: int) -> None:
        """Drop the waiting join of a peer that disconnected."""
        self.waiting = [join for join in self.waiting if join.peer != peer]

    def settle(self, now: Instant) -> list[Action]:
        """Admit waiting joins that fit now, in order, and refuse those whose time is over."""
        actions: list[Action] = []
        for join in self.waiting.copy():
            answer = self._answer(join, now)
            if answer:
                self.waiting.remove(join)
                actions += answer
        return actions

    def _answer(self, join: WaitingJoin, now: Instant) -> list[Action]:
        spec, registry = join.spec, self._registry
        if spec.name and spec.name in registry.slot_of_name:
            return registry.refuse(join.peer, Reason.NAME_TAKEN, f"the name {spec.name!r} was taken while it waited")
        if registry.free and all(registry.capacity.objection(spec, gpu, _NO_BARS) is None for gpu in join.gpus):
            return registry.admit(TenantJoined(join.peer, join.pid, join.uid, spec), join.gpus, now)
        return [Refuse(self._context.turn, join.peer, self._timed_out(join.gpus))] if now >= join.until_ns else []

    def _timed_out(self, gpus: Sequence[int]) -> Reject:
        wait_ns = self._context.settings.limits.make_room_ns
        detail = f"the offline tenants of {name_gpus(gpus)} have not freed enough memory yet; try again"
        return Reject(Reason.NO_CAPACITY_YET, detail, wait_ns)

    def refuse_waiting(self, gpu: int, reject: Reject) -> list[Action]:
        """Refuse the joins that wait for a device that admits no tenants any more."""
        refused = [join for join in self.waiting if gpu in join.gpus]
        self.waiting = [join for join in self.waiting if gpu not in join.gpus]
        return [Refuse(self._context.turn, join.peer, reject) for join in refused]


def _is_freeing_memory(tenant: Tenant) -> bool:
    """Return whether the tenant holds memory that will be free without a further request."""
    lifecycle = tenant.lifecycle
    return not lifecycle.suspended and (lifecycle.phase in ENDING or lifecycle.phase is ExitPhase.SUSPENDING)


def _memory_of(specs: Iterable[TenantSpec]) -> int:
    return sum(spec.memory_bytes for spec in specs)


def _candidate(tenant: Tenant, held_bytes: int) -> Candidate:
    grant = tenant.grant
    return Candidate(grant.slot, grant.kind, grant.priority, held_bytes, tenant.spec.on_pressure, tenant.joined_ns)
