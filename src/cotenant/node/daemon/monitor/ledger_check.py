"""Read the pages of a device's processes, check them, and compare the ledger with the device itself.

Memory of an ended process counts until the device no longer lists the process, so that memory that the ledger counts as
free is available. This is safe because the pages are read before the device is queried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from cotenant.gate.live_ledgers import MAX_BYTES, LiveLedgers
from cotenant.gate.process_pages import ProcessLedger, read_ledger_page
from cotenant.gate.tenant_table import PAGE_BYTES
from cotenant.node.daemon.attached_process import AttachedProcess
from cotenant.node.daemon.monitor.page_check import PageCheck
from cotenant.node.daemon.processes import LiveProcesses
from cotenant.node.model.event import Event, MemoryRequested, TenantFaulted
from cotenant.node.model.fault import PageFault, Source
from cotenant.node.ports import TenantKey
from cotenant.runner.clock import monotonic_ns
from cotenant.units.instant import SECOND_NS, Instant

_REPEAT_NS: Final = SECOND_NS
_DENIED_REPEAT_NS: Final = 60 * SECOND_NS
_OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
_CONTEXT_SIZES_KEPT: Final = 15
_MAX_CONTEXTS: Final = 1 << 10


class _ReadProcess:
    """What the check knows about one attached process."""

    def __init__(self, process: AttachedProcess, device_bytes: int) -> None:
        self.process = process
        self.check = PageCheck(process.generation, device_bytes)
        self.copy = b""
        """All of its pages at the latest reading."""
        self.before: ProcessLedger | None = None
        """The ledger as it was read before the device was queried."""
        self.recorded_bytes = 0
        """The most that the device may report for it, at that time."""
        self.unattributed_bytes = 0
        """Memory that the device may or may not attribute to it, at that time."""
        self.is_fault_reported = False
        self.denied = 0


class LedgerCheck:
    """The processes of one device between two readings."""

    def __init__(self, gpu: int, ledgers: LiveLedgers, processes: LiveProcesses, post: Callable[[Event], None]) -> None:
        """Post faults and memory requests through `post`."""
        self._gpu = gpu
        self._ledgers = ledgers
        self._processes = processes
        self._deliver = post
        self._events: list[Event] = []
        self._read: dict[int, _ReadProcess] = {}  # by generation of the process
        self._reported_requests: dict[int, Instant] = {}
        self._denied_ns: dict[TenantKey, Instant] = {}  # by tenant: when a denial was reported
        self._faulted: set[TenantKey] = set()  # tenants whose pages are invalid
        self._context_sizes: deque[int] = deque(maxlen=_CONTEXT_SIZES_KEPT)
        self._is_context_known = False
        self._entries: dict[int, int] = {}  # generations of the tenants by slot, at the latest reading
        self._listed: list[AttachedProcess] = []  # the list of processes that `_read` follows
        self._is_to_be_reported = True  # a change, or what must be reported again
        self._imported_bytes: dict[int, int] = {}  # by slot: before the device was queried
        self.device_bytes = 0
        """The memory of the device; 0: unknown."""
        self.free_bytes = 0
        """Its free memory at the latest sample."""

    @property
    def is_empty(self) -> bool:
        """Return whether no process is attached, and no ended one may hold memory."""
        return not self._processes.on(self._gpu) and not self._ledgers.has_ended(self._gpu)

    def read(self, entries: Mapping[int, int], now: Instant) -> bool:
        """Read every page and return whether the device must be queried; `entries` holds generations by slot."""
        self._ledgers.keep_only(self._gpu, entries)
        if entries != self._entries:
            self._entries, self._is_to_be_reported = dict(entries), True
            self._faulted = {tenant for tenant in self._faulted if entries.get(tenant[0]) == tenant[1]}
        self._copy_pages()
        if self._is_to_be_reported:
            present = [
                read for read in self._read.values() if entries.get(read.process.tenant[0]) == read.process.tenant[1]
            ]
            self._report_faults(present)
            has_requests = self._report_requests(present, entries, now)
            has_denials = self._report_denials(present, entries, now)
            self._is_to_be_reported = has_requests or has_denials
        self._post_events()
        gpu = self._gpu
        unmeasured = (not self._ledgers.is_measured(gpu, read.process.index) for read in self._read.values())
        return self._ledgers.has_ended(gpu) or any(unmeasured)

    def _copy_pages(self) -> None:
        """Copy and check the pages of all attached processes; a copy that is not valid is not used."""
        processes = self._processes.on(self._gpu)
        if processes is not self._listed:
            known, self._read, self._listed = self._read, {}, processes
            self._is_to_be_reported = True
            for process in processes:
                read = known.get(process.generation)
                # A process that attached again has the same generation and new pages.
                is_same = read is not None and read.process is process
                self._read[process.generation] = read if read and is_same else _ReadProcess(process, self.device_bytes)
        for read in self._read.values():
            copy = read.process.copy()
            if copy != read.copy or read.check.is_suspicious:
                self._check_copy(read, copy)

    def _check_copy(self, read: _ReadProcess, copy: bytes) -> None:
        """Check a copy that differs from the one before, or the second one of a page that seemed invalid."""
        before, read.copy = read.copy, copy
        gate_copy = copy[:PAGE_BYTES]
        if gate_copy != before[:PAGE_BYTES]:
            gate_page = read.process.parse_gate_page(gate_copy)
            self._report_invalid(read.process, read.check.gate_fault(gate_page, monotonic_ns()))
        if copy[PAGE_BYTES:] != before[PAGE_BYTES:] or read.check.is_suspicious:
            ledger = read_ledger_page(copy)
            fault = read.check.ledger_fault(ledger, copy)
            self._report_invalid(read.process, fault)
            if fault is None and ledger.generation == read.process.generation and not read.check.is_suspicious:
                self._is_to_be_reported = True
                self._ledgers.observe(self._gpu, read.process.index, ledger)

    def _report_invalid(self, process: AttachedProcess, fault: PageFault | None) -> None:
        """Post the first invalid page of a tenant, which is evicted for it."""
        if fault is not None and process.tenant not in self._faulted:
            self._faulted.add(process.tenant)
            self._events.append(TenantFaulted(*process.tenant, Source.PAGES.value, int(fault)))

    def _post_events(self) -> None:
        """Post what was found. Only now, because an event may end processes at once; those are not read any more."""
        events, self._events = self._events, []
        for event in events:
            self._deliver(event)
        processes = self._processes.on(self._gpu)
        if processes is not self._listed:
            attached = {process.generation for process in processes}
            self._read = {generation: read for generation, read in self._read.items() if generation in attached}

    def prepare(self) -> None:
        """Remember the ledger before the device is queried."""
        for read in self._read.values():
            read.before = self._ledgers.ledger(self._gpu, read.process.index)
            read.recorded_bytes = self._ledgers.recorded_bytes(self._gpu, read.process.index)
            read.unattributed_bytes = self._ledgers.unattributed_bytes(self._gpu, read.process.index)
        slots = {read.process.tenant[0] for read in self._read.values()}
        self._imported_bytes = {slot: self._ledgers.imported_bytes(self._gpu, slot) for slot in slots}

    def settle(self, held_bytes: Mapping[int, int | None] | None, *, is_complete: bool = True) -> None:
        """Apply the memory that the device reported by process; None: the device reports none.

        If the list is not complete because processes could not be matched, a missing process may hold memory.
        """
        self._copy_pages()
        self._post_events()
        if held_bytes is not None:
            for read in self._read.values():
                self._measure(read, held_bytes, is_complete=is_complete)
        listed = held_bytes or {}
        # A number that another live process has was reused: the device lists that process.
        self._ledgers.settle(self._gpu, lambda pid: pid not in listed or self._processes.is_present(pid))
        self._ledgers.write(self._gpu)

    def excess_bytes(self, process: AttachedProcess, held_bytes: int) -> int:
        """Return how much the device reports for a process beyond all that its hook recorded around the query.

        The hook records an allocation before it calls the driver, and a release afterwards.
        """
        read = self._read.get(process.generation)
        if read is None:
            return 0
        recorded_bytes = self._ledgers.recorded_bytes(self._gpu, process.index)
        return max(0, held_bytes - max(recorded_bytes, read.recorded_bytes))

    def imported_bytes(self, slot: int) -> int:
        """Return the most memory of other tenants that a tenant had open around the query."""
        return max(self._imported_bytes.get(slot, 0), self._ledgers.imported_bytes(self._gpu, slot))

    def expect(self, context_bytes: int) -> None:
        """Use the context size that the node measured; 0: it could not be measured."""
        if 0 < context_bytes < MAX_BYTES:
            self._is_context_known = True
            self._ledgers.learn_context(self._gpu, context_bytes)
            self._ledgers.write(self._gpu)

    def had_process(self, slot: int, pid: int) -> bool:
        """Return whether an ended process belonged to a tenant and may still hold memory."""
        return pid in self._ledgers.ended_pids(self._gpu, slot)

    def held(self, slot: int) -> int:
        """Return the bytes that a tenant holds."""
        return self._ledgers.held(self._gpu, slot)

    def _measure(self, read: _ReadProcess, held_bytes: Mapping[int, int | None], *, is_complete: bool) -> None:
        process, before = read.process, read.before
        held = held_bytes.get(process.pid, 0 if is_complete else None)  # a process that is not listed holds nothing
        ledger = self._ledgers.ledger(self._gpu, process.index)
        if held is None or before is None or ledger is None:
            return
        is_accepted = self._ledgers.measure(self._gpu, process.index, before, held, read.unattributed_bytes)
        beyond_bytes = held - ledger.allocated_bytes - ledger.code_bytes
        is_informative = is_accepted and not ledger.managed_bytes and not self._is_context_known
        # The tenant may have written any number of contexts.
        if is_informative and 0 < ledger.contexts <= min(beyond_bytes, _MAX_CONTEXTS):
            self._learn(beyond_bytes // ledger.contexts, is_sure=not ledger.allocated_bytes)

    def _learn(self, context_bytes: int, *, is_sure: bool) -> None:
        """Learn the context size from processes without allocations; until there was one, from any process.

        The smallest size is used: a process that inherited memory of a dead one seems to have larger contexts.
        """
        if is_sure:
            self._context_sizes.append(context_bytes)
        if is_sure or not self._context_sizes:
            self._ledgers.learn_context(self._gpu, min(self._context_sizes, default=context_bytes))

    def _report_faults(self, present: list[_ReadProcess]) -> None:
        """Post the first CUDA fault of each process."""
        for read in present:
            ledger = self._ledgers.ledger(self._gpu, read.process.index)
            if ledger is not None and ledger.fault and not read.is_fault_reported:
                read.is_fault_reported = True
                self._events.append(TenantFaulted(*read.process.tenant, Source.CUDA.value, ledger.fault))

    def _report_requests(self, present: list[_ReadProcess], entries: Mapping[int, int], now: Instant) -> bool:
        """Post memory requests at once, and repeatedly while they last: freed memory may go to another tenant.

        Return whether there are any.
        """
        wanted: dict[int, int] = {}
        for read in present:
            ledger = self._ledgers.ledger(self._gpu, read.process.index)
            slot = read.process.tenant[0]
            if ledger is not None and ledger.wanted_bytes:
                wanted[slot] = max(wanted.get(slot, 0), min(ledger.wanted_bytes, MAX_BYTES))
        self._reported_requests = {slot: at for slot, at in self._reported_requests.items() if slot in wanted}
        for slot, wanted_bytes in wanted.items():
            if now - self._reported_requests.get(slot, now - _REPEAT_NS) >= _REPEAT_NS:
                self._reported_requests[slot] = now
                held = tuple((other, self.held(other)) for other in sorted(entries))
                self._events.append(MemoryRequested(slot, entries[slot], wanted_bytes, held, self.free_bytes))
        return bool(wanted)

    def _report_denials(self, present: list[_ReadProcess], entries: Mapping[int, int], now: Instant) -> bool:
        """Post the first denial of a tenant, then none for a while; its account counts all of them.

        Return whether a denial is not posted yet.
        """
        is_waiting = False
        self._denied_ns = {tenant: at for tenant, at in self._denied_ns.items() if entries.get(tenant[0]) == tenant[1]}
        for read in present:
            tenant = read.process.tenant
            ledger = self._ledgers.ledger(self._gpu, read.process.index)
            if ledger is None or ledger.denied <= read.denied:
                continue
            if now - self._denied_ns.get(tenant, now - _DENIED_REPEAT_NS) >= _DENIED_REPEAT_NS:
                read.denied = ledger.denied
                self._denied_ns[tenant] = now
                self._events.append(TenantFaulted(*tenant, Source.CUDA.value, _OUT_OF_MEMORY))
            else:
                is_waiting = True
        return is_waiting
