"""The device monitor: samples devices, ledgers and tenants' pages while there are tenants, and posts events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cotenant.gate.gate_file import LiveTenantTables
from cotenant.gate.grant import Kind
from cotenant.gate.ledger_file import LiveLedgers
from cotenant.hook.launch_ring import latest_kernel
from cotenant.node.daemon.monitor.context_program import LEAST_FREE_BYTES
from cotenant.node.daemon.monitor.context_size import ContextProber
from cotenant.node.daemon.monitor.hangs import HangDetector, WorkPage, is_drained
from cotenant.node.daemon.monitor.ledger_check import LedgerCheck
from cotenant.node.daemon.monitor.nvml_sampler import DeviceQuery, DeviceReading, NvmlSampler
from cotenant.node.daemon.monitor.processes import STOPPED, ProcessTable, split_identity
from cotenant.node.daemon.monitor.windows import NodeView
from cotenant.node.model.event import (
    Event,
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpuSampled,
    TenantDrained,
    TenantHung,
)
from cotenant.node.model.protection import WHY_LIMIT, ExitPhase, GpuWatch, Health, clipped
from cotenant.node.model.tenant import Tenant
from cotenant.runner.background import BackgroundTasks, TaskResult
from cotenant.runner.clock import monotonic_ns
from cotenant.runner.process import ancestors
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS, Instant

TICK_NS: Final = 50 * MILLISECOND_NS
"""The period of the monitor: the death of a process is noticed within it."""
DEADLINE_NS: Final = 5 * SECOND_NS
"""A device that does not answer within this time counts as lost."""
_DRAIN_PHASES: Final = (ExitPhase.DRAINING, ExitPhase.FINISHING, ExitPhase.SUSPENDING)
_WHOLE_PCT: Final = 100
_FINAL_SAMPLES: Final = 2
"""The samples taken after the last tenant left a device; the first may still cover the time before."""


class DeviceView(NodeView, Protocol):
    """The node's state as the device monitor reads it."""

    def watches(self) -> list[GpuWatch]:
        """Return the health of each device."""
        ...


class MonitorParts(msgspec.Struct, frozen=True):
    """The parts that the monitor works with."""

    gates: LiveTenantTables
    ledgers: LiveLedgers
    processes: ProcessTable
    devices: NvmlSampler
    tasks: BackgroundTasks
    records: Path
    """The directory of the hook's records, which hold the name of a kernel that hangs."""
    prober: ContextProber | None = None
    """Measures the size of a context before the first tenant; None: it is learned from tenants."""


class _DeviceState:
    """The monitor's state of one device."""

    def __init__(self, gpu: int, parts: MonitorParts, post: Callable[[Event], None]) -> None:
        self.gpu = gpu
        self.ledger = LedgerCheck(gpu, parts.ledgers, parts.processes, post)
        self.tenants: list[Tenant] = []
        self.hang_detectors: dict[tuple[int, int], HangDetector] = {}
        self.drained: dict[tuple[int, int], Instant] = {}
        self.is_listed = False  # NVML has listed it at least once
        self.is_lost = False
        self.sampled_ns: Instant | None = None
        self.checked_ns: Instant | None = None
        self.samples_left = 0
        self.free_bytes = 0  # at the latest sample
        self.is_probed = False


def _slots_and_generations(tenants: Sequence[Tenant]) -> set[tuple[int, int]]:
    return {(tenant.grant.slot, tenant.grant.generation) for tenant in tenants}


class DeviceMonitor:
    """Wakes periodically while there are tenants or ledger lines; a node without tenants sleeps."""

    def __init__(self, node: DeviceView, parts: MonitorParts, post: Callable[[Event], None]) -> None:
        """Begin with the ledgers that an earlier node left."""
        self._node = node
        self._parts = parts
        self._post = post
        self._devices: dict[int, _DeviceState] = {}
        self._turn = -1
        self._due: Instant = 0
        self._query_ns: Instant | None = None
        self._queries: Sequence[DeviceQuery] = ()
        self._changed_devices = set(parts.ledgers.devices())

    # ---- timing ----------------------------------------------------------------------------------------------------

    def next_wakeup(self) -> Instant | None:
        """Return the next wake-up; None while no device needs monitoring."""
        self._refresh()
        if self._query_ns is None and not any(self._needs_monitoring(device) for device in self._devices.values()):
            return None
        return self._due

    def wake(self, now: Instant) -> None:
        """Read the ledgers and pages, and query the devices in the background."""
        self._due = now + TICK_NS
        if self._query_ns is not None:
            if now - self._query_ns > DEADLINE_NS:
                self._on_timeout()
            return
        for device in self._devices.values():
            if self._is_to_be_probed(device):
                self._probe(device)
        queries = [self._read(device, now) for device in self._devices.values() if self._needs_monitoring(device)]
        self._changed_devices.clear()
        self._queries = [query for query in queries if query is not None]
        if self._queries:
            pending, sampler = self._queries, self._parts.devices
            self._query_ns = now
            self._parts.tasks.submit(lambda: sampler.read(pending), self._on_readings)

    def close(self) -> None:
        """Release all processes; the background thread ends after its last query."""
        self._parts.processes.keep_only(())
        if self._parts.prober is not None:
            self._parts.prober.close()
        self._parts.tasks.submit(self._parts.devices.close, lambda _: None)

    def _refresh(self) -> None:
        """Group the tenants by device, after any turn that may have changed them."""
        if self._turn == self._node.turn:
            return
        self._turn = self._node.turn
        for gpu in range(len(self._node.settings.gpus)):
            if gpu not in self._devices:
                self._devices[gpu] = _DeviceState(gpu, self._parts, self._post)
        before = {gpu: _slots_and_generations(device.tenants) for gpu, device in self._devices.items()}
        for device in self._devices.values():
            device.tenants = []
        for view in self._node.tenants():
            grant = view.tenant.grant
            if grant.gpu in self._devices:
                self._devices[grant.gpu].tenants.append(view.tenant)
        for device in self._devices.values():
            entries = _slots_and_generations(device.tenants)
            if before[device.gpu] - entries:  # its last process may have started and died since the last check
                self._changed_devices.add(device.gpu)
            device.hang_detectors = {key: detector for key, detector in device.hang_detectors.items() if key in entries}
            device.drained = {key: at for key, at in device.drained.items() if key in entries}

    def _needs_monitoring(self, device: _DeviceState) -> bool:
        is_wanted = device.samples_left or device.gpu in self._changed_devices or self._is_to_be_probed(device)
        if device.tenants or not device.ledger.is_empty or is_wanted:
            return True
        # A device is also monitored until it is healthy; one that NVML never listed has no state to monitor.
        is_visible = device.is_listed or device.is_lost or device.sampled_ns is None
        return is_visible and self._health(device.gpu) is not Health.HEALTHY

    def _is_to_be_probed(self, device: _DeviceState) -> bool:
        """Return whether to measure the context size: once, on a healthy device with enough free memory."""
        is_wanted = self._parts.prober is not None and not device.is_probed and device.free_bytes >= LEAST_FREE_BYTES
        return is_wanted and not device.is_lost and self._health(device.gpu) is Health.HEALTHY

    def _probe(self, device: _DeviceState) -> None:
        device.is_probed = True
        if self._parts.prober is not None:
            self._parts.prober.measure(device.gpu, self._node.settings.gpus[device.gpu], device.ledger.expect)

    def _health(self, gpu: int) -> Health:
        watches = self._node.watches()
        return watches[gpu].health if gpu < len(watches) else Health.INIT

    # ---- before the query ------------------------------------------------------------------------------

    def _read(self, device: _DeviceState, now: Instant) -> DeviceQuery | None:
        entries = {tenant.grant.slot: tenant.grant.generation for tenant in device.tenants}
        needs_query = device.ledger.read(entries, now)
        period_ns = self._node.settings.limits.period_ns
        is_due = device.sampled_ns is None or now - device.sampled_ns >= period_ns
        draining = [tenant for tenant in device.tenants if tenant.lifecycle.phase in _DRAIN_PHASES]
        if is_due:
            device.sampled_ns = now
        if not (needs_query or is_due or draining or (device.tenants and device.is_listed)):
            return None
        return DeviceQuery(
            device.gpu,
            self._node.settings.gpus[device.gpu],
            sample=is_due,
            held=is_due or needs_query,
            uses=bool(draining) or (is_due and any(tenant.spec.kind is Kind.OFFLINE for tenant in device.tenants)),
        )

    # ---- after the query ------------------------------------------------------------------------

    def _on_readings(self, outcome: TaskResult[list[DeviceReading]]) -> None:
        queries, self._queries, self._query_ns = self._queries, (), None
        for query, reading in zip(queries, outcome.result(), strict=True):
            self._on_reading(self._devices[reading.gpu], query, reading)

    def _on_reading(self, device: _DeviceState, query: DeviceQuery, reading: DeviceReading) -> None:
        self._report_xids(device, reading)
        if not reading.is_there or reading.lost:
            # A device that NVML listed once is lost; a device from the config may be unknown to NVML.
            if device.is_listed or query.device.called:
                self._mark_lost(device, reading.lost or "NVML does not list it")
            device.ledger.settle(None)
            device.samples_left = 0
            self._check_drains(device, None)
            return
        device.is_listed = True
        if device.is_lost:
            device.is_lost = False
            self._post(GpuRecovered(device.gpu))
        if reading.held_bytes is not None:
            device.ledger.settle(reading.held_bytes)
        self._check_drains(device, reading.uses_pct)
        if query.sample:
            self._check_hangs(device, reading)
            self._report_sample(device, reading)

    def _on_timeout(self) -> None:
        """Handle a query that hangs in the driver: its device is lost; the others are not sampled meanwhile."""
        device = self._devices.get(self._parts.devices.pending_gpu)
        if device is not None and device.is_listed and not device.is_lost:
            self._mark_lost(device, f"NVML has not answered for {DEADLINE_NS // SECOND_NS} s")

    def _mark_lost(self, device: _DeviceState, why: str) -> None:
        if not device.is_lost:
            device.is_lost = True
            self._post(GpuLost(device.gpu, clipped(why)))

    def _report_sample(self, device: _DeviceState, reading: DeviceReading) -> None:
        if reading.sample is None:
            return
        is_unused = not device.tenants and device.ledger.is_empty
        device.samples_left = max(0, device.samples_left - 1) if is_unused else _FINAL_SAMPLES
        device.free_bytes = reading.sample.memory_bytes - reading.sample.memory_used_bytes
        held = {Kind.ONLINE: 0, Kind.OFFLINE: 0}
        for tenant in device.tenants:
            held[tenant.spec.kind] += device.ledger.held(tenant.grant.slot)
        sample = msgspec.structs.replace(
            reading.sample, online_memory_bytes=held[Kind.ONLINE], offline_memory_bytes=held[Kind.OFFLINE]
        )
        self._post(GpuSampled(device.gpu, sample))

    def _report_xids(self, device: _DeviceState, reading: DeviceReading) -> None:
        for xid, pid in reading.xids:
            owner = next(
                (tenant for tenant in device.tenants if pid and self._was_process_of(device, tenant, pid)), None
            )
            slot, generation = (-1, 0) if owner is None else (owner.grant.slot, owner.grant.generation)
            self._post(GpuFaulted(device.gpu, xid, slot, generation))

    def _was_process_of(self, device: _DeviceState, tenant: Tenant, pid: int) -> bool:
        """Return whether a process is or was the tenant's: it may have ended before the check."""
        return self._is_process_of(device, tenant, pid) or device.ledger.had_process(tenant.grant.slot, pid)

    def _is_process_of(self, device: _DeviceState, tenant: Tenant, pid: int) -> bool:
        """Return whether a process is the tenant's, by the ledger or, without the hook, by its ancestors."""
        owners = device.ledger.owners(tenant.grant.slot)
        return any(self._parts.processes.find(owner) == pid for owner in owners) or tenant.pid in ancestors(pid)

    def _page(self, tenant: Tenant) -> WorkPage:
        page = msgspec.convert(self._parts.gates.page(tenant.grant.gpu, tenant.grant.slot), WorkPage)
        return page.without_invalid(monotonic_ns())

    def _check_drains(self, device: _DeviceState, uses_pct: Mapping[int, int] | None) -> None:
        for tenant in list(device.tenants):
            key = tenant.grant.slot, tenant.grant.generation
            lifecycle = tenant.lifecycle
            if lifecycle.phase not in _DRAIN_PHASES or device.drained.get(key) == lifecycle.since_ns:
                continue
            is_at_work = None if uses_pct is None else any(self._is_process_of(device, tenant, pid) for pid in uses_pct)
            if is_drained(self._page(tenant), key[1], monotonic_ns(), is_at_work=is_at_work):
                device.drained[key] = lifecycle.since_ns
                self._post(TenantDrained(*key))

    def _check_hangs(self, device: _DeviceState, reading: DeviceReading) -> None:
        now, limits = monotonic_ns(), self._node.settings.limits
        elapsed_ns = 0 if device.checked_ns is None else min(now - device.checked_ns, 2 * limits.period_ns)
        device.checked_ns = now
        for tenant in list(device.tenants):
            if tenant.spec.kind is not Kind.OFFLINE or tenant.paused or tenant.lifecycle.phase is not ExitPhase.RUNNING:
                continue
            page = self._page(tenant)
            if not page.is_used_by(tenant.grant.generation) or self._is_stopped(device, tenant):
                continue
            key = tenant.grant.slot, tenant.grant.generation
            detector = device.hang_detectors.setdefault(key, HangDetector())
            busy_ns = elapsed_ns * self._use_pct(device, tenant, reading) // _WHOLE_PCT
            expected_ns = detector.check(page, busy_ns, now, limits)
            if expected_ns is not None:
                self._post(TenantHung(*key, self._latest_kernel(device, tenant), expected_ns, detector.waited_ns))

    def _use_pct(self, device: _DeviceState, tenant: Tenant, reading: DeviceReading) -> int:
        """Return the device's utilization by a tenant; the total utilization if the device reports no processes."""
        if reading.uses_pct is None:
            return 0 if reading.sample is None else max(0, reading.sample.utilization_ppm) * _WHOLE_PCT // 1_000_000
        own = (use_pct for pid, use_pct in reading.uses_pct.items() if self._is_process_of(device, tenant, pid))
        return min(_WHOLE_PCT, sum(own))

    def _is_stopped(self, device: _DeviceState, tenant: Tenant) -> bool:
        return any(self._parts.processes.state(owner) in STOPPED for owner in device.ledger.owners(tenant.grant.slot))

    def _latest_kernel(self, device: _DeviceState, tenant: Tenant) -> str:
        pids = [split_identity(owner).pid for owner in device.ledger.owners(tenant.grant.slot)]
        return latest_kernel(self._parts.records, pids)[:WHY_LIMIT]
