"""The memory ledger of the node's devices: what the attached processes record, and the accounts that the node writes.

A process records its memory in its own page. The node never writes there: what it adds is in the account of the tenant.
Memory shared between processes counts once, for the exporting process. When that process has freed it or has ended
while others have it open, it counts for the exporter's tenant if one of its processes has it open, else for a tenant
that has it open. So no tenant can make another one pay for memory that only the first keeps alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from cotenant.gate.ledger import LedgerAccount, LedgerLine, LedgerSnapshot
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.process_pages import Measurement, ProcessLedger, ShareRole, read_ledger_page

MAX_BYTES: Final = 1 << 50
"""More than any device has. A tenant may write any value into its page; larger values are limited to this."""
Tenant: TypeAlias = tuple[int, int]
"""Slot and generation."""
_OWNED: Final = (ShareRole.EXPORT, ShareRole.ORPHANED)


class _Line:
    """The latest valid contents of a process's page, and its measurement."""

    __slots__ = ("excess_bytes", "generation", "ledger", "measured_version", "pid", "tenant")

    def __init__(self, tenant: Tenant, generation: int, pid: int) -> None:
        self.tenant = tenant
        self.generation = generation
        self.pid = pid
        self.ledger: ProcessLedger | None = None
        self.excess_bytes = 0
        self.measured_version = 0

    @property
    def held_bytes(self) -> int:
        """Return what the line counts for; as ct_ledger_line_bytes() in native/ledger/line.c."""
        ledger = self.ledger
        if ledger is None:
            return 0
        is_current = self.excess_bytes >= 0 or self.measured_version == ledger.own_version + 1
        own_bytes = max(ledger.own_bytes + (self.excess_bytes if is_current else 0), 0)
        return min(ledger.allocated_bytes + ledger.managed_bytes + own_bytes, MAX_BYTES)

    def shares(self, *roles: ShareRole) -> Iterator[tuple[int, int]]:
        """Yield key and size of the shares with one of these roles."""
        for role, key, size_bytes in () if self.ledger is None else self.ledger.shares:
            if role in roles:
                yield key, min(size_bytes, MAX_BYTES)


class _EndedProcess(NamedTuple):
    """A process that has left, whose memory the device may not have released yet."""

    pid: int
    held_bytes: int
    exports: Mapping[int, int]


class _Orphan(NamedTuple):
    """Memory that an ended process exported and that another process has open."""

    tenant: Tenant
    bytes: int


class _Account:
    """What the node adds for one tenant."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.ended: list[_EndedProcess] = []
        self.denied = 0
        self.denied_bytes = 0
        self.orphaned_bytes = 0
        self.unhooked_bytes = 0
        self.reclaimable_bytes = 0
        self.measured_bytes: int | None = None
        self.unseen_bytes = 0
        self.over_bytes = 0
        self.written: object = None

    @property
    def unattached_bytes(self) -> int:
        ended_bytes = sum(process.held_bytes for process in self.ended)
        return min(ended_bytes + self.orphaned_bytes + self.unhooked_bytes, MAX_BYTES)


class _Device:
    """The ledger of one device."""

    def __init__(self) -> None:
        self.context_bytes = 0
        self.reclaimable_bytes = 0
        self.lines: dict[int, _Line] = {}
        self.accounts: dict[int, _Account] = {}
        self.orphans: dict[int, _Orphan] = {}
        self.exporters: dict[int, tuple[int, int]] = {}  # by key: index and generation of the process that exported it
        self.foreign_bytes = 0
        self.unmatched_bytes = 0
        self.version = 0  # increases with every change of what a tenant holds

    def account(self, tenant: Tenant) -> _Account | None:
        account = self.accounts.get(tenant[0])
        return account if account is not None and account.generation == tenant[1] else None

    def importers(self) -> dict[int, set[Tenant]]:
        """Return the tenants that have shared memory open, by key."""
        importers: dict[int, set[Tenant]] = {}
        for line in self.lines.values():
            for key, _ in line.shares(ShareRole.IMPORT):
                importers.setdefault(key, set()).add(line.tenant)
        return importers

    def left_behind(self) -> dict[int, _Orphan]:
        """Return by key what ended processes exported, whether the device has released their own memory or not."""
        of_ended = {
            key: _Orphan((slot, account.generation), size_bytes)
            for slot, account in self.accounts.items()
            for process in account.ended
            for key, size_bytes in process.exports.items()
        }
        return of_ended | self.orphans

    def owned(self) -> Iterator[tuple[int, int, _Line, ShareRole]]:
        """Yield key, size, process and role of what the first process that used a key exported.

        Every process can read the keys of all others. One that repeats another's key must not change what counts.
        """
        for index, line in self.lines.items():
            for role in _OWNED:
                for key, size_bytes in line.shares(role):
                    if self.exporters.get(key) == (index, line.generation):
                        yield key, size_bytes, line, role


class LiveLedgers:
    """The ledgers of all devices. Amounts that processes publish are taken from copies that were checked before."""

    def __init__(self, grants: LiveGrantPages) -> None:
        """Write the accounts to these pages."""
        self._grants = grants
        self._devices: dict[int, _Device] = {}

    # ---- the port of the state machine ---------------------------------------------------------------------------

    def grant(self, gpu: int, slot: int, generation: int) -> None:
        """Open an empty account, unless this generation has one. Does nothing without a device."""
        if gpu >= 0:
            device = self._device(gpu)
            if device.account((slot, generation)) is None:
                account = device.accounts[slot] = _Account(generation)
                device.version += 1
                # Only online tenants wait for it; one that has just joined must not have to wait for the monitor.
                account.reclaimable_bytes = device.reclaimable_bytes
            self.write(gpu)

    def held(self, gpu: int, slot: int) -> int:
        """Return the device memory that a tenant holds, in bytes."""
        device = self._devices.get(gpu)
        account = None if device is None else device.accounts.get(slot)
        if device is None or account is None:
            return 0
        return self._held_bytes(device, (slot, account.generation), account)

    def handles(self, gpu: int) -> tuple[int, ...]:
        """Return no handles: the account is on the grant page."""
        del gpu
        return ()

    # ---- the registry of processes -------------------------------------------------------------------------------

    def begin(self, gpu: int, index: int, generation: int, tenant: Tenant, pid: int) -> None:
        """Begin the line of an attached process."""
        self._device(gpu).lines[index] = _Line(tenant, generation, pid)

    def end(self, gpu: int, index: int, pages: bytes) -> None:
        """End the line of a process: its memory counts as unattached until the device has released it."""
        device = self._device(gpu)
        device.version += 1
        line = device.lines.get(index)
        if line is None:
            return
        ledger = read_ledger_page(pages)
        if ledger.generation == line.generation:
            self.observe(gpu, index, ledger)  # it may have exported memory since the last reading
        account = device.account(line.tenant)
        if account is not None and line.ledger is not None:
            account.denied += line.ledger.denied
            account.denied_bytes += min(line.ledger.denied_bytes, MAX_BYTES)
            # What it freed is not part of what it held.
            exports = {
                key: min(size_bytes, line.held_bytes) if role is ShareRole.EXPORT else size_bytes
                for key, size_bytes, owner, role in device.owned()
                if owner is line
            }
            if line.held_bytes or exports:
                account.ended.append(_EndedProcess(line.pid, line.held_bytes, exports))
            self.write(gpu)
        del device.lines[index]

    # ---- the monitor ---------------------------------------------------------------------------------------------

    def observe(self, gpu: int, index: int, ledger: ProcessLedger) -> None:
        """Store a checked copy of a process's page."""
        device = self._device(gpu)
        line = device.lines[index]
        line.ledger = ledger
        device.version += 1
        for key, _ in line.shares(*_OWNED):  # it may have exported and freed the memory since the last reading
            device.exporters.setdefault(key, (index, line.generation))

    def ledger(self, gpu: int, index: int) -> ProcessLedger | None:
        """Return the latest checked copy of a process's page."""
        line = self._device(gpu).lines.get(index)
        return None if line is None else line.ledger

    def is_measured(self, gpu: int, index: int) -> bool:
        """Return whether nothing changed since the measurement of a process, or a change is in progress."""
        line = self._device(gpu).lines[index]
        ledger = line.ledger
        return ledger is None or ledger.begun != ledger.ended or line.measured_version == ledger.own_version + 1

    def unattributed_bytes(self, gpu: int, index: int) -> int:
        """Return the memory that the device may or may not attribute to a process."""
        device = self._device(gpu)
        return self._unattributed_bytes(device, device.lines[index])

    def measure(
        self, gpu: int, index: int, before: ProcessLedger, held_bytes: int, unattributed_before: int = 0
    ) -> bool:
        """Store what the device reports for a process; return False if the process allocated since `before`.

        It is unknown how much managed memory is on the device, and to which process shared memory is attributed; if
        there is either, the estimate of own memory is only increased. Other processes may end or close shared memory
        around the query, so the most of it counts, from before (`unattributed_before`) or now.
        """
        device = self._device(gpu)
        line = device.lines[index]
        ledger = line.ledger
        is_stable = ledger is not None and before.begun == before.ended == ledger.begun == ledger.ended
        if ledger is None or not is_stable:
            return False
        unattributed_bytes = max(unattributed_before, self._unattributed_bytes(device, line))
        beyond_bytes = max(0, min(held_bytes, MAX_BYTES) - ledger.allocated_bytes)
        lower_bytes = max(0, beyond_bytes - unattributed_bytes)
        is_known = line.measured_version == ledger.own_version + 1
        if unattributed_bytes and is_known and lower_bytes - ledger.own_bytes <= line.excess_bytes:
            return True
        if unattributed_bytes and not is_known and lower_bytes < ledger.own_bytes:
            lower_bytes = min(ledger.own_bytes, beyond_bytes)
        measured = (lower_bytes - ledger.own_bytes, ledger.own_version + 1)
        if measured != (line.excess_bytes, line.measured_version):
            line.excess_bytes, line.measured_version = measured
            device.version += 1
        return True

    def recorded_bytes(self, gpu: int, index: int) -> int:
        """Return the most that the device may report for a process without memory that the hook did not see."""
        device = self._device(gpu)
        line = device.lines[index]
        ledger = line.ledger
        if ledger is None:
            return 0
        own_bytes = max(ledger.own_bytes, ledger.contexts * device.context_bytes + ledger.code_bytes)
        return min(ledger.allocated_bytes + own_bytes + self._unattributed_bytes(device, line), MAX_BYTES)

    def settle(self, gpu: int, is_released: Callable[[int], bool]) -> None:
        """Drop the memory of ended processes that the device has released, and charge what others have open."""
        device = self._device(gpu)
        importers = device.importers()
        for slot, account in device.accounts.items():
            kept = []
            for process in account.ended:
                if not is_released(process.pid):
                    kept.append(process)
                    continue
                device.version += 1
                for key, size_bytes in process.exports.items():
                    if key in importers:
                        device.orphans[key] = _Orphan((slot, account.generation), size_bytes)
            account.ended = kept
        device.orphans = {key: orphan for key, orphan in device.orphans.items() if key in importers}
        self._charge_orphans(device, importers)
        listed = {key for line in device.lines.values() for key, _ in line.shares(*ShareRole)}
        device.exporters = {key: owner for key, owner in device.exporters.items() if key in listed}

    def set_measured(
        self, gpu: int, slot: int, measured_bytes: int | None, unhooked_bytes: int, unseen_bytes: int, over_bytes: int
    ) -> None:
        """Store what the device attributes to a tenant; `unhooked_bytes` is the part of processes without pages."""
        device = self._device(gpu)
        account = device.accounts.get(slot)
        if account is not None:
            unhooked_bytes = min(unhooked_bytes, MAX_BYTES)
            device.version += (account.measured_bytes, account.unhooked_bytes) != (measured_bytes, unhooked_bytes)
            account.measured_bytes, account.unhooked_bytes = measured_bytes, unhooked_bytes
            account.unseen_bytes, account.over_bytes = unseen_bytes, over_bytes

    def set_foreign(self, gpu: int, foreign_bytes: int, unmatched_bytes: int) -> None:
        """Store the memory of processes that belong to no tenant, and of those that cannot be found."""
        device = self._device(gpu)
        device.foreign_bytes, device.unmatched_bytes = foreign_bytes, unmatched_bytes

    def set_device_reclaimable(self, gpu: int, reclaimable_bytes: int) -> None:
        """Store how much memory the eviction of offline tenants would free for a tenant that joins."""
        self._device(gpu).reclaimable_bytes = reclaimable_bytes

    def set_reclaimable(self, gpu: int, slot: int, reclaimable_bytes: int) -> None:
        """Store how much memory the eviction of offline tenants would free for the tenant in a slot."""
        account = self._device(gpu).accounts.get(slot)
        if account is not None:
            account.reclaimable_bytes = reclaimable_bytes

    def reclaimable_bytes_of(self, gpu: int, slot: int) -> int:
        """Return what the end of a tenant would free: what it holds, or what the device reports if that is less."""
        held_bytes = self.held(gpu, slot)
        account = self._device(gpu).accounts.get(slot)
        measured_bytes = None if account is None else account.measured_bytes
        return held_bytes if measured_bytes is None else min(held_bytes, measured_bytes)

    def learn_context(self, gpu: int, context_bytes: int) -> None:
        """Store the size of a context on this device."""
        self._device(gpu).context_bytes = context_bytes

    def context_bytes(self, gpu: int) -> int:
        """Return the size of a context on this device; 0: unknown."""
        return self._device(gpu).context_bytes

    def version(self, gpu: int) -> int:
        """Return a number that changes with what a tenant of a device holds."""
        return self._device(gpu).version

    def has_ended(self, gpu: int) -> bool:
        """Return whether an ended process may still hold memory of a device."""
        return any(account.ended for account in self._device(gpu).accounts.values())

    def ended_pids(self, gpu: int, slot: int) -> list[int]:
        """Return the ended processes of a tenant whose memory the device has not released."""
        account = self._device(gpu).accounts.get(slot)
        return [] if account is None else [process.pid for process in account.ended]

    def imported_bytes(self, gpu: int, slot: int) -> int:
        """Return the memory of other tenants that processes of a tenant have open."""
        return self._imported_bytes(self._device(gpu), slot)

    def keep_only(self, gpu: int, tenants: Mapping[int, int]) -> None:
        """Drop the accounts of other tenants than these, by slot and generation."""
        device = self._device(gpu)
        others = [slot for slot, account in device.accounts.items() if tenants.get(slot) != account.generation]
        for slot in others:
            del device.accounts[slot]
        device.version += bool(others)

    def write(self, gpu: int) -> None:
        """Write the accounts of a device that changed."""
        device = self._device(gpu)
        measured: dict[Tenant, dict[int, Measurement]] = {}
        for index, line in device.lines.items():
            if line.measured_version:
                measurement = Measurement(line.generation, line.excess_bytes, line.measured_version)
                measured.setdefault(line.tenant, {})[index] = measurement
        for slot, account in device.accounts.items():
            measurements = measured.get((slot, account.generation), {})
            amounts = device.context_bytes, account.unattached_bytes, account.reclaimable_bytes
            if account.written != (amounts, measurements):
                account.written = (amounts, measurements)
                self._grants.set_account(slot, account.generation, amounts, measurements)

    # ---- queries -------------------------------------------------------------------------------------------------

    def denied(self, gpu: int) -> dict[int, int]:
        """Return the allocations that a quota refused, by slot, including those of ended processes."""
        device = self._devices.get(gpu)
        if device is None:
            return {}
        counts = Counter({slot: account.denied for slot, account in device.accounts.items() if account.denied})
        for line in device.lines.values():
            if device.account(line.tenant) is not None and line.ledger is not None:
                counts[line.tenant[0]] += line.ledger.denied
        return counts

    def snapshot(self, gpu: int) -> LedgerSnapshot:
        """Return the ledger of a device."""
        device = self._device(gpu)
        accounts = {}
        for slot, account in device.accounts.items():
            tenant = slot, account.generation
            lines = tuple(
                _ledger_line(index, line) for index, line in sorted(device.lines.items()) if line.tenant == tenant
            )
            accounts[slot] = LedgerAccount(
                *tenant,
                self._held_bytes(device, tenant, account),
                lines,
                account.denied,
                account.denied_bytes,
                account.unattached_bytes,
                self._imported_bytes(device, slot),
                account.measured_bytes,
                account.unseen_bytes,
                account.over_bytes,
            )
        return LedgerSnapshot(gpu, device.context_bytes, accounts, device.foreign_bytes, device.unmatched_bytes)

    def _held_bytes(self, device: _Device, tenant: Tenant, account: _Account) -> int:
        """Return what counts for a tenant; as ct_ledger_held() in native/ledger/line.c."""
        own = [line for line in device.lines.values() if line.tenant == tenant]
        if not any(line.ledger is not None and line.ledger.shares for line in own):
            return min(sum(line.held_bytes for line in own) + account.unattached_bytes, MAX_BYTES)
        opened = {key for line in own for key, _ in line.shares(ShareRole.IMPORT)}
        orphaned = sum(size for line in own for key, size in line.shares(ShareRole.ORPHANED) if key in opened)
        return min(sum(line.held_bytes for line in own) + orphaned + account.unattached_bytes, MAX_BYTES)

    def _imported_bytes(self, device: _Device, slot: int) -> int:
        opened = {
            key for line in device.lines.values() if line.tenant[0] == slot for key, _ in line.shares(ShareRole.IMPORT)
        }
        if not opened:
            return 0
        of_others = {key: size for key, size, line, _ in device.owned() if line.tenant[0] != slot}
        of_ended = {key: orphan.bytes for key, orphan in device.left_behind().items() if orphan.tenant[0] != slot}
        return min(sum(({**of_others, **of_ended}).get(key, 0) for key in opened), MAX_BYTES)

    def _unattributed_bytes(self, device: _Device, line: _Line) -> int:
        """Return the memory that the device may or may not attribute to a process.

        That is managed memory, what it has open, and what it exported and freed while others have it open.
        """
        if line.ledger is None:
            return 0
        if not line.ledger.shares:  # as of most programs
            return min(line.ledger.managed_bytes, MAX_BYTES)
        sizes = {key: orphan.bytes for key, orphan in device.left_behind().items()}
        sizes |= {key: size for key, size, _, _ in device.owned()}
        opened = {key for key, _ in line.shares(ShareRole.IMPORT)}
        freed = {key for key, _ in line.shares(ShareRole.ORPHANED)} & device.importers().keys()
        shared_bytes = sum(sizes.get(key, 0) for key in opened | freed)
        return min(line.ledger.managed_bytes + shared_bytes, MAX_BYTES)

    def _charge_orphans(self, device: _Device, importers: Mapping[int, set[Tenant]]) -> None:
        """Charge memory that its exporter freed or left to a tenant that has it open.

        If the exporter lives and its own tenant has it open, the hook counts it already.
        """
        charged: Counter[Tenant] = Counter()
        for key, orphan in device.orphans.items():
            charged[_payer(orphan.tenant, importers[key])] += orphan.bytes
        for key, size_bytes, line, role in device.owned():
            users = importers.get(key, set())
            if role is ShareRole.ORPHANED and users and line.tenant not in users:
                charged[min(users)] += size_bytes
        for slot, account in device.accounts.items():
            orphaned_bytes = min(charged[slot, account.generation], MAX_BYTES)
            device.version += account.orphaned_bytes != orphaned_bytes
            account.orphaned_bytes = orphaned_bytes

    def _device(self, gpu: int) -> _Device:
        device = self._devices.get(gpu)
        if device is None:
            device = self._devices[gpu] = _Device()
        return device


def _payer(owner: Tenant, users: set[Tenant]) -> Tenant:
    return owner if owner in users else min(users)


def _ledger_line(index: int, line: _Line) -> LedgerLine:
    ledger = line.ledger
    if ledger is None:
        return LedgerLine(index, line.pid, 0, 0, 0, 0, 0, 0, 0, 0, 0, line.held_bytes)
    return LedgerLine(
        index,
        line.pid,
        ledger.allocated_bytes,
        ledger.own_bytes,
        ledger.managed_bytes,
        ledger.denied,
        ledger.denied_bytes,
        ledger.wanted_bytes,
        ledger.contexts,
        ledger.code_bytes,
        line.excess_bytes,
        line.held_bytes,
    )
