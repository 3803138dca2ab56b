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
_HELD_BACK: Final = (ExitPhase.DRAINING, ExitPhase.FINISHING, ExitPhase.SUSPENDING)
_WHOLE_PCT: Final = 100
_SAMPLES_AFTER: Final = 2
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


class _Place:
    """The monitor's state of one device."""

    def __init__(self, gpu: int, parts: MonitorParts, post: Callable[[Event], None]) -> None:
        self.gpu = gpu
        self.ledger = LedgerCheck(gpu, parts.ledgers, parts.processes, post)
        self.tenants: list[Tenant] = []
        self.stalls: dict[tuple[int, int], HangDetector] = {}
        self.drained: dict[tuple[int, int], Instant] = {}
        self.is_known = False  # NVML has listed it at least once
        self.is_lost = False
        self.sampled_ns: Instant | None = None
        self.judged_ns: Instant | None = None
        self.samples_left = 0
        self.free_bytes = 0  # at the latest sample
        self.is_probed = False


def _slots_and_generations(tenants: Sequence[Tenant]) -> set[tuple[int, int]]:
    return {(tenant.grant.slot, tenant.grant.generation) for tenant in tenants}


class DeviceMonitor:
    """Wakes periodically while there are tenants or ledger lines; a node without tenants sleeps."""

    def __init__(self, known: DeviceView, parts: MonitorParts, post: Callable[[Event], None]) -> None:
        """Begin with the ledgers that an earlier node left."""
        self._known = known
        self._parts = parts
        self._post = post
        self._places: dict[int, _Place] = {}
        self._turn = -1
        self._due: Instant = 0
        self._asked_ns: Instant | None = None
        self._asked: Sequence[DeviceQuery] = ()
        self._vacated = set(parts.ledgers.devices())

    # ---- timing ----------------------------------------------------------------------------------------------------

    def next_wakeup(self) -> Instant | None:
        """Return the next wake-up; None while no device needs monitoring."""
        self._refresh()
        if self._asked_ns is None and not any(self._needs_looks(place) for place in self._places.values()):
            return None
        return self._due

    def wake(self, now: Instant) -> None:
        """Read the ledgers and pages, and query the devices in the background."""
        self._due = now + TICK_NS
        if self._asked_ns is not None:
            if now - self._asked_ns > DEADLINE_NS:
                self._give_up()
            return
        for place in self._places.values():
            if self._is_to_be_probed(place):
                self._probe(place)
        questions = [self._read(place, now) for place in self._places.values() if self._needs_looks(place)]
        self._vacated.clear()
        self._asked = [question for question in questions if question is not None]
        if self._asked:
            asked, devices = self._asked, self._parts.devices
            self._asked_ns = now
            self._parts.tasks.submit(lambda: devices.look(asked), self._answered)

    def close(self) -> None:
        """Release all processes; the background thread ends after its last query."""
        self._parts.processes.keep_only(())
        if self._parts.prober is not None:
            self._parts.prober.close()
        self._parts.tasks.submit(self._parts.devices.close, lambda _: None)

    def _refresh(self) -> None:
        """Group the tenants by device, after any turn that may have changed them."""
        if self._turn == self._known.turn:
            return
        self._turn = self._known.turn
        for gpu in range(len(self._known.settings.gpus)):
            if gpu not in self._places:
                self._places[gpu] = _Place(gpu, self._parts, self._post)
        before = {gpu: _slots_and_generations(place.tenants) for gpu, place in self._places.items()}
        for place in self._places.values():
            place.tenants = []
        for view in self._known.tenants():
            grant = view.tenant.grant
            if grant.gpu in self._places:
                self._places[grant.gpu].tenants.append(view.tenant)
        for place in self._places.values():
            entries = _slots_and_generations(place.tenants)
            if before[place.gpu] - entries:  # its last process may have come and died since the last check
                self._vacated.add(place.gpu)
            place.stalls = {key: stall for key, stall in place.stalls.items() if key in entries}
            place.drained = {key: at for key, at in place.drained.items() if key in entries}

    def _needs_looks(self, place: _Place) -> bool:
        is_wanted = place.samples_left or place.gpu in self._vacated or self._is_to_be_probed(place)
        if place.tenants or not place.ledger.is_empty or is_wanted:
            return True
        # A device is also monitored until it is healthy; one that NVML never listed has no state to monitor.
        is_visible = place.is_known or place.is_lost or place.sampled_ns is None
        return is_visible and self._health(place.gpu) is not Health.HEALTHY

    def _is_to_be_probed(self, place: _Place) -> bool:
        """Return whether to measure the context size: once, on a healthy device with enough free memory."""
        is_wanted = self._parts.prober is not None and not place.is_probed and place.free_bytes >= LEAST_FREE_BYTES
        return is_wanted and not place.is_lost and self._health(place.gpu) is Health.HEALTHY

    def _probe(self, place: _Place) -> None:
        place.is_probed = True
        if self._parts.prober is not None:
            self._parts.prober.ask(place.gpu, self._known.settings.gpus[place.gpu], place.ledger.expect)

    def _health(self, gpu: int) -> Health:
        watches = self._known.watches()
        return watches[gpu].health if gpu < len(watches) else Health.INIT

    # ---- before the query ------------------------------------------------------------------------------

    def _read(self, place: _Place, now: Instant) -> DeviceQuery | None:
        entries = {tenant.grant.slot: tenant.grant.generation for tenant in place.tenants}
        is_unsettled = place.ledger.read(entries, now)
        period_ns = self._known.settings.limits.period_ns
        is_due = place.sampled_ns is None or now - place.sampled_ns >= period_ns
        held_back = [tenant for tenant in place.tenants if tenant.lifecycle.phase in _HELD_BACK]
        if is_due:
            place.sampled_ns = now
        if not (is_unsettled or is_due or held_back or (place.tenants and place.is_known)):
            return None
        return DeviceQuery(
            place.gpu,
            self._known.settings.gpus[place.gpu],
            sample=is_due,
            held=is_due or is_unsettled,
            uses=bool(held_back) or (is_due and any(tenant.spec.kind is Kind.OFFLINE for tenant in place.tenants)),
        )

    # ---- after the query ------------------------------------------------------------------------

    def _answered(self, outcome: TaskResult[list[DeviceReading]]) -> None:
        asked, self._asked, self._asked_ns = self._asked, (), None
        for question, seen in zip(asked, outcome.result(), strict=True):
            self._take(self._places[seen.gpu], question, seen)

    def _take(self, place: _Place, question: DeviceQuery, seen: DeviceReading) -> None:
        self._report_xids(place, seen)
        if not seen.is_there or seen.lost:
            # A device that NVML listed once is lost; a device from the config may be unknown to NVML.
            if place.is_known or question.device.called:
                self._lose(place, seen.lost or "NVML does not list it")
            place.ledger.settle(None)
            place.samples_left = 0
            self._judge_drains(place, None)
            return
        place.is_known = True
        if place.is_lost:
            place.is_lost = False
            self._post(GpuRecovered(place.gpu))
        if seen.held_bytes is not None:
            place.ledger.settle(seen.held_bytes)
        self._judge_drains(place, seen.uses_pct)
        if question.sample:
            self._judge_stalls(place, seen)
            self._report_sample(place, seen)

    def _give_up(self) -> None:
        """Handle a query that hangs in the driver: its device is lost; the others are not sampled meanwhile."""
        place = self._places.get(self._parts.devices.asking)
        if place is not None and place.is_known and not place.is_lost:
            self._lose(place, f"NVML has not answered for {DEADLINE_NS // SECOND_NS} s")

    def _lose(self, place: _Place, why: str) -> None:
        if not place.is_lost:
            place.is_lost = True
            self._post(GpuLost(place.gpu, clipped(why)))

    def _report_sample(self, place: _Place, seen: DeviceReading) -> None:
        if seen.sample is None:
            return
        is_deserted = not place.tenants and place.ledger.is_empty
        place.samples_left = max(0, place.samples_left - 1) if is_deserted else _SAMPLES_AFTER
        place.free_bytes = seen.sample.memory_bytes - seen.sample.memory_used_bytes
        held = {Kind.ONLINE: 0, Kind.OFFLINE: 0}
        for tenant in place.tenants:
            held[tenant.spec.kind] += place.ledger.held(tenant.grant.slot)
        sample = msgspec.structs.replace(
            seen.sample, online_memory_bytes=held[Kind.ONLINE], offline_memory_bytes=held[Kind.OFFLINE]
        )
        self._post(GpuSampled(place.gpu, sample))

    def _report_xids(self, place: _Place, seen: DeviceReading) -> None:
        for xid, pid in seen.xids:
            whose = next((tenant for tenant in place.tenants if pid and self._was_of(place, tenant, pid)), None)
            slot, generation = (-1, 0) if whose is None else (whose.grant.slot, whose.grant.generation)
            self._post(GpuFaulted(place.gpu, xid, slot, generation))

    def _was_of(self, place: _Place, tenant: Tenant, pid: int) -> bool:
        """Return whether a process is or was the tenant's: it may have ended before the check."""
        return self._is_of(place, tenant, pid) or place.ledger.had(tenant.grant.slot, pid)

    def _is_of(self, place: _Place, tenant: Tenant, pid: int) -> bool:
        """Return whether a process is the tenant's, by the ledger or, without the hook, by its ancestors."""
        owners = place.ledger.owners(tenant.grant.slot)
        return any(self._parts.processes.find(owner) == pid for owner in owners) or tenant.pid in ancestors(pid)

    def _page(self, tenant: Tenant) -> WorkPage:
        page = msgspec.convert(self._parts.gates.page(tenant.grant.gpu, tenant.grant.slot), WorkPage)
        return page.believed(monotonic_ns())

    def _judge_drains(self, place: _Place, uses_pct: Mapping[int, int] | None) -> None:
        for tenant in list(place.tenants):
            key = tenant.grant.slot, tenant.grant.generation
            lifecycle = tenant.lifecycle
            if lifecycle.phase not in _HELD_BACK or place.drained.get(key) == lifecycle.since_ns:
                continue
            is_at_work = None if uses_pct is None else any(self._is_of(place, tenant, pid) for pid in uses_pct)
            if is_drained(self._page(tenant), key[1], monotonic_ns(), is_at_work=is_at_work):
                place.drained[key] = lifecycle.since_ns
                self._post(TenantDrained(*key))

    def _judge_stalls(self, place: _Place, seen: DeviceReading) -> None:
        now, limits = monotonic_ns(), self._known.settings.limits
        passed_ns = 0 if place.judged_ns is None else min(now - place.judged_ns, 2 * limits.period_ns)
        place.judged_ns = now
        for tenant in list(place.tenants):
            if tenant.spec.kind is not Kind.OFFLINE or tenant.paused or tenant.lifecycle.phase is not ExitPhase.RUNNING:
                continue
            page = self._page(tenant)
            if not page.is_of(tenant.grant.generation) or self._is_stopped(place, tenant):
                continue
            key = tenant.grant.slot, tenant.grant.generation
            stall = place.stalls.setdefault(key, HangDetector())
            busy_ns = passed_ns * self._use_pct(place, tenant, seen) // _WHOLE_PCT
            expected_ns = stall.check(page, busy_ns, now, limits)
            if expected_ns is not None:
                self._post(TenantHung(*key, self._latest_kernel(place, tenant), expected_ns, stall.waited_ns))

    def _use_pct(self, place: _Place, tenant: Tenant, seen: DeviceReading) -> int:
        """Return the device's utilization by a tenant; the total utilization if the device reports no processes."""
        if seen.uses_pct is None:
            return 0 if seen.sample is None else max(0, seen.sample.utilization_ppm) * _WHOLE_PCT // 1_000_000
        own = (use_pct for pid, use_pct in seen.uses_pct.items() if self._is_of(place, tenant, pid))
        return min(_WHOLE_PCT, sum(own))

    def _is_stopped(self, place: _Place, tenant: Tenant) -> bool:
        return any(self._parts.processes.state(owner) in STOPPED for owner in place.ledger.owners(tenant.grant.slot))

    def _latest_kernel(self, place: _Place, tenant: Tenant) -> str:
        numbers = [split_identity(owner).pid for owner in place.ledger.owners(tenant.grant.slot)]
        return latest_kernel(self._parts.records, numbers)[:WHY_LIMIT]
