"""Online shares in force: set by proposals of the control loop, dropped when no tenant with an objective remains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cotenant.gate.grant import Kind
from cotenant.node.model.action import Action, SetOnlineShare
from cotenant.node.model.control import OnlineShareSetpoint
from cotenant.node.model.event import OnlineShareProposed
from cotenant.node.model.tenant import Tenant
from cotenant.node.policy.limit.share import share_of
from cotenant.node.state.registry import NodeContext, TenantRegistry
from cotenant.units.instant import Instant
from cotenant.units.share import WHOLE_PPM


def has_objective(tenant: Tenant) -> bool:
    """Return whether an online tenant has a latency objective."""
    return tenant.grant.kind is Kind.ONLINE and tenant.grant.slo_ns > 0


def peers_of(tenants: Iterable[Tenant]) -> set[int]:
    """Return the slots of tenants with an objective that have a peer with one: the node divides the device among them.

    Peers are tenants of the same priority.
    """
    grants = [tenant.grant for tenant in tenants if has_objective(tenant)]
    priorities = Counter(grant.priority for grant in grants)
    return {grant.slot for grant in grants if priorities[grant.priority] > 1}


class OnlineShares:
    """Applies proposed online shares to the tenant tables and removes them when they no longer apply."""

    __slots__ = ("_context", "_registry")

    def __init__(self, context: NodeContext, registry: TenantRegistry) -> None:
        """Bind the registry with the tenant tables."""
        self._context = context
        self._registry = registry

    def adjust(self, event: OnlineShareProposed, now: Instant) -> list[Action]:
        """Apply a proposal, without tenants that left meanwhile and devices without objectives."""
        del now
        registry, proposed = self._registry, event.adjustment
        gpu = proposed.gpu
        tenants = registry.tenants_on(gpu) if 0 <= gpu < len(self._context.settings.gpus) else []
        applies = proposed.online_ppm > 0 and any(map(has_objective, tenants))
        if not applies or not self._context.settings.control.enabled:
            return []
        setpoint = registry.tables.setpoints.get(gpu)
        was_ppm = share_of(self._context.rules.delay_ppm) if setpoint is None else setpoint.online_ppm
        shares = _shares_of(peers_of(tenants), proposed.shares)
        self._set(OnlineShareSetpoint(gpu, proposed.online_ppm, shares, proposed.is_simple))
        return [SetOnlineShare(self._context.turn, proposed, was_ppm)]

    def settle(self) -> None:
        """Drop set-points and shares of tenants that left in this turn."""
        registry = self._registry
        for gpu in sorted(set(registry.tables.setpoints) & set(registry.tables.changed)):
            setpoint = registry.tables.setpoints[gpu]
            tenants = registry.tenants_on(gpu)
            shares = _shares_of(peers_of(tenants), setpoint.shares)
            if not any(map(has_objective, tenants)) or not self._context.settings.control.enabled:
                self._set(OnlineShareSetpoint(gpu, 0))
            elif shares != setpoint.shares:
                self._set(OnlineShareSetpoint(gpu, setpoint.online_ppm, shares, setpoint.is_simple))

    def _set(self, setpoint: OnlineShareSetpoint) -> None:
        """Store the set-point and update all entries of the device; its rules change, so the whole table is sent."""
        self._registry.tables.set_online_share(setpoint)
        for tenant in self._registry.tenants_on(setpoint.gpu):
            self._registry.tables.put(tenant)
        self._registry.tables.mark_all(setpoint.gpu)


def _shares_of(slots: set[int], shares: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    return tuple((slot, share_ppm) for slot, share_ppm in shares if slot in slots and 0 < share_ppm <= WHOLE_PPM)
