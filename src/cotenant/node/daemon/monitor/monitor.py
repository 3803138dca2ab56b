"""The device monitor: samples devices and the pages of processes while there are tenants, and posts events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cotenant.gate.grant import Kind
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.hook.launch_ring import latest_kernel
from cotenant.node.daemon.attached_process import AttachedProcess
from cotenant.node.daemon.monitor.context_program import LEAST_FREE_BYTES
from cotenant.node.daemon.monitor.context_size import ContextProber
from cotenant.node.daemon.monitor.hangs import HangDetector, WorkPage, is_drained
from cotenant.node.daemon.monitor.ledger_check import LedgerCheck
from cotenant.node.daemon.monitor.memory_use import MemoryAttribution, reclaimable_bytes
from cotenant.node.daemon.monitor.nvml_sampler import DeviceQuery, DeviceReading, NvmlSampler
from cotenant.node.daemon.monitor.windows import NodeView
from cotenant.node.daemon.processes import LiveProcesses
from cotenant.node.model.event import (
    Event,
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpuSampled,
    NodeReported,
    TenantDrained,
    TenantHung,
)
from cotenant.node.model.log_event import LogEventKind
from cotenant.node.model.protection import WHY_LIMIT, ExitPhase, GpuWatch, Health, clipped
from cotenant.node.model.tenant import Tenant
from cotenant.node.ports import TenantKey
from cotenant.runner.background import BackgroundTasks, TaskResult
from cotenant.runner.clock import monotonic_ns
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS, Instant
from cotenant.units.text import round_size

TICK_NS: Final = 50 * MILLISECOND_NS
"""The period of the monitor: the death of a process is noticed within it."""
MEMORY_PERIOD_NS: Final = 300 * MILLISECOND_NS
"""The period of readings of memory by process: memory that bypasses the hook is found within one second."""
XID_PERIOD_NS: Final = 100 * MILLISECOND_NS
"""The period of readings of Xids: each costs a switch to another thread and back."""
RECONNECT_NS: Final = 10 * SECOND_NS
"""After a start of the node, processes of earlier tenants have this time to attach before they count as unhooked."""
_REPAIR_NS: Final = SECOND_NS
"""The period at which the node compares its pages with its state."""
_FOREIGN_REPEAT_NS: Final = 60 * SECOND_NS
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

    grants: LiveGrantPages
    tables: LiveTenantTables
    ledgers: LiveLedgers
    processes: LiveProcesses
    devices: NvmlSampler
    tasks: BackgroundTasks
    records: Path
    """The directory of the hook's records, which hold the name of a kernel that hangs."""
    prober: ContextProber | None = None
    """Measures the size of a context before the first tenant; None: it is learned from tenants."""
    on_memory: Callable[[Mapping[int, str]], None] = lambda _: None
    """Called with the PCI addresses of the devices after memory was attributed to tenants."""


class _DeviceState:
    """The monitor's state of one device."""

    def __init__(self, gpu: int, parts: MonitorParts, post: Callable[[Event], None]) -> None:
        self.gpu = gpu
        self.ledger = LedgerCheck(gpu, parts.ledgers, parts.processes, post)
        self.memory = MemoryAttribution(gpu, self.ledger, parts.ledgers, parts.processes, post)
        self.tenants: list[Tenant] = []
        self.hang_detectors: dict[int, HangDetector] = {}  # by generation of the process
        self.drained: dict[tuple[int, int], Instant] = {}
        self.is_listed = False  # NVML has listed it at least once
        self.is_lost = False
        self.sampled_ns: Instant | None = None
        self.checked_ns: Instant | None = None
        self.memory_ns: Instant | None = None
        self.foreign_ns: Instant | None = None
        self.foreign_bytes = 0
        self.is_unmatched_reported = False
        self.bus_id = ""
        self.samples_left = 0
        self.free_bytes = 0  # at the latest sample
        self.is_probed = False
        self.changes = (-1, -1)  # of the tenants and of what they hold, at the latest reading


def _slots_and_generations(tenants: Sequence[Tenant]) -> set[tuple[int, int]]:
    return {(tenant.grant.slot, tenant.grant.generation) for tenant in tenants}


class DeviceMonitor:
    """Wakes periodically while there are tenants or ledger lines; a node without tenants sleeps."""

    def __init__(self, node: DeviceView, parts: MonitorParts, post: Callable[[Event], None]) -> None:
        """Begin without samples; the tenants that are present now may have to attach their processes again."""
        self._node = node
        self._parts = parts
        self._post = post
        self._devices: dict[int, _DeviceState] = {}
        self._turn = -1
        self._due: Instant = 0
        self._query_ns: Instant | None = None
        self._queries: Sequence[DeviceQuery] = ()
        self._changed_devices: set[int] = set()
        self._repaired_ns: Instant = 0
        self._xids_ns: Instant = 0
        self._is_xid_due = True
        self._reconnecting = frozenset(_slots_and_generations([view.tenant for view in node.tenants()]))
        self._reconnecting_until_ns = monotonic_ns() + RECONNECT_NS

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
        self._parts.processes.expire()
        self._repair_pages(now)
        if self._query_ns is not None:
            if now - self._query_ns > DEADLINE_NS:
                self._on_timeout()
            return
        for device in self._devices.values():
            if self._is_to_be_probed(device):
                self._probe(device)
        self._is_xid_due = now // XID_PERIOD_NS != self._xids_ns // XID_PERIOD_NS  # on a common grid, as memory
        if self._is_xid_due:
            self._xids_ns = now
        queries = [self._read(device, now) for device in self._devices.values() if self._needs_monitoring(device)]
        self._changed_devices.clear()
        self._queries = [query for query in queries if query is not None]
        if self._queries:
            pending, sampler = self._queries, self._parts.devices
            self._query_ns = now
            self._parts.tasks.submit(lambda: sampler.read(pending), self._on_readings)

    def close(self) -> None:
        """Stop; the background thread ends after its last query."""
        if self._parts.prober is not None:
            self._parts.prober.close()
        self._parts.tasks.submit(self._parts.devices.close, lambda _: None)

    def _repair_pages(self, now: Instant) -> None:
        """Compare the node's pages with its state: nobody else can write them, so a difference is an error here."""
        if now - self._repaired_ns < _REPAIR_NS:
            return
        self._repaired_ns = now
        pages = [f"the grant page of slot {slot}" for slot in self._parts.grants.repair()]
        pages += [f"the tenant table of GPU {gpu}" for gpu in self._parts.tables.repair()]
        for page in pages:
            text = f"{page} did not contain what the node wrote, and was written again: memory is corrupt"
            self._post(NodeReported(LogEventKind.PAGE_REWRITTEN, text))

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
        self._parts.processes.keep_only(_slots_and_generations([view.tenant for view in self._node.tenants()]))
        for device in self._devices.values():
            entries = _slots_and_generations(device.tenants)
            if before[device.gpu] - entries:  # its last process may have started and died since the last check
                self._changed_devices.add(device.gpu)
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
        # On a common grid, so that all devices are read at the same ticks: the processes are then examined once.
        is_memory_due = device.memory_ns is None or now // MEMORY_PERIOD_NS != device.memory_ns // MEMORY_PERIOD_NS
        if is_due:
            device.sampled_ns = now
        if is_due or is_memory_due or needs_query:
            device.memory_ns = now
        changes = self._turn, self._parts.ledgers.version(device.gpu)
        if changes != device.changes:
            device.changes = changes
            self._set_reclaimable(device)
        is_xid_due = device.tenants and device.is_listed and self._is_xid_due
        if not (needs_query or is_due or is_memory_due or draining or is_xid_due):
            return None
        is_memory_wanted = is_due or is_memory_due or needs_query
        if is_memory_wanted:
            device.ledger.prepare()
        return DeviceQuery(
            device.gpu,
            self._node.settings.gpus[device.gpu],
            sample=is_due,
            held=is_memory_wanted,
            uses=bool(draining) or (is_due and any(tenant.spec.kind is Kind.OFFLINE for tenant in device.tenants)),
        )

    # ---- after the query ------------------------------------------------------------------------

    def _on_readings(self, outcome: TaskResult[list[DeviceReading]]) -> None:
        queries, self._queries, self._query_ns = self._queries, (), None
        readings = outcome.result()
        if any(reading.held_bytes is not None for reading in readings):
            self._parts.processes.remember_descendants()  # of all tenants, so once for all devices
        for query, reading in zip(queries, readings, strict=True):
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
        device.bus_id = reading.bus_id
        if device.is_lost:
            device.is_lost = False
            self._post(GpuRecovered(device.gpu))
        if reading.held_bytes is not None:
            self._on_memory(device, reading.held_bytes)
        self._check_drains(device, reading.uses_pct)
        if query.sample:
            self._check_hangs(device, reading)
            self._report_sample(device, reading)

    def _on_memory(self, device: _DeviceState, held_bytes: Mapping[int, int | None]) -> None:
        """Compare the memory that the device reports by process with the ledger, and attribute it to tenants."""
        processes = self._parts.processes
        holders = {pid for other in self._devices.values() if other is not device for pid in other.memory.holders}
        device.ledger.settle(held_bytes, is_complete=not device.memory.is_unmatched)
        now = monotonic_ns()
        reconnecting = self._reconnecting if now < self._reconnecting_until_ns else frozenset[TenantKey]()
        device.memory.attribute(device.tenants, held_bytes, now, reconnecting)
        processes.device_holders = frozenset(holders | device.memory.holders)
        self._parts.ledgers.write(device.gpu)
        self._report_foreign(device, now)
        self._parts.on_memory({gpu: other.bus_id for gpu, other in self._devices.items()})

    def _report_foreign(self, device: _DeviceState, now: Instant) -> None:
        """Report memory of processes that belong to no tenant when it changes, and unmatched processes once."""
        memory = device.memory
        foreign_bytes = sum(memory.foreign.values())
        is_due = device.foreign_ns is None or now - device.foreign_ns >= _FOREIGN_REPEAT_NS
        if foreign_bytes != device.foreign_bytes and (is_due or not device.foreign_bytes):
            device.foreign_ns, device.foreign_bytes = now, foreign_bytes
            processes = f"{len(memory.foreign)} processes" if len(memory.foreign) != 1 else "1 process"
            text = f"GPU {device.gpu}: {round_size(foreign_bytes)} are used by {processes} of no tenant"
            self._post(NodeReported(LogEventKind.FOREIGN_MEMORY, text))
        if memory.is_unmatched and not device.is_unmatched_reported:
            device.is_unmatched_reported = True
            amount = f"{round_size(memory.unmatched_bytes)} of memory" if memory.unmatched_bytes else "memory"
            text = (
                f"GPU {device.gpu}: the device lists {amount} under process numbers that do not exist here; "
                "run the node in the host's pid namespace so that it can verify memory use"
            )
            self._post(NodeReported(LogEventKind.PROCESSES_UNMATCHED, text))

    def _set_reclaimable(self, device: _DeviceState) -> None:
        """Write how much memory online tenants may wait for."""
        amount = reclaimable_bytes(device.tenants, self._parts.ledgers)
        self._parts.ledgers.set_device_reclaimable(device.gpu, amount)
        for tenant in device.tenants:
            is_online = tenant.grant.kind is Kind.ONLINE
            self._parts.ledgers.set_reclaimable(device.gpu, tenant.grant.slot, amount if is_online else 0)
        self._parts.ledgers.write(device.gpu)

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
        device.free_bytes = max(0, reading.sample.memory_bytes - reading.sample.memory_used_bytes)
        device.ledger.free_bytes, device.ledger.device_bytes = device.free_bytes, reading.sample.memory_bytes
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
        return self._is_process_of(tenant, pid) or device.ledger.had_process(tenant.grant.slot, pid)

    def _is_process_of(self, tenant: Tenant, pid: int) -> bool:
        """Return whether a process is the tenant's."""
        return self._parts.processes.tenant_of(pid) == (tenant.grant.slot, tenant.grant.generation)

    def _processes_of(self, device: _DeviceState, tenant: Tenant) -> list[AttachedProcess]:
        key = tenant.grant.slot, tenant.grant.generation
        return [process for process in self._parts.processes.on(device.gpu) if process.tenant == key]

    def _page(self, process: AttachedProcess) -> WorkPage:
        return msgspec.convert(process.gate_page(), WorkPage).without_invalid(monotonic_ns())

    def _check_drains(self, device: _DeviceState, uses_pct: Mapping[int, int] | None) -> None:
        now = monotonic_ns()
        for tenant in list(device.tenants):
            key = tenant.grant.slot, tenant.grant.generation
            lifecycle = tenant.lifecycle
            if lifecycle.phase not in _DRAIN_PHASES or device.drained.get(key) == lifecycle.since_ns:
                continue
            is_at_work = None if uses_pct is None else any(self._is_process_of(tenant, pid) for pid in uses_pct)
            processes = self._processes_of(device, tenant)
            if not processes and is_at_work:
                continue
            if all(is_drained(self._page(each), each.generation, now, is_at_work=is_at_work) for each in processes):
                device.drained[key] = lifecycle.since_ns
                self._post(TenantDrained(*key))

    def _check_hangs(self, device: _DeviceState, reading: DeviceReading) -> None:
        now, limits = monotonic_ns(), self._node.settings.limits
        elapsed_ns = 0 if device.checked_ns is None else min(now - device.checked_ns, 2 * limits.period_ns)
        device.checked_ns = now
        present = {process.generation for process in self._parts.processes.on(device.gpu)}
        device.hang_detectors = {key: detector for key, detector in device.hang_detectors.items() if key in present}
        for tenant in list(device.tenants):
            if tenant.spec.kind is not Kind.OFFLINE or tenant.paused or tenant.lifecycle.phase is not ExitPhase.RUNNING:
                continue
            key = tenant.grant.slot, tenant.grant.generation
            if self._parts.processes.is_stopped(key):
                continue
            for process in self._processes_of(device, tenant):
                page = self._page(process)
                if not page.is_used_by(process.generation):
                    continue
                detector = device.hang_detectors.setdefault(process.generation, HangDetector())
                busy_ns = elapsed_ns * self._use_pct(process, reading) // _WHOLE_PCT
                expected_ns = detector.check(page, busy_ns, now, limits)
                if expected_ns is not None:
                    self._post(TenantHung(*key, self._latest_kernel(key), expected_ns, detector.waited_ns))
                    break  # the event may have ended the tenant and its other processes

    def _use_pct(self, process: AttachedProcess, reading: DeviceReading) -> int:
        """Return the device's utilization by a process; the total utilization if the device reports no processes."""
        if reading.uses_pct is None:
            return 0 if reading.sample is None else max(0, reading.sample.utilization_ppm) * _WHOLE_PCT // 1_000_000
        return min(_WHOLE_PCT, reading.uses_pct.get(process.pid, 0))

    def _latest_kernel(self, tenant: TenantKey) -> str:
        return latest_kernel(self._parts.records, self._parts.processes.own_numbers(tenant))[:WHY_LIMIT]
