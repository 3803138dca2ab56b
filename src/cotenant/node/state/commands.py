"""Operator commands that change tenants or rules while the node runs, and the users that may give them."""

from __future__ import annotations

import msgspec

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import Limit
from cotenant.node.model.action import NO_PEER, Action, Refuse
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import (
    DisruptionAnnounced,
    EvictionRequested,
    ObjectiveChanged,
    PriorityChanged,
    RulesChanged,
    ShareChanged,
    TenantsPaused,
)
from cotenant.node.model.tenant import Tenant, TenantSpec
from cotenant.node.state.registry import NO_GPU, NodeContext, TenantRegistry
from cotenant.node.state.tenant_exit import TenantExits
from cotenant.units.instant import Instant


class OperatorCommands:
    """Carries out operator commands or refuses them."""

    __slots__ = ("_context", "_exits", "_registry")

    def __init__(self, context: NodeContext, registry: TenantRegistry, exits: TenantExits) -> None:
        """Bind the registry of the tenants."""
        self._context = context
        self._registry = registry
        self._exits = exits

    def pause(self, event: TenantsPaused, now: Instant) -> list[Action]:
        """Pause or resume tenants from their next launch on."""
        del now
        registry = self._registry
        if event.all_offline:
            # by slot, because the journal records the order
            tenants = [registry.holders[slot] for slot in sorted(registry.holders)]
            chosen = [tenant for tenant in tenants if tenant.grant.kind is Kind.OFFLINE]
            chosen = [tenant for tenant in chosen if event.is_owner or tenant.uid == event.uid]
            chosen = [tenant for tenant in chosen if tenant.grant.gpu != NO_GPU]
        else:
            named = self._find_all(event)
            if isinstance(named, Reject):
                return [Refuse(self._context.turn, event.peer, named)]
            ungated = [tenant.name for tenant in named if tenant.grant.gpu == NO_GPU]
            if ungated:
                detail = f"{ungated[0]!r} cannot be paused: the node has no GPU; start the node with --gpu NAME=MEMORY"
                return registry.refuse(event.peer, Reason.NO_GATE, detail)
            chosen = named
        for tenant in chosen:
            if tenant.paused != event.paused:
                registry.replace(msgspec.structs.replace(tenant, paused=event.paused))
        return [registry.confirm(event.peer, *chosen)]

    def evict(self, event: EvictionRequested, now: Instant) -> list[Action]:
        """Begin the exit of the named tenants; the confirmation does not wait for its end."""
        tenants = self._find_all(event)
        if isinstance(tenants, Reject):
            return [Refuse(self._context.turn, event.peer, tenants)]
        actions: list[Action] = []
        why = f"evicted: user {event.uid} requested it"
        for tenant in tenants:
            actions += self._exits.begin(tenant.grant.slot, why, now, grace_ns=event.grace_ns, may_restart=False)
        return [*actions, self._registry.confirm(event.peer, *tenants)]

    def announce(self, event: DisruptionAnnounced, now: Instant) -> list[Action]:
        """Continue the exit of a tenant whose pod is evicted; a tenant that has left meanwhile is no error."""
        tenant = self._registry.of_slot(event.slot, event.generation)
        if tenant is None:
            return [self._registry.confirm(event.peer)]
        found = self._registry.find_tenant(tenant.name, event.uid, is_owner=event.is_owner)
        if isinstance(found, Reject):
            return [Refuse(self._context.turn, event.peer, found)]
        actions = self._exits.announced(tenant, now, is_deleted=event.is_deleted, grace_ns=event.grace_ns)
        return [*actions, self._registry.confirm(event.peer, tenant)]

    def set_priority(self, event: PriorityChanged, now: Instant) -> list[Action]:
        """Change a tenant's priority."""
        del now
        registry = self._registry
        tenant = registry.find_tenant(event.name, event.uid, is_owner=event.is_owner)
        if isinstance(tenant, Reject):
            return [Refuse(self._context.turn, event.peer, tenant)]
        if tenant.grant.priority == event.priority:
            return [registry.confirm(event.peer, tenant)]
        grant = msgspec.structs.replace(tenant.grant, priority=event.priority)
        tenant = msgspec.structs.replace(tenant, grant=grant)
        registry.replace(tenant)
        return [registry.issue_grant(NO_PEER, tenant), registry.confirm(event.peer, tenant)]

    def set_share(self, event: ShareChanged, now: Instant) -> list[Action]:
        """Change a tenant's share, limit or memory from its next launch or allocation on, if they fit."""
        del now
        registry = self._registry
        tenant = registry.find_tenant(event.name, event.uid, is_owner=event.is_owner)
        if isinstance(tenant, Reject):
            return [Refuse(self._context.turn, event.peer, tenant)]
        share_ppm = tenant.spec.share_ppm if event.share_ppm is None else event.share_ppm
        memory_bytes = tenant.spec.memory_bytes if event.memory_bytes is None else event.memory_bytes
        spec = msgspec.structs.replace(
            tenant.spec, share_ppm=share_ppm, limit=event.limit or tenant.spec.limit, memory_bytes=memory_bytes
        )
        if spec.limit is Limit.STATIC and not spec.share_ppm and spec != tenant.spec:
            detail = (
                f"{tenant.name!r} has no share that a static limit could apply to; add --share or --limit conserving"
            )
            return registry.refuse(event.peer, Reason.NO_SHARE, detail)
        if spec == tenant.spec:
            return [registry.confirm(event.peer, tenant)]
        grant = msgspec.structs.replace(tenant.grant, share_ppm=share_ppm, memory_bytes=memory_bytes)
        if not tenant.lifecycle.suspended:
            objection = registry.capacity.objection_to_change(grant.gpus, tenant.spec, spec)
            if objection is not None:
                return [Refuse(self._context.turn, event.peer, objection)]
        tenant = self._set_reservation(tenant, grant, spec)
        return [registry.issue_grant(NO_PEER, tenant), registry.confirm(event.peer, tenant)]

    def set_objective(self, event: ObjectiveChanged, now: Instant) -> list[Action]:
        """Change a tenant's latency objective; without objectives a device returns to the configured rules."""
        del now
        registry = self._registry
        tenant = registry.find_tenant(event.name, event.uid, is_owner=event.is_owner)
        if isinstance(tenant, Reject):
            return [Refuse(self._context.turn, event.peer, tenant)]
        if event.slo_ns and tenant.grant.kind is Kind.OFFLINE:
            detail = f"{tenant.name!r} is an offline tenant, which has no latency objective; run it with --online"
            return registry.refuse(event.peer, Reason.NO_OBJECTIVE, detail)
        if tenant.grant.slo_ns == event.slo_ns:
            return [registry.confirm(event.peer, tenant)]
        grant = msgspec.structs.replace(tenant.grant, slo_ns=event.slo_ns)
        tenant = self._set_reservation(tenant, grant, msgspec.structs.replace(tenant.spec, slo_ns=event.slo_ns))
        for gpu in grant.gpus:
            if not event.slo_ns and gpu in registry.tables.setpoints:
                # No entry changes, but the set-point of the device depends on it.
                registry.tables.mark_all(gpu)
        return [registry.issue_grant(NO_PEER, tenant), registry.confirm(event.peer, tenant)]

    def set_rules(self, event: RulesChanged, now: Instant) -> list[Action]:
        """Change the gate rules of all devices."""
        del now
        registry = self._registry
        if not event.is_owner:
            detail = "only the user that runs the node may change its gate rules"
            return registry.refuse(event.peer, Reason.NOT_YOURS, detail)
        rules = event.change.applied(self._context.rules)
        if rules != self._context.rules:
            self._context.rules = rules
            registry.capacity.set_rules(rules)
            registry.mark_all()
        return [registry.confirm(event.peer)]

    def _set_reservation(self, tenant: Tenant, grant: Grant, spec: TenantSpec) -> Tenant:
        """Replace a tenant's grant and spec, and update capacity and predictions."""
        registry, gpus = self._registry, grant.gpus
        registry.capacity.occupy(gpus, tenant.spec, -1)
        registry.capacity.occupy(gpus, spec, 1)
        if tenant.lifecycle.suspended:  # a suspended tenant holds neither the old nor the new reservation
            registry.capacity.reserve(gpus, tenant.spec, 1)
            registry.capacity.reserve(gpus, spec, -1)
        tenant = msgspec.structs.replace(tenant, grant=grant, spec=spec)
        registry.replace(tenant)
        return tenant

    def _find_all(self, event: TenantsPaused | EvictionRequested) -> list[Tenant] | Reject:
        """Return all named tenants, or the refusal for the first that the user may not change."""
        tenants = []
        for name in event.names:
            tenant = self._registry.find_tenant(name, event.uid, is_owner=event.is_owner)
            if isinstance(tenant, Reject):
                return tenant
            tenants.append(tenant)
        return tenants
