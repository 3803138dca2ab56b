"""Suspension of tenants: their memory moves to the host and their reservations are released until they are restored."""

from __future__ import annotations

import msgspec

from cotenant.node.model.action import Action, RestoreTenant, SuspendTenant
from cotenant.node.model.event import TenantRestored, TenantSuspended
from cotenant.node.model.gpu import name_gpus
from cotenant.node.model.protection import ExitPhase, GpuSample, Lifecycle
from cotenant.node.model.tenant import Tenant
from cotenant.node.state.registry import NodeContext, TenantRegistry
from cotenant.node.state.tenant_exit import TenantExits
from cotenant.units.instant import NEVER, Instant
from cotenant.units.share import WHOLE_PPM


class Suspensions:
    """Suspends and restores tenants; a tenant that cannot be suspended is evicted."""

    __slots__ = ("_context", "_exits", "_registry")

    def __init__(self, context: NodeContext, registry: TenantRegistry, exits: TenantExits) -> None:
        """Bind the registry of the tenants."""
        self._context = context
        self._registry = registry
        self._exits = exits

    def begin(self, slot: int, why: str, held_bytes: int, now: Instant) -> list[Action]:
        """Stop a tenant's launches and let its submitted work finish."""
        tenant = self._registry.holders[slot]
        until_ns = now + self._context.settings.limits.drain_ns
        lifecycle = Lifecycle(ExitPhase.SUSPENDING, why, self._context.turn, now, until_ns, held_bytes=held_bytes)
        self._registry.set_lifecycle(tenant, lifecycle)
        return []

    def drained(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Ask for the suspension once the tenant has no work left."""
        return [] if tenant.lifecycle.ignores_drain else self._request_suspend(tenant, now)

    def due(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Handle a deadline of draining, suspending or restoring."""
        lifecycle = tenant.lifecycle
        if lifecycle.phase is ExitPhase.SUSPENDING and not lifecycle.ignores_drain:
            return self._request_suspend(tenant, now)
        verb = "suspend" if lifecycle.phase is ExitPhase.SUSPENDING else "restore"
        return self._exits.begin(tenant.grant.slot, f"evicted: its parent did not {verb} it in time", now)

    def resumed(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Repeat the current request after the parent reconnected."""
        match tenant.lifecycle.phase:
            case ExitPhase.SUSPENDING if tenant.lifecycle.ignores_drain:
                return self._request_suspend(tenant, now)
            case ExitPhase.SUSPENDING:
                until_ns = now + self._context.settings.limits.drain_ns
                self._registry.set_lifecycle(tenant, msgspec.structs.replace(tenant.lifecycle, until_ns=until_ns))
                return []
            case ExitPhase.RESTORING:
                return self._request_restore(tenant, now)
        return []

    def suspended(self, event: TenantSuspended, now: Instant) -> list[Action]:
        """Handle the result of a suspension; a failed one evicts the tenant."""
        tenant = self._registry.of_peer(event.peer)
        if tenant is None or tenant.lifecycle.phase is not ExitPhase.SUSPENDING:
            return []
        if not event.ok:
            why = f"evicted: it could not be suspended ({event.detail or 'no reason given'})"
            return self._exits.begin(tenant.grant.slot, why, now)
        suspended = {
            "phase": ExitPhase.SUSPENDED,
            "since_ns": now,
            "until_ns": NEVER,
            "ignores_drain": False,
            "suspended": True,
        }
        self._registry.set_lifecycle(tenant, msgspec.structs.replace(tenant.lifecycle, **suspended))
        return []

    def restored(self, event: TenantRestored, now: Instant) -> list[Action]:
        """Handle the result of a restore; after a failed one the tenant stays suspended."""
        tenant = self._registry.of_peer(event.peer)
        if tenant is None or tenant.lifecycle.phase is not ExitPhase.RESTORING:
            return []
        if event.ok:
            self._registry.set_lifecycle(tenant, Lifecycle(turn=self._context.turn, since_ns=now))
            return []
        why = f"suspended: it could not be restored ({event.detail or 'no reason given'})"
        suspended = {"phase": ExitPhase.SUSPENDED, "why": why, "since_ns": now, "until_ns": NEVER, "suspended": True}
        self._registry.set_lifecycle(tenant, msgspec.structs.replace(tenant.lifecycle, **suspended))
        return []

    def restarted(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Handle a restarted program, which begins anew if its reservation still fits."""
        if tenant.lifecycle.suspended and not self._registry.capacity.has_capacity(tenant.grant.gpus, tenant.spec):
            why = f"evicted: it restarted while others held its reservation on {name_gpus(tenant.grant.gpus)}"
            return self._exits.begin(tenant.grant.slot, why, now)
        self._registry.set_lifecycle(tenant, Lifecycle(turn=self._context.turn, since_ns=now))
        return []

    def restore_fitting(self, gpu: int, sample: GpuSample, now: Instant) -> list[Action]:
        """Restore suspended tenants that fit on a healthy device and have waited long enough.

        The order is highest priority first, then longest suspended. A tenant that does not fit holds back those after
        it, so that a large tenant does not wait for ever.
        """
        limits = self._context.settings.limits
        suspended = [
            tenant for tenant in self._registry.tenants_on(gpu) if tenant.lifecycle.phase is ExitPhase.SUSPENDED
        ]
        suspended.sort(key=lambda tenant: (tenant.grant.priority, tenant.lifecycle.since_ns, tenant.grant.slot))
        actions: list[Action] = []
        has_sample = sample.memory_used_bytes >= 0 and sample.memory_bytes > 0
        free_bytes = sample.memory_bytes * limits.memory_calm_ppm // WHOLE_PPM - sample.memory_used_bytes
        for tenant in suspended:
            wanted_bytes = tenant.lifecycle.held_bytes or tenant.spec.memory_bytes
            has_waited = now - tenant.lifecycle.since_ns >= limits.make_room_ns
            has_capacity = self._registry.capacity.has_capacity(tenant.grant.gpus, tenant.spec) and (
                not has_sample or wanted_bytes <= free_bytes
            )
            is_connected = tenant.grant.slot in self._registry.peer_of
            if not (has_waited and has_capacity and is_connected):
                break
            free_bytes -= wanted_bytes
            actions += self._request_restore(tenant, now)
        return actions

    def _request_suspend(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Ask the parent to suspend its program; a disconnected parent is waited for."""
        slot = tenant.grant.slot
        peer = self._registry.peer_of.get(slot)
        until_ns = NEVER if peer is None else now + self._context.settings.limits.make_room_ns
        self._registry.set_lifecycle(
            tenant, msgspec.structs.replace(tenant.lifecycle, until_ns=until_ns, ignores_drain=True)
        )
        return [] if peer is None else [SuspendTenant(self._context.turn, peer, slot, tenant.lifecycle.why)]

    def _request_restore(self, tenant: Tenant, now: Instant) -> list[Action]:
        slot = tenant.grant.slot
        until_ns = now + self._context.settings.limits.make_room_ns
        restoring = {"phase": ExitPhase.RESTORING, "since_ns": now, "until_ns": until_ns, "suspended": False}
        self._registry.set_lifecycle(tenant, msgspec.structs.replace(tenant.lifecycle, **restoring))
        return [RestoreTenant(self._context.turn, self._registry.peer_of[slot], slot)]
