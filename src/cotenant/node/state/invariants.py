"""Invariants of the node's state that hold after every turn."""

from __future__ import annotations

from cotenant.errors import InvariantError
from cotenant.gate.grant import Kind
from cotenant.gate.rules import GateEntry
from cotenant.node.model.admission import Plan, Reservation
from cotenant.node.model.protection import EVICTIONS_LIMIT, ExitPhase, GpuWatch, Health
from cotenant.node.policy.limit.share import delay_of
from cotenant.node.state.devices import DeviceHealth
from cotenant.node.state.memory_pressure import WAITING_LIMIT, MemoryPressure
from cotenant.node.state.online_shares import has_objective, peers_of
from cotenant.node.state.registry import NodeContext, TenantRegistry
from cotenant.node.state.tenant_tables import entry_of
from cotenant.units.instant import NEVER
from cotenant.units.share import WHOLE_PPM

_TIMELESS = (ExitPhase.RUNNING, ExitPhase.SUSPENDED)
"""Phases without a deadline."""


def plan_of(context: NodeContext, registry: TenantRegistry) -> Plan:
    """Return the reservations on all devices; suspended tenants hold none."""
    entries = [
        Reservation(
            tenant.name,
            gpu,
            0 if tenant.lifecycle.suspended else tenant.spec.memory_bytes,
            0 if tenant.lifecycle.suspended else tenant.spec.share_ppm,
        )
        for tenant in registry.holders.values()
        for gpu in tenant.grant.places
        if gpu < len(context.settings.gpus)
    ]
    return Plan(context.settings.gpus, tuple(entries))


def check(context: NodeContext, registry: TenantRegistry, devices: DeviceHealth, pressure: MemoryPressure) -> None:
    """Raise `InvariantError` that lists the violated invariants."""
    comparisons = [
        *_of_slots(context, registry),
        *_of_devices(context, registry, devices),
        *_of_setpoints(context, registry),
        *_of_lifecycles(registry),
        *_of_waiting(registry, pressure),
    ]
    violations = [
        f"{subject} are {actual}, not {required}" for subject, actual, required in comparisons if actual != required
    ]
    if violations:
        raise InvariantError(f"after turn {context.turn}: " + "; ".join(violations))


def _of_slots(context: NodeContext, registry: TenantRegistry) -> list[tuple[str, object, object]]:
    held = {slot: tenant.grant for slot, tenant in registry.holders.items()}
    return [
        ("slots of the grants", {slot: grant.slot for slot, grant in held.items()}, {slot: slot for slot in held}),
        (
            "generations in force",
            {slot: grant.generation for slot, grant in held.items()},
            {slot: registry.generations[slot] for slot in held},
        ),
        ("free slots", sorted(registry.free), [slot for slot in range(context.settings.slots) if slot not in held]),
        ("peers by slot", {peer: slot for slot, peer in registry.peer_of.items()}, registry.slot_of_peer),
        ("connected slots", [slot for slot in registry.peer_of if slot not in held], []),
        ("names", {tenant.name: slot for slot, tenant in registry.holders.items()}, registry.slot_of_name),
        ("waiting for disconnected tenants", registry.disconnected_until != NEVER, len(registry.peer_of) < len(held)),
    ]


def _of_devices(
    context: NodeContext, registry: TenantRegistry, devices: DeviceHealth
) -> list[tuple[str, object, object]]:
    held = {slot: tenant.grant for slot, tenant in registry.holders.items()}
    plan = plan_of(context, registry)
    watches = list(enumerate(devices.watches))
    disabled = [gpu for gpu, watch in watches if watch.health is Health.DISABLED]
    over = {gpu for gpu, watch in watches if watch.health is Health.OVERLIMIT}
    offline = [tenant for tenant in registry.holders.values() if tenant.grant.kind is Kind.OFFLINE]
    return [
        (
            "table entries",
            {gpu: registry.tables.entries(gpu) for gpu in registry.tables.devices()},
            {
                gpu: tuple(_entry(registry, gpu, slot) for slot in sorted(held) if gpu in held[slot].places)
                for gpu in sorted({gpu for grant in held.values() for gpu in grant.places})
            },
        ),
        (
            "capacities",
            registry.capacity.devices,
            [plan.capacity(capacity.index) for capacity in registry.capacity.devices],
        ),
        ("watched devices", len(watches), len(context.settings.gpus)),
        ("blocked devices", [gpu for gpu, watch in watches if watch.blocked], disabled),
        ("devices with too many evictions", [gpu for gpu, watch in watches if _has_too_many_evictions(watch)], []),
        ("devices that admit all tenants", devices.admits_all, devices.compute_admits_all()),
        (
            "online-first lists without names",
            [gpu for gpu, one in devices.online_first.items() if not one.names],
            [],
        ),
        (
            "offline tenants on devices over the limit",
            [
                one.name
                for one in offline
                if not over.isdisjoint(one.grant.gpus) and one.lifecycle.phase is ExitPhase.RUNNING
            ],
            [],
        ),
    ]


def _entry(registry: TenantRegistry, gpu: int, slot: int) -> GateEntry:
    return entry_of(registry.holders[slot], registry.tables.share_among_peers(gpu, slot))


def _of_setpoints(context: NodeContext, registry: TenantRegistry) -> list[tuple[str, object, object]]:
    setpoints = registry.tables.setpoints
    with_objective = {
        gpu: [tenant for tenant in registry.tenants_on(gpu) if has_objective(tenant)] for gpu in setpoints
    }
    peers = {gpu: peers_of(tenants) for gpu, tenants in with_objective.items()}
    shares = {slot: share_ppm for setpoint in setpoints.values() for slot, share_ppm in setpoint.shares}
    return [
        ("devices adjusted without objectives", [gpu for gpu, tenants in with_objective.items() if not tenants], []),
        ("devices adjusted while adjustment is off", bool(setpoints) and not context.settings.control.enabled, False),
        (
            "online shares out of range",
            [gpu for gpu, setpoint in setpoints.items() if not _is_valid_share(setpoint.online_ppm)],
            [],
        ),
        (
            "shares of tenants that left",
            [slot for gpu, setpoint in setpoints.items() for slot, _ in setpoint.shares if slot not in peers[gpu]],
            [],
        ),
        (
            "peer shares out of range",
            [slot for slot, share_ppm in shares.items() if not _is_valid_share(share_ppm)],
            [],
        ),
        (
            "delay budgets of the tables",
            {gpu: registry.tables.table(gpu, context.rules).delay_ppm for gpu in setpoints},
            {gpu: delay_of(setpoint.online_ppm) for gpu, setpoint in setpoints.items()},
        ),
    ]


def _is_valid_share(ppm: int) -> bool:
    return 0 < ppm <= WHOLE_PPM


def _has_too_many_evictions(watch: GpuWatch) -> bool:
    return len(watch.evictions) > EVICTIONS_LIMIT


def _of_lifecycles(registry: TenantRegistry) -> list[tuple[str, object, object]]:
    lifecycles = {slot: tenant.lifecycle for slot, tenant in sorted(registry.holders.items())}
    suspended = [slot for slot, lifecycle in lifecycles.items() if lifecycle.phase is ExitPhase.SUSPENDED]
    timeless = [
        slot for slot, lifecycle in lifecycles.items() if lifecycle.phase in _TIMELESS or slot not in registry.peer_of
    ]
    return [
        (
            "deadlines",
            dict(sorted(registry.deadlines.items())),
            {slot: lifecycle.until_ns for slot, lifecycle in lifecycles.items() if lifecycle.until_ns != NEVER},
        ),
        (
            "slots without a deadline",
            [slot for slot in lifecycles if slot not in registry.deadlines and slot not in timeless],
            [],
        ),
        (
            "deadlines in phases without one",
            [
                slot
                for slot, lifecycle in lifecycles.items()
                if lifecycle.phase in _TIMELESS and slot in registry.deadlines
            ],
            [],
        ),
        (
            "suspended slots",
            sorted(registry.suspended),
            [slot for slot, lifecycle in lifecycles.items() if lifecycle.phase is ExitPhase.SUSPENDED],
        ),
        (
            "suspended slots that run",
            [
                slot
                for slot, lifecycle in lifecycles.items()
                if lifecycle.suspended and _is_running_phase(lifecycle.phase)
            ],
            [],
        ),
        (
            "suspended slots with a reservation",
            [slot for slot in suspended if not lifecycles[slot].suspended],
            [],
        ),
    ]


def _is_running_phase(phase: ExitPhase) -> bool:
    return phase in (ExitPhase.RUNNING, ExitPhase.SUSPENDING, ExitPhase.RESTORING)


def _of_waiting(registry: TenantRegistry, pressure: MemoryPressure) -> list[tuple[str, object, object]]:
    peers = [join.peer for join in pressure.waiting]
    return [
        ("peers that wait twice", len(set(peers)), len(peers)),
        ("peers that wait and are tenants", [peer for peer in peers if peer in registry.slot_of_peer], []),
        ("waiting peers beyond the limit", peers[WAITING_LIMIT:], []),
        ("offline tenants that wait", [join.peer for join in pressure.waiting if join.spec.kind is Kind.OFFLINE], []),
    ]
