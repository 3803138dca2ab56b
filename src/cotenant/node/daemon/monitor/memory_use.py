"""Attribute the memory that a device reports by process to tenants, and find what bypasses the hook or the quota.

The device's report is the authority. What the hook records is faster and may be forged.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final, NamedTuple

from cotenant.gate.grant import Kind
from cotenant.gate.live_ledgers import MAX_BYTES, LiveLedgers
from cotenant.node.daemon.monitor.ledger_check import LedgerCheck
from cotenant.node.daemon.processes import LiveProcesses
from cotenant.node.model.event import Event, MemoryBypassed
from cotenant.node.model.tenant import Tenant
from cotenant.node.ports import TenantKey
from cotenant.units.instant import SECOND_NS, Instant

TOLERANCE_BYTES: Final = 256 << 20
"""What the device may report for a tenant beyond what its hook recorded, at least.

Drivers allocate some by themselves, such as stacks of kernels. If two contexts are larger than this, that much is
tolerated.
"""
_REPEAT_NS: Final = 10 * SECOND_NS
_CONFIRMATIONS: Final = 2
"""Memory beyond what attached processes recorded, or beyond the quota, counts after this many readings: device and
records are read a moment apart, and processes allocate, open and free memory meanwhile."""
_UNMATCHED_READINGS: Final = 3
"""A process that cannot be found counts as unmatched after this many readings: it may just have ended."""


class TenantUse(NamedTuple):
    """What a device attributes to one tenant."""

    measured_bytes: int = 0
    unhooked_bytes: int = 0
    """The part of processes that have not attached."""
    excess_bytes: int = 0
    """The part of attached processes that their hook did not record."""


class _Bypass(NamedTuple):
    """The latest report about a tenant."""

    unseen_bytes: int
    over_bytes: int
    at_ns: Instant


class MemoryAttribution:
    """The memory of one device by tenant, from one reading to the next."""

    def __init__(
        self,
        gpu: int,
        check: LedgerCheck,
        ledgers: LiveLedgers,
        processes: LiveProcesses,
        post: Callable[[Event], None],
    ) -> None:
        """Post bypasses through `post`."""
        self._gpu = gpu
        self._check = check
        self._ledgers = ledgers
        self._processes = processes
        self._post = post
        self._reported: dict[tuple[int, int], _Bypass] = {}
        self._excess_readings: dict[tuple[int, int], int] = {}
        self._over_readings: dict[tuple[int, int], int] = {}
        self._missing: dict[int, int] = {}  # by number: consecutive readings in which no such process was found
        self._unlisted_readings = 0
        self.holders: frozenset[int] = frozenset()
        """The processes that hold memory of the device."""
        self.foreign: dict[int, int] = {}
        """The memory of processes that belong to no tenant, by number."""
        self.unmatched_bytes = 0
        """The memory of processes that the node cannot find."""
        self.is_unmatched = False
        """Whether the device's process numbers are not those of the node's pid namespace."""

    def attribute(
        self,
        tenants: Iterable[Tenant],
        held_bytes: Mapping[int, int | None],
        now: Instant,
        reconnecting: Container[TenantKey] = (),
    ) -> None:
        """Attribute a reading; processes of `reconnecting` tenants may not have attached to a restarted node yet."""
        present = {(tenant.grant.slot, tenant.grant.generation): tenant for tenant in tenants}
        attached = {process.pid: process for process in self._processes.on(self._gpu)}
        uses = dict.fromkeys(present, TenantUse())
        self.holders = frozenset(held_bytes)
        self.foreign = {}
        missing: dict[int, int] = {}
        for pid, held in held_bytes.items():
            amount = min(held or 0, MAX_BYTES)
            process = attached.get(pid)
            tenant = process.tenant if process is not None else self._processes.tenant_of(pid)
            if tenant in uses:
                excess = 0 if process is None else self._check.excess_bytes(process, amount)
                uses[tenant] = _add(uses[tenant], amount, excess, is_attached=process is not None)
            elif self._processes.is_of_node(pid):
                continue
            elif self._processes.is_present(pid):
                self.foreign[pid] = amount
            elif not any(self._check.had_process(slot, pid) for slot, _ in present):
                missing[pid] = self._missing.get(pid, 0) + 1
        self._missing = missing
        self._match(held_bytes, attached.keys())
        for key, use in uses.items():
            self._judge(present[key], use, now, is_reconnecting=key in reconnecting)
        self._reported = {key: bypass for key, bypass in self._reported.items() if key in present}
        self._excess_readings = {key: count for key, count in self._excess_readings.items() if key in present}
        self._over_readings = {key: count for key, count in self._over_readings.items() if key in present}
        self._ledgers.set_foreign(self._gpu, sum(self.foreign.values()), self.unmatched_bytes)

    def _match(self, held_bytes: Mapping[int, int | None], attached: Iterable[int]) -> None:
        """Find out whether the device's numbers are those of this pid namespace."""
        lost = [pid for pid, readings in self._missing.items() if readings >= _UNMATCHED_READINGS]
        self.unmatched_bytes = min(sum(held_bytes[pid] or 0 for pid in lost), MAX_BYTES)
        # A device that lists no process at all although an attached one has a context hides all of them.
        is_hidden = not held_bytes and any(self._has_context(pid) for pid in attached)
        self._unlisted_readings = self._unlisted_readings + 1 if is_hidden else 0
        self.is_unmatched = bool(lost) or self._unlisted_readings >= _UNMATCHED_READINGS

    def _has_context(self, pid: int) -> bool:
        process = next((process for process in self._processes.on(self._gpu) if process.pid == pid), None)
        ledger = None if process is None else self._ledgers.ledger(self._gpu, process.index)
        return ledger is not None and ledger.contexts > 0 and ledger.begun == ledger.ended

    def _judge(self, tenant: Tenant, use: TenantUse, now: Instant, *, is_reconnecting: bool) -> None:
        """Store what a tenant uses, and post it if its hook did not see it or its quota does not allow it."""
        grant = tenant.grant
        key = grant.slot, grant.generation
        tolerance_bytes = max(TOLERANCE_BYTES, 2 * self._ledgers.context_bytes(self._gpu))
        is_excessive = _is_confirmed(self._excess_readings, key, is_found=use.excess_bytes > tolerance_bytes)
        unseen_bytes = use.unhooked_bytes + (use.excess_bytes if is_excessive else 0)
        own_bytes = use.measured_bytes - self._check.imported_bytes(grant.slot)
        beyond_bytes = own_bytes - grant.memory_bytes if grant.memory_bytes else 0
        is_beyond = _is_confirmed(self._over_readings, key, is_found=beyond_bytes > tolerance_bytes)
        over_bytes = max(0, beyond_bytes) if unseen_bytes or is_beyond else 0
        if is_reconnecting:
            unseen_bytes = over_bytes = 0
        self._ledgers.set_measured(
            self._gpu, grant.slot, use.measured_bytes, use.unhooked_bytes, unseen_bytes, over_bytes
        )
        self._report(key, use, _Bypass(unseen_bytes, over_bytes, now))

    def _report(self, key: tuple[int, int], use: TenantUse, bypass: _Bypass) -> None:
        """Post a bypass when it begins or ends, and when it doubles, at most every few seconds."""
        before = self._reported.get(key, _Bypass(0, 0, bypass.at_ns - _REPEAT_NS))
        is_over, was_over = (bool(each.unseen_bytes or each.over_bytes) for each in (bypass, before))
        grew = bypass.unseen_bytes + bypass.over_bytes > 2 * (before.unseen_bytes + before.over_bytes)
        is_repeated = is_over and grew and bypass.at_ns - before.at_ns >= _REPEAT_NS
        if is_over != was_over or is_repeated:
            self._reported[key] = bypass
            self._post(MemoryBypassed(*key, bypass.unseen_bytes, bypass.over_bytes, use.measured_bytes))


def reclaimable_bytes(tenants: Iterable[Tenant], ledgers: LiveLedgers) -> int:
    """Return the memory that offline tenants of a device give up for an online tenant when asked, or already do.

    What an offline tenant's pages state counts only as far as the device agrees.
    """
    amounts = [
        ledgers.reclaimable_bytes_of(tenant.grant.gpu, tenant.grant.slot)
        for tenant in tenants
        if tenant.grant.kind is Kind.OFFLINE and not tenant.lifecycle.suspended
    ]
    return min(sum(amounts), MAX_BYTES)


def _is_confirmed(readings: dict[tuple[int, int], int], key: tuple[int, int], *, is_found: bool) -> bool:
    """Count consecutive readings, and return whether they are enough."""
    readings[key] = readings.get(key, 0) + 1 if is_found else 0
    return readings[key] >= _CONFIRMATIONS


def _add(use: TenantUse, amount: int, excess: int, *, is_attached: bool) -> TenantUse:
    unhooked_bytes = use.unhooked_bytes + (0 if is_attached else amount)
    return TenantUse(use.measured_bytes + amount, unhooked_bytes, use.excess_bytes + excess)
