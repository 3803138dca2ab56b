"""Compare the ledger of a device with the device itself: free the lines of dead processes, measure the live ones.

A line is freed only when its process is gone *and* the device no longer lists it, so that memory that the ledger counts
as free is available. This is safe because the processes are checked before the device is queried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cotenant.gate.ledger import LedgerLine
from cotenant.gate.ledger_file import LiveLedgers
from cotenant.node.daemon.monitor.processes import ProcessTable, is_anonymous
from cotenant.node.model.event import Event, MemoryRequested, TenantFaulted
from cotenant.node.model.fault import Source
from cotenant.units.instant import SECOND_NS, Instant

_REPEAT_NS: Final = SECOND_NS
_DENIED_REPEAT_NS: Final = 60 * SECOND_NS
_OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
_MAX_BYTES: Final = 1 << 50
"""More than any device has. A tenant may write any value into its lines; larger values are limited to this."""
_MAX_CODE: Final = (1 << 31) - 1
_CONTEXT_SIZES_KEPT: Final = 15
_MAX_CONTEXTS: Final = 1 << 10


class LedgerCheck:
    """The ledger lines of one device between two readings."""

    def __init__(self, gpu: int, ledgers: LiveLedgers, processes: ProcessTable, post: Callable[[Event], None]) -> None:
        """Post faults and memory requests through `post`."""
        self._gpu = gpu
        self._ledgers = ledgers
        self._processes = processes
        self._post = post
        self._lines: Sequence[LedgerLine] = ()
        self._dead: frozenset[int] = frozenset()
        self._reported_faults: dict[int, int] = {}
        self._reported_requests: dict[int, Instant] = {}
        self._reported_denials: dict[int, int] = {}  # by process: its denials already reported
        self._denied_ns: dict[tuple[int, int], Instant] = {}  # by tenant: when a denial was reported
        self._context_sizes: deque[int] = deque(maxlen=_CONTEXT_SIZES_KEPT)
        self._is_context_known = False

    @property
    def is_empty(self) -> bool:
        """Return whether no process had a line at the last reading."""
        return not self._lines

    def read(self, entries: Mapping[int, int], now: Instant) -> bool:
        """Read every line and return whether the device must be queried; `entries` holds generations by slot."""
        self._lines = self._ledgers.lines(self._gpu)
        self._dead = frozenset(line.owner for line in self._lines if not self._is_alive(line, entries))
        self._report_faults(entries)
        self._report_requests(entries, now)
        self._report_denials(entries, now)
        return bool(self._dead) or any(_is_unmeasured(line) for line in self._lines)

    def _is_alive(self, line: LedgerLine, entries: Mapping[int, int]) -> bool:
        """Return whether the process of a line lives; one without identity lives as long as its tenant."""
        if is_anonymous(line.owner):
            return entries.get(line.slot) == line.generation
        return self._processes.is_alive(line.owner)

    def settle(self, held_bytes: Mapping[int, int | None] | None) -> None:
        """Apply the memory that the device reported by process; None: the device reports none."""
        cleared = [line for line in self._lines if line.owner in self._dead and self._is_released(line, held_bytes)]
        for line in cleared:
            self._ledgers.clear(self._gpu, line.slot, line.line, line.owner)
            self._processes.release(line.owner)
        if held_bytes is not None:
            for line in self._lines:
                if line.owner not in self._dead:
                    self._measure(line, held_bytes)
        for slot in dict.fromkeys(line.slot for line in (*cleared, *self._lines)):
            self._ledgers.sweep(self._gpu, slot)
        cleared_owners = {line.owner for line in cleared}
        self._lines = [line for line in self._lines if line.owner not in cleared_owners]

    def expect(self, context_bytes: int) -> None:
        """Use the context size that the node measured; 0: it could not be measured."""
        if 0 < context_bytes < _MAX_BYTES:
            self._is_context_known = True
            self._ledgers.learn_context(self._gpu, context_bytes)

    def owners(self, slot: int) -> list[int]:
        """Return the processes of a tenant that use the device."""
        return [line.owner for line in self._lines if line.slot == slot and line.owner not in self._dead]

    def had_process(self, slot: int, pid: int) -> bool:
        """Return whether an ended process belonged to a tenant and still has its line."""
        dead_owners = (line.owner for line in self._lines if line.slot == slot and line.owner in self._dead)
        return any(self._processes.had_pid(owner, pid) for owner in dead_owners)

    def held(self, slot: int) -> int:
        """Return the bytes that a tenant holds."""
        return min(self._ledgers.held(self._gpu, slot), _MAX_BYTES)

    def _is_released(self, line: LedgerLine, held_bytes: Mapping[int, int | None] | None) -> bool:
        return held_bytes is None or not any(self._processes.could_be(line.owner, pid) for pid in held_bytes)

    def _measure(self, line: LedgerLine, held_bytes: Mapping[int, int | None]) -> None:
        pid = self._processes.find(line.owner)
        if pid is None:
            return
        held = held_bytes.get(pid, 0)  # a process that is not listed has no context and holds nothing
        if held is None:
            return
        is_accepted = self._ledgers.measured(self._gpu, line, held)
        beyond_bytes = held - line.booked_bytes - line.code_bytes
        is_informative = is_accepted and not line.managed_bytes and not self._is_context_known
        # The tenant may have written any number of contexts.
        if is_informative and 0 < line.contexts <= min(beyond_bytes, _MAX_CONTEXTS):
            self._learn(beyond_bytes // line.contexts, is_sure=not line.booked_bytes)

    def _learn(self, context_bytes: int, *, is_sure: bool) -> None:
        """Learn the context size from processes without allocations; until there was one, from any process.

        The smallest size is used: a process that inherited memory of a dead one seems to have larger contexts.
        """
        if is_sure:
            self._context_sizes.append(context_bytes)
        if is_sure or not self._context_sizes:
            self._ledgers.learn_context(self._gpu, min(self._context_sizes, default=context_bytes))

    def _report_faults(self, entries: Mapping[int, int]) -> None:
        """Post the first fault of each process."""
        self._reported_faults = {line.owner: line.fault for line in self._lines if line.owner in self._reported_faults}
        for line in self._lines:
            if line.fault and line.owner not in self._reported_faults and entries.get(line.slot) == line.generation:
                self._reported_faults[line.owner] = line.fault
                code = min(line.fault, _MAX_CODE)
                self._post(TenantFaulted(line.slot, line.generation, Source.CUDA.value, code))

    def _report_requests(self, entries: Mapping[int, int], now: Instant) -> None:
        """Post memory requests at once, and repeatedly while they last: freed memory may go to another tenant."""
        wanted: dict[int, int] = {}
        for line in self._lines:
            if line.wanted_bytes and line.owner not in self._dead and entries.get(line.slot) == line.generation:
                wanted[line.slot] = max(wanted.get(line.slot, 0), min(line.wanted_bytes, _MAX_BYTES))
        self._reported_requests = {slot: at for slot, at in self._reported_requests.items() if slot in wanted}
        for slot, wanted_bytes in wanted.items():
            if now - self._reported_requests.get(slot, now - _REPEAT_NS) >= _REPEAT_NS:
                self._reported_requests[slot] = now
                held = tuple((other, self.held(other)) for other in sorted(entries))
                self._post(MemoryRequested(slot, entries[slot], wanted_bytes, held))

    def _report_denials(self, entries: Mapping[int, int], now: Instant) -> None:
        """Post the first denial of a tenant, then none for a while; its account counts all of them."""
        self._reported_denials = {line.owner: self._reported_denials.get(line.owner, 0) for line in self._lines}
        self._denied_ns = {
            (slot, generation): at
            for (slot, generation), at in self._denied_ns.items()
            if entries.get(slot) == generation
        }
        for line in self._lines:
            tenant = line.slot, line.generation
            if line.denied <= self._reported_denials[line.owner] or entries.get(line.slot) != line.generation:
                continue
            if now - self._denied_ns.get(tenant, now - _DENIED_REPEAT_NS) >= _DENIED_REPEAT_NS:
                self._reported_denials[line.owner] = line.denied
                self._denied_ns[tenant] = now
                self._post(TenantFaulted(*tenant, Source.CUDA.value, _OUT_OF_MEMORY))


def _is_unmeasured(line: LedgerLine) -> bool:
    return line.begun == line.ended and line.measured_version != line.own_version + 1
