"""Health of each device, and its consequences for tenants and joins."""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.gate.grant import Kind
from cotenant.node.decision_log import describe_bypass
from cotenant.node.model.action import Action, ReportGpuHealth, RestartMps
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import (
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpuSampled,
    MemoryBypassed,
    MpsStatusChanged,
    OnlineFirst,
    TenantFaulted,
    TenantHung,
)
from cotenant.node.model.fault import ErrorClass, Remedy, Source, source_label
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import Block, ExitPhase, GpuWatch, Health, OnBypass, clipped
from cotenant.node.model.tenant import Tenant
from cotenant.node.policy.protect import errors, monitor
from cotenant.node.state.memory_pressure import MemoryPressure
from cotenant.node.state.registry import NodeContext, TenantRegistry
from cotenant.node.state.suspension import Suspensions
from cotenant.node.state.tenant_exit import TenantExits
from cotenant.units.instant import NEVER, Instant
from cotenant.units.text import round_duration

_KERNEL_LIMIT: Final = 80
"""Kernel names are cut to this length: template names would leave no space for the message."""
_ADMITTING: Final = (Health.INIT, Health.HEALTHY)


class DeviceHealth:
    """Monitor state of each device, and the online tenants that return first after an MPS server died."""

    __slots__ = (
        *("_context", "_exits", "_pressure", "_registry", "_suspensions"),
        *("admits_all", "online_first", "watches"),
    )

    def __init__(
        self,
        context: NodeContext,
        registry: TenantRegistry,
        exits: TenantExits,
        suspensions: Suspensions,
        pressure: MemoryPressure,
    ) -> None:
        """Begin without devices."""
        self._context = context
        self._registry = registry
        self._exits = exits
        self._suspensions = suspensions
        self._pressure = pressure
        self.watches: list[GpuWatch] = []
        self.online_first: dict[int, OnlineFirst] = {}
        self.admits_all = True
        """Whether every device admits tenants of every kind."""

    # -- start ------------------------------------------------------------------------------------------------

    def restore(self, watches: tuple[GpuWatch, ...], online_first: tuple[OnlineFirst, ...]) -> None:
        """Load the state of a snapshot; journals of older versions have none."""
        missing = len(self._context.settings.gpus) - len(watches)
        self.watches = [*watches, *([GpuWatch()] * missing)]
        self.online_first = {entry.gpu: entry for entry in online_first}
        self._update_admits_all()

    def started(self, before: tuple[Gpu, ...], now: Instant) -> list[Action]:
        """Reset the blocks that the monitor will report again if they still hold.

        Overlimit states and drains stay, because only the node knows of them. A device that is not the one that had the
        same index before begins anew.
        """
        actions: list[Action] = []
        known = self.watches
        self.watches = []
        for index, gpu in enumerate(self._context.settings.gpus):
            is_same = index < min(len(before), len(known)) and before[index] == gpu
            watch = known[index] if is_same else GpuWatch()
            blocked = tuple(block for block in watch.blocked if block is Block.DRAIN)
            self.watches.append(watch)
            if blocked != watch.blocked:
                actions += self._block(index, blocked, "", now)
        limits = self._context.settings.limits
        self.online_first = {
            gpu: msgspec.structs.replace(entry, until_ns=now + limits.online_first_ns)
            for gpu, entry in self.online_first.items()
            if gpu < len(self.watches)
        }
        self._update_admits_all()
        return actions

    def add_devices(self, count: int) -> None:
        """Add devices without any samples."""
        self.watches += [GpuWatch()] * count

    def _has_device(self, gpu: int) -> bool:
        return 0 <= gpu < len(self.watches)

    def compute_admits_all(self) -> bool:
        """Return whether every device admits tenants of every kind."""
        return not self.online_first and all(watch.health in _ADMITTING for watch in self.watches)

    def _update_admits_all(self) -> None:
        self.admits_all = self.compute_admits_all()

    # -- admission ----------------------------------------------------------------------------------------------

    def bars(self, kind: Kind, now: Instant) -> dict[int, Reject]:
        """Return the devices that admit no tenant of this kind now, each with the refusal."""
        refusals = [(gpu, self._bar_for(gpu, kind, now)) for gpu in range(len(self.watches))]
        return {gpu: reject for gpu, reject in refusals if reject is not None}

    def _bar_for(self, gpu: int, kind: Kind, now: Instant) -> Reject | None:
        limits = self._context.settings.limits
        watch = self.watches[gpu]
        if watch.health is Health.DISABLED:
            return self._unhealthy(gpu, "admits no tenants", watch.why, 5 * limits.period_ns)
        if kind is Kind.ONLINE:
            return None
        if watch.health is Health.OVERLIMIT:
            wait_ns = max(watch.until_ns - now, limits.period_ns)
            return self._unhealthy(gpu, "is over its limit and admits no offline tenants", watch.why, wait_ns)
        if watch.health is Health.UNHEALTHY:
            wait_ns = limits.calm_samples * limits.period_ns
            return self._unhealthy(gpu, "is unhealthy and admits no new offline tenants", watch.why, wait_ns)
        first = self.online_first.get(gpu)
        if first is not None and (first.until_ns == NEVER or now < first.until_ns):
            wait_ns = limits.online_first_ns if first.until_ns == NEVER else first.until_ns - now
            names = ", ".join(first.names)
            return self._unhealthy(
                gpu, "admits its online tenants first", f"its MPS server died under {names}", wait_ns
            )
        until_ns = self._pressure.bars(gpu)
        if until_ns is not None:
            detail = f"an online tenant waits for memory on GPU {gpu}"
            return Reject(Reason.NO_CAPACITY_YET, detail, max(until_ns - now, limits.period_ns))
        if any(gpu in devices for devices in self._registry.suspended.values()):
            detail = f"a suspended tenant of GPU {gpu} is restored before new offline tenants are admitted"
            return Reject(Reason.NO_CAPACITY_YET, detail, max(limits.make_room_ns, limits.period_ns))
        return None

    def _unhealthy(self, gpu: int, state: str, why: str, wait_ns: int) -> Reject:
        return Reject(Reason.UNHEALTHY, f"GPU {gpu} {state}{f': {why}' if why else ''}", wait_ns)

    def tenant_returned(self, tenant: Tenant) -> None:
        """Remove a tenant that joined or restarted from those that offline tenants wait for."""
        if tenant.grant.kind is not Kind.ONLINE:
            return
        for gpu in tenant.grant.gpus:
            first = self.online_first.get(gpu)
            if first is None:
                continue
            returned = tenant.name if tenant.name in first.names else first.names[0]
            names = tuple(name for name in first.names if name != returned)
            if names:
                self.online_first[gpu] = msgspec.structs.replace(first, names=names)
            else:
                del self.online_first[gpu]
                self._update_admits_all()

    # -- samples ---------------------------------------------------------------------------------------------

    def sampled(self, event: GpuSampled, now: Instant) -> list[Action]:
        """Handle a sample; on a healthy device, suspended tenants may be restored."""
        gpu = event.gpu
        if not self._has_device(gpu):
            return []
        first = self.online_first.get(gpu)
        if first is not None and first.until_ns != NEVER and now >= first.until_ns:
            del self.online_first[gpu]
            self._update_admits_all()
        actions = self._set_watch(
            gpu, monitor.observe(self.watches[gpu], event.sample, self._context.settings.limits, now)
        )
        if self.watches[gpu].health in _ADMITTING and self._pressure.bars(gpu) is None:
            actions += self._suspensions.restore_fitting(gpu, event.sample, now)
        return actions

    def is_changed_by(self, event: GpuSampled, now: Instant) -> bool:
        """Return whether a sample would change the state; a sample that would not need not be journaled."""
        gpu = event.gpu
        if not self._has_device(gpu):
            return False
        watch = self.watches[gpu]
        if watch.health is Health.OVERLIMIT or gpu in self.online_first or self._pressure.waiting:
            return True
        if any(tenant.lifecycle.phase is ExitPhase.SUSPENDED for tenant in self._registry.tenants_on(gpu)):
            return True
        return monitor.observe(watch, event.sample, self._context.settings.limits, now) != watch

    def _set_watch(self, gpu: int, watch: GpuWatch) -> list[Action]:
        """Store the new state; return an action only if the health changed."""
        before = self.watches[gpu]
        if watch.health is before.health:
            self.watches[gpu] = watch
            return []
        watch = self.watches[gpu] = msgspec.structs.replace(watch, turn=self._context.turn)
        self._update_admits_all()
        return [ReportGpuHealth(self._context.turn, gpu, watch)]

    def _block(self, gpu: int, blocked: tuple[Block, ...], why: str, now: Instant) -> list[Action]:
        """Set the conditions that prevent tenants from joining a device; without any, its health begins anew."""
        watch = msgspec.structs.replace(self.watches[gpu], blocked=blocked)
        self.watches[gpu] = msgspec.structs.replace(self.watches[gpu], blocked=blocked)
        actions = self._set_watch(gpu, monitor.disabled(watch, why, now) if blocked else monitor.recovered(watch, now))
        bar = self._bar_for(gpu, Kind.ONLINE, now)
        return actions if bar is None else [*actions, *self._pressure.refuse_waiting(gpu, bar)]

    def _add_block(self, gpu: int, block: Block, why: str, now: Instant) -> list[Action]:
        blocked = self.watches[gpu].blocked
        return [] if block in blocked else self._block(gpu, (*blocked, block), why, now)

    def _remove_block(self, gpu: int, block: Block, now: Instant) -> list[Action]:
        blocked = self.watches[gpu].blocked
        if block not in blocked:
            return []
        return self._block(gpu, tuple(other for other in blocked if other is not block), "", now)

    def settle(self, now: Instant) -> list[Action]:
        """Remove offline tenants from devices over their limit; end drains whose tenants have left."""
        actions: list[Action] = []
        for gpu, watch in enumerate(self.watches):
            if watch.health is Health.OVERLIMIT:
                actions += self._evict_offline(gpu, watch, now)
            elif Block.DRAIN in watch.blocked and all(
                _is_new(tenant, watch) for tenant in self._registry.tenants_on(gpu)
            ):
                actions += self._remove_block(gpu, Block.DRAIN, now)
        return actions

    def _evict_offline(self, gpu: int, watch: GpuWatch, now: Instant) -> list[Action]:
        why = f"GPU {gpu} was over its limit ({watch.why})"
        actions: list[Action] = []
        for tenant in self._registry.tenants_on(gpu):
            if tenant.grant.kind is Kind.OFFLINE and tenant.lifecycle.phase is ExitPhase.RUNNING:
                actions += self._pressure.suspend_or_evict(tenant, why, 0, now)
        return actions

    # -- faults -------------------------------------------------------------------------------------------

    def lost(self, event: GpuLost, now: Instant) -> list[Action]:
        """Handle a device that does not respond."""
        detail = f": {event.detail}" if event.detail else ""
        return self._disable(event.gpu, f"it does not respond{detail}", now) if self._has_device(event.gpu) else []

    def _disable(self, gpu: int, why: str, now: Instant, block: Block = Block.DEVICE) -> list[Action]:
        """Admit no tenants and end all tenants of the device without waiting for their work."""
        if block in self.watches[gpu].blocked:
            return []
        actions = self._add_block(gpu, block, why, now)
        for tenant in self._registry.tenants_on(gpu):
            actions += self._exits.begin(tenant.grant.slot, f"ended: GPU {gpu} is disabled: {why}", now, drain=False)
        return actions

    def recovered(self, event: GpuRecovered, now: Instant) -> list[Action]:
        """Handle a device that responds again."""
        return self._remove_block(event.gpu, Block.DEVICE, now) if self._has_device(event.gpu) else []

    def mps_changed(self, event: MpsStatusChanged, now: Instant) -> list[Action]:
        """Handle the start or exit of an MPS server; its clients learn that from their own calls."""
        gpu = event.gpu
        if not self._has_device(gpu):
            return []
        if not event.is_ready:
            return self._server_died(gpu, f"its MPS server exited{f': {event.detail}' if event.detail else ''}", now)
        first = self.online_first.get(gpu)
        if first is not None and first.until_ns == NEVER:
            until_ns = now + self._context.settings.limits.online_first_ns
            self.online_first[gpu] = msgspec.structs.replace(first, until_ns=until_ns)
        return self._remove_block(gpu, Block.SERVER, now)

    def _server_died(self, gpu: int, why: str, now: Instant) -> list[Action]:
        """Admit no tenants until the server is ready; then online tenants join first."""
        actions = self._add_block(gpu, Block.SERVER, why, now)
        if actions:
            names = tuple(tenant.name for tenant in self._registry.tenants_on(gpu) if tenant.grant.kind is Kind.ONLINE)
            if names:
                self.online_first[gpu] = OnlineFirst(gpu, names, NEVER)
                self._update_admits_all()
        return [*actions, RestartMps(self._context.turn, gpu)]

    def device_faulted(self, event: GpuFaulted, now: Instant) -> list[Action]:
        """Handle an Xid of a tenant, if known, or of the device."""
        if not self._has_device(event.gpu):
            return []
        error = errors.classify(Source.XID, event.xid)
        tenant = self._registry.of_slot(event.slot, event.generation)
        return self._apply_remedy(error, f"Xid {event.xid}", event.gpu, tenant, now)

    def tenant_faulted(self, event: TenantFaulted, now: Instant) -> list[Action]:
        """Handle a fatal error of a tenant's process."""
        tenant = self._registry.of_slot(event.slot, event.generation)
        if tenant is None or event.source not in _SOURCES:
            return []
        error = errors.classify(_SOURCES[event.source], event.code)
        symptom = f"{source_label(event.source)} {event.code}"
        return self._apply_remedy(error, symptom, _device_of(event.gpu, tenant), tenant, now)

    def memory_bypassed(self, event: MemoryBypassed, now: Instant) -> list[Action]:
        """Evict an offline tenant at once; an online tenant is only reported."""
        tenant = self._registry.of_slot(event.slot, event.generation)
        is_over = bool(event.unseen_bytes or event.over_bytes)
        if tenant is None or not is_over or tenant.grant.kind is Kind.ONLINE:
            return []
        if self._context.settings.on_bypass is OnBypass.REPORT:
            return []
        return self._exits.evict_at_once(event.slot, f"evicted: {describe_bypass(event)}", now)

    def tenant_hung(self, event: TenantHung, now: Instant) -> list[Action]:
        """Handle a kernel that does not end; an online tenant is only reported."""
        tenant = self._registry.of_slot(event.slot, event.generation)
        if tenant is None or tenant.grant.kind is Kind.ONLINE:
            return []
        expected = f", {round_duration(event.expected_ns)} expected" if event.expected_ns else ""
        kernel = f"kernel {clipped(event.kernel, _KERNEL_LIMIT)}" if event.kernel else "a kernel"
        error = errors.classify(Source.HANG, 0)
        symptom = f"{kernel} has run for {round_duration(event.waited_ns)}{expected}"
        return self._apply_remedy(error, symptom, _device_of(event.gpu, tenant), tenant, now)

    def _apply_remedy(
        self, error: ErrorClass, symptom: str, gpu: int, tenant: Tenant | None, now: Instant
    ) -> list[Action]:
        """Apply the remedy of the error's class."""
        summary = error.description.split(". ", 1)[0]  # docs/reference/errors.md has the whole description
        why = clipped(f"{symptom} ({error.name}: {summary})")
        if tenant is not None and error.remedy is Remedy.END:
            return self._exits.begin_after_fault(tenant.grant.slot, f"ended: {why}", now, may_restart=error.restart)
        if tenant is not None and error.remedy is Remedy.KILL:
            return self._exits.kill(tenant.grant.slot, f"killed: {why}", now, may_restart=error.restart)
        if tenant is not None and error.remedy is Remedy.EVICT:
            return self._exits.evict_at_once(tenant.grant.slot, f"evicted: {why}", now)
        if not self._has_device(gpu):
            return []
        if error.remedy is Remedy.RESTART_SERVER:
            return self._server_died(gpu, why, now)
        if error.remedy is Remedy.DISABLE:
            # Only the monitor reports whether the device responds: it may be reset before the next sample.
            return self._disable(gpu, why, now, Block.DRAIN)
        return self._drain(gpu, why, now) if error.remedy is Remedy.DRAIN else []

    def _drain(self, gpu: int, why: str, now: Instant) -> list[Action]:
        """Admit no tenants and evict offline ones; the device begins anew when all tenants have left."""
        actions = self._add_block(gpu, Block.DRAIN, why, now)
        for tenant in self._registry.tenants_on(gpu):
            if tenant.grant.kind is Kind.OFFLINE:
                actions += self._exits.begin(tenant.grant.slot, f"evicted: {why}", now)
        return actions


def _device_of(gpu: int, tenant: Tenant) -> int:
    """Return the device of an event about a tenant; the state of older versions names none."""
    return gpu if gpu in tenant.grant.gpus else tenant.grant.gpu


def _is_new(tenant: Tenant, watch: GpuWatch) -> bool:
    """Return whether the tenant's program started after the device's error."""
    return tenant.lifecycle.phase is ExitPhase.RUNNING and tenant.lifecycle.since_ns > watch.since_ns


_SOURCES: Final = {source.value: source for source in Source}
