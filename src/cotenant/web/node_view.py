"""What the page shows of a node: GPUs and tenants at one instant, with rates since the previous one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cotenant.gate.activity import DeviceSnapshot, GateCounts, TenantActivity, activity_between
from cotenant.gate.hold_reason import HeldLaunch
from cotenant.gate.ledger import LedgerAccount
from cotenant.gate.request_counts import RequestStats, request_stats_between
from cotenant.node import wire
from cotenant.node.client.connection import list_tenants, read_activity
from cotenant.node.client.explain_text import describe_hold
from cotenant.node.decision_log import describe_rules
from cotenant.node.directories import Directories
from cotenant.node.model.control import OnlineShareSetpoint
from cotenant.node.model.tenant import TenantView
from cotenant.runner.clock import unix_ns
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM

REQUEST_PERIODS: Final = 10
"""Request latencies cover this many periods: one second has too few requests for a 99th percentile."""


class NodeView:
    """Reads a node repeatedly; each reading has rates relative to the one before."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories
        self._before: deque[dict[int, DeviceSnapshot]] = deque(maxlen=REQUEST_PERIODS)

    def reset(self) -> None:
        """Forget earlier readings, because nothing was read for some time."""
        self._before.clear()

    def read(self) -> dict[str, Any]:
        """Return the node as JSON values."""
        registry, activity = list_tenants(self._directories), read_activity(self._directories)
        after = {gpu.gate.gpu: gpu.gate for gpu in activity.gpus if gpu.gate is not None}
        before = self._before[-1] if self._before else after
        earlier = self._before[0] if self._before else after
        self._before.append(after)
        devices = [
            _Device(index, registry, activity.gpus[index], before, earlier) for index in range(len(activity.gpus))
        ]
        tenants = [tenant for device in devices for tenant in device.tenants]
        shown = {(tenant["slot"], tenant["generation"]) for tenant in tenants}
        tenants += [
            _without_gate(view, registry)
            for view in registry.tenants
            if (view.tenant.grant.slot, view.tenant.grant.generation) not in shown
        ]
        return {
            "at_ms": unix_ns() // 1_000_000,
            "node": {
                "version": registry.node_version,
                "pid": registry.pid,
                "slots": registry.slots,
                "turns": registry.turns,
                "restricted": registry.is_restricted,
                "turn_p99_ns": registry.turn_ns.quantile(0.99) if registry.turn_ns.count else 0,
            },
            "gpus": [device.record(registry) for device in devices],
            "tenants": sorted(tenants, key=lambda tenant: (tenant["gpu"], tenant["priority"], tenant["name"])),
            "delays": [delay for device in devices for delay in device.delays],
            "departed": [
                {
                    "name": departure.tenant.name,
                    "ending": departure.ending,
                    "ago_s": max(0, registry.now_ns - departure.ended_ns) // SECOND_NS,
                }
                for departure in registry.departed[-20:]
            ],
        }


class _Device:
    """One GPU between two snapshots."""

    def __init__(
        self,
        index: int,
        registry: wire.TenantList,
        activity: wire.GpuActivity,
        before: Mapping[int, DeviceSnapshot],
        earlier: Mapping[int, DeviceSnapshot],
    ) -> None:
        self._index = index
        self._setpoint = next((setpoint for setpoint in registry.setpoints if setpoint.gpu == index), None)
        self._accounts: Mapping[int, LedgerAccount] = {} if activity.ledger is None else activity.ledger.accounts
        self._foreign_bytes = 0 if activity.ledger is None else activity.ledger.foreign_bytes
        self._gate = activity.gate
        self.tenants: list[dict[str, Any]] = []
        self.delays: list[dict[str, Any]] = []
        if activity.gate is None:
            return
        views = {
            (view.tenant.grant.slot, view.tenant.grant.generation): view
            for tenant in registry.tenants
            for view in tenant.by_device()
            if view.tenant.grant.gpu == index
        }
        gate = activity.gate
        first, tenth = before.get(index, gate), earlier.get(index, gate)
        activities = activity_between(first, gate)
        shares = _shares(activities, views, self._setpoint)
        for tenant in activities:
            view = views.get((tenant.slot, tenant.generation))
            if view is not None:
                self.tenants.append(
                    {
                        **_without_gate(view, registry),
                        **self._counters(tenant, view, (first, tenth, gate)),
                        **shares[tenant.slot],
                        "hold": _hold(activity.holds.get(tenant.slot), gate.gpu, registry),
                    }
                )
        names = {tenant["slot"]: tenant["name"] for tenant in self.tenants}
        self.delays = list(_gate_delays(index, activities, (first, gate), names))

    def _counters(
        self, tenant: TenantActivity, view: TenantView, snapshots: tuple[DeviceSnapshot, DeviceSnapshot, DeviceSnapshot]
    ) -> dict[str, Any]:
        first, tenth, gate = snapshots
        account = self._accounts.get(tenant.slot)
        if account is not None and account.generation != tenant.generation:
            account = None
        requests = None
        if tenant.is_online:
            requests = _requests(tenth, gate, tenant.slot, view.tenant.grant.slo_ns)
        now, was = gate.counts.get(tenant.slot, GateCounts()), first.counts.get(tenant.slot, GateCounts())
        elapsed_ns = max(1, gate.at_ns - first.at_ns)
        waited_ns = max(0, now.waited_ns - was.waited_ns) if now.generation == was.generation else 0
        return {
            "state": tenant.state.value,
            "launches_per_s": round(tenant.launches_per_s, 1),
            "device_ppm": tenant.device_ppm,
            "filled_ppm": tenant.filled_ppm,
            "filled_of_idle_ppm": tenant.filled_of_idle_ppm,
            "waits_per_s": round(tenant.waits_per_s, 1),
            "waited_ppm": waited_ns * WHOLE_PPM // elapsed_ns,
            "waited_p99_ns": tenant.waited_p99_ns,
            "overrun_ppm": tenant.overrun_ppm,
            "spun_ppm": tenant.spun_ppm,
            "held_bytes": 0 if account is None else account.held_bytes,
            "measured_bytes": None if account is None else account.measured_bytes,
            "denied": 0 if account is None else account.denied,
            "pids": [] if account is None else [line.pid for line in account.lines],
            **({} if requests is None else _request_record(requests)),
        }

    def record(self, registry: wire.TenantList) -> dict[str, Any]:
        """Return the GPU as JSON values."""
        gpu = registry.gpus[self._index] if self._index < len(registry.gpus) else None
        watch = registry.devices[self._index] if self._index < len(registry.devices) else None
        return {
            "index": self._index,
            "name": "" if gpu is None else gpu.name,
            "called": [] if gpu is None else list(gpu.names(self._index)),
            "memory_bytes": 0 if gpu is None else gpu.memory_bytes,
            "held_bytes": sum(tenant["held_bytes"] for tenant in self.tenants),
            "foreign_bytes": self._foreign_bytes,
            "busy_ppm": min(WHOLE_PPM, sum(tenant["device_ppm"] for tenant in self.tenants)),
            "online_ppm": sum(tenant["device_ppm"] for tenant in self.tenants if tenant["kind"] == "online"),
            "offline_ppm": sum(tenant["device_ppm"] for tenant in self.tenants if tenant["kind"] == "offline"),
            "launches_per_s": round(sum(tenant["launches_per_s"] for tenant in self.tenants), 1),
            "health": "" if watch is None else watch.health.value,
            "why": "" if watch is None else watch.why,
            "setpoint_ppm": None if self._setpoint is None else self._setpoint.online_ppm,
            "rules": "" if self._gate is None else describe_rules(self._gate.rules),
            "tenants": len(self.tenants),
        }


def _without_gate(view: TenantView, registry: wire.TenantList) -> dict[str, Any]:
    """Return what the node knows of a tenant without its pages."""
    tenant, grant, spec = view.tenant, view.tenant.grant, view.tenant.spec
    return {
        "name": tenant.name,
        "slot": grant.slot,
        "generation": grant.generation,
        "gpu": grant.gpu,
        "kind": grant.kind.value,
        "priority": grant.priority,
        "phase": tenant.lifecycle.phase.value,
        "why": tenant.lifecycle.why,
        "connected": view.connected,
        "paused": tenant.paused,
        "restarts": tenant.restarts,
        "pid": tenant.pid,
        "uid": tenant.uid,
        "command": spec.command,
        "age_s": max(0, registry.now_ns - tenant.joined_ns) // SECOND_NS,
        "granted_ppm": grant.share_ppm,
        "limit": spec.limit.value,
        "quota_bytes": grant.memory_bytes,
        "slo_ns": grant.slo_ns,
        "state": "paused" if tenant.paused else "quiet",
        "launches_per_s": 0,
        "device_ppm": 0,
        "held_bytes": 0,
        "share_ppm": grant.share_ppm,
        "kept_ppm": 0,
        "lent_ppm": 0,
        "waited_ppm": 0,
        "hold": "",
        "pids": [],
    }


def _requests(before: DeviceSnapshot, after: DeviceSnapshot, slot: int, slo_ns: int) -> RequestStats:
    entries = {entry.slot: entry for entry in after.rules.entries}
    entry = entries[slot]
    return request_stats_between(
        before.counts_of(entry), after.counts_of(entry), after.at_ns, slo_ns, after.at_ns - before.at_ns
    )


def _request_record(requests: RequestStats) -> dict[str, Any]:
    per_s = requests.requests * SECOND_NS / requests.for_ns if requests.for_ns else 0.0
    return {
        "requests_per_s": round(per_s, 1),
        "p50_ns": requests.p50_ns,
        "p99_ns": requests.p99_ns,
        "within_ppm": requests.within_ppm,
        "oldest_ns": requests.oldest_ns,
        "is_reported": requests.is_reported,
    }


def _shares(
    activities: Sequence[TenantActivity],
    views: Mapping[tuple[int, int], TenantView],
    setpoint: OnlineShareSetpoint | None,
) -> dict[int, dict[str, int]]:
    """Return the share of each tenant, how much of it the tenant used, and how much of it others used.

    The share is the one that its user set, or for online tenants under control their part of the online share. What
    tenants use beyond their shares is divided among those that leave a part of theirs unused.
    """
    among_peers = dict(setpoint.shares) if setpoint is not None else {}
    shares: dict[int, int] = {}
    for tenant in activities:
        view = views.get((tenant.slot, tenant.generation))
        own_ppm = 0 if view is None else view.tenant.grant.share_ppm
        if not own_ppm and setpoint is not None and tenant.is_online:
            own_ppm = setpoint.online_ppm * among_peers.get(tenant.slot, WHOLE_PPM) // WHOLE_PPM
        shares[tenant.slot] = own_ppm
    unused = {tenant.slot: max(0, shares[tenant.slot] - tenant.device_ppm) for tenant in activities}
    borrowed_ppm = sum(max(0, tenant.device_ppm - shares[tenant.slot]) for tenant in activities)
    lendable_ppm = sum(unused.values())
    lent_part = min(1.0, borrowed_ppm / lendable_ppm) if lendable_ppm else 0.0
    return {
        tenant.slot: {
            "share_ppm": shares[tenant.slot],
            "kept_ppm": min(tenant.device_ppm, shares[tenant.slot]),
            "lent_ppm": round(unused[tenant.slot] * lent_part),
        }
        for tenant in activities
    }


def _gate_delays(
    gpu: int,
    activities: Sequence[TenantActivity],
    snapshots: tuple[DeviceSnapshot, DeviceSnapshot],
    names: Mapping[int, str],
) -> list[dict[str, Any]]:
    """Return who delayed whom at the gate, as parts of the time.

    The pages say how long a tenant waited, and how much it may have delayed tenants of higher priority, but not by or
    for whom: both are divided among those tenants in proportion to their device time.
    """
    before, after = snapshots
    elapsed_ns = max(1, after.at_ns - before.at_ns)
    delays: list[dict[str, Any]] = []
    for tenant in activities:
        now, was = after.counts.get(tenant.slot, GateCounts()), before.counts.get(tenant.slot, GateCounts())
        if tenant.slot not in names or now.generation != was.generation:
            continue
        waited_ppm = max(0, now.waited_ns - was.waited_ns) * WHOLE_PPM // elapsed_ns
        others = [other for other in activities if other.priority <= tenant.priority and other is not tenant]
        delays += _divided(gpu, names, waited_ppm, others, lambda other, own=tenant.slot: (own, other))
        higher = [other for other in activities if other.priority < tenant.priority]
        delays += _divided(gpu, names, tenant.overrun_ppm, higher, lambda other, own=tenant.slot: (other, own))
    return delays


def _divided(
    gpu: int, names: Mapping[int, str], total_ppm: int, others: Sequence[TenantActivity], pair: Any
) -> list[dict[str, Any]]:
    device_ppm = sum(other.device_ppm for other in others if other.slot in names)
    if not total_ppm or not device_ppm:
        return []
    delays = []
    for other in others:
        part_ppm = total_ppm * other.device_ppm // device_ppm
        if other.slot in names and part_ppm:
            delayed, by = pair(other.slot)
            delays.append({"gpu": gpu, "delayed": names[delayed], "by": names[by], "ppm": part_ppm})
    return delays


def _hold(held: HeldLaunch | None, gpu: int, registry: wire.TenantList) -> str:
    """Return why a launch waits now, as a sentence; empty: none waits."""
    if held is None:
        return ""
    names = [
        view.tenant.name
        for view in registry.tenants
        if gpu in view.tenant.grant.gpus and view.tenant.grant.slot in held.active_slots
    ]
    return describe_hold(held.hold, ", ".join(names))
