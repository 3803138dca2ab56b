"""The gate file of a device, which its tenants map: tenant table, arbitration page and one page per slot.

The file outlives the daemon.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.errors import WorldError
from cotenant.gate import tenant_table
from cotenant.gate.activity import DeviceSnapshot, GateCounts
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.units.instant import Instant

HEADROOM_VARIABLE: Final = "COTENANT_HEADROOM"
"""The headroom in millionths for an offline program under MPS, which is limited to the SMs that online leaves."""
GATE_VARIABLE: Final = "COTENANT_GATE_FD"
"""Two descriptors separated by a comma: the gate file of the tenant's device for reading and for writing."""
_PREFIX: Final = "gate-"


class _File(NamedTuple):
    """The mapped file of one device, and its descriptors for tenants."""

    memory: mmap.mmap
    reading: int
    writing: int


class LiveTenantTables:
    """One file per device; the handles are two descriptors of it, for reading and for writing."""

    def __init__(self, directory: Path, slots: int) -> None:
        """Keep files for this many slots in a directory; the content of existing files stays."""
        self._directory = directory
        self._slots = slots
        self._files: dict[int, _File] = {}
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise WorldError(f"cannot create {directory}: {error.strerror}; repair its parent directory") from None

    def set_table(self, gpu: int, rules: GateRules) -> None:
        """Replace the tenant table; the pages of new tenants are cleared first, before any tenant reads them."""
        # A restarted node may have fewer slots than its tenants hold, and may have lost the file.
        file = self._file(gpu, max((entry.slot + 1 for entry in rules.entries), default=0))
        memory = memoryview(file.memory)
        present = {(entry.slot, entry.generation) for entry in tenant_table.read_tenant_table(memory).entries}
        for entry in rules.entries:
            if (entry.slot, entry.generation) not in present:
                _clear_page(memory, entry.slot)
        tenant_table.write_tenant_table(memory, rules)

    def upsert(self, gpu: int, entry: GateEntry) -> None:
        """Add one entry to the tenant table, or replace it."""
        file = self._file(gpu)
        memory = memoryview(file.memory)
        rules = tenant_table.read_tenant_table(memory)
        others = [other for other in rules.entries if other.slot != entry.slot]
        if (entry.slot, entry.generation) not in {(other.slot, other.generation) for other in rules.entries}:
            _clear_page(memory, entry.slot)
        entries = tuple(sorted([*others, entry], key=_slot_of))
        tenant_table.write_tenant_table(memory, msgspec.structs.replace(rules, entries=entries))

    def remove(self, gpu: int, slot: int) -> None:
        """Remove one entry from the tenant table."""
        memory = memoryview(self._file(gpu).memory)
        rules = tenant_table.read_tenant_table(memory)
        entries = tuple(entry for entry in rules.entries if entry.slot != slot)
        tenant_table.write_tenant_table(memory, msgspec.structs.replace(rules, entries=entries))

    def read(self, gpu: int) -> GateRules | None:
        """Return the tenant table of a device; None where there is no file."""
        if gpu not in self._files and not gate_path(self._directory, gpu).exists():
            return None
        return tenant_table.read_tenant_table(memoryview(self._file(gpu).memory))

    def page(self, gpu: int, slot: int) -> dict[str, int | list[int]]:
        """Return the page of a slot; empty where the file has no such page."""
        memory = memoryview(self._file(gpu).memory)
        begin = tenant_table.page_offset(slot)
        page = memory[begin : begin + tenant_table.PAGE_BYTES]
        return tenant_table.read_page(page) if len(page) == tenant_table.PAGE_BYTES else {}

    def handles(self, gpu: int) -> tuple[int, ...]:
        """Return the descriptors for a tenant; empty on a node without devices."""
        if gpu < 0:
            return ()
        file = self._file(gpu)
        return file.reading, file.writing

    def counts(self, gpu: int, slot: int) -> GateCounts:
        """Return the counters on the page of a slot, of any generation."""
        file = self._file(gpu)
        begin = tenant_table.page_offset(slot)
        return _counts(file.memory[begin : begin + tenant_table.PAGE_BYTES])

    def keep_only(self, gpus: list[int]) -> None:
        """Clear the tenant tables that an earlier process left on devices without tenants."""
        for gpu in devices_in(self._directory):
            table = None if gpu in gpus else self.read(gpu)
            if table is not None and table.entries:
                self.set_table(gpu, GateRules(table.policy))

    def close(self) -> None:
        """Unmap the files; they stay for the tenants and the next daemon."""
        for file in self._files.values():
            file.memory.close()
            os.close(file.reading)
            os.close(file.writing)
        self._files.clear()

    def _file(self, gpu: int, min_slots: int = 0) -> _File:
        opened = self._files.get(gpu)
        if opened is not None:
            return opened
        path = gate_path(self._directory, gpu)
        try:
            writing = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                # The file grows and never shrinks: a tenant that mapped it would receive SIGBUS.
                size_bytes = max(tenant_table.file_bytes(max(self._slots, min_slots)), os.fstat(writing).st_size)
                os.posix_fallocate(writing, 0, size_bytes)  # a full disk is reported here
                memory = mmap.mmap(writing, size_bytes)
                reading = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except BaseException:
                os.close(writing)
                raise
        except OSError as error:
            raise WorldError(f"cannot create the gate file {path}: {error.strerror}; repair its directory") from None
        _format(memoryview(memory), size_bytes)
        file = self._files[gpu] = _File(memory, reading, writing)
        return file


def _slot_of(entry: GateEntry) -> int:
    return entry.slot


def _clear_page(memory: memoryview, slot: int) -> None:
    begin = tenant_table.page_offset(slot)
    memory[begin : begin + tenant_table.PAGE_BYTES] = bytes(tenant_table.PAGE_BYTES)


def _format(memory: memoryview, size_bytes: int) -> None:
    """Format the header of the file; a file that had fewer slots keeps its tenant table."""
    try:
        before = tenant_table.read_tenant_table(memory)
    except ValueError:
        before = None
    tenant_table.format_tenant_table(memory, size_bytes // tenant_table.PAGE_BYTES - tenant_table.HEADER_PAGES)
    if before is not None and tenant_table.read_tenant_table(memory) != before:
        tenant_table.write_tenant_table(memory, before)


def gate_path(directory: Path, gpu: int) -> Path:
    """Return the path of a device's gate file."""
    return directory / f"{_PREFIX}{gpu}"


def read_descriptor(descriptor: int) -> GateRules:
    """Return the tenant table through a tenant's descriptor; an empty table if it cannot be read."""
    try:
        with mmap.mmap(descriptor, tenant_table.file_bytes(0), access=mmap.ACCESS_READ) as memory:
            return tenant_table.read_tenant_table(memory)  # type: ignore[arg-type]  # an mmap is a buffer, typeshed does not say so
    except (OSError, ValueError):
        return GateRules()


def devices_in(directory: Path) -> list[int]:
    """Return the devices that have a gate file in this directory."""
    names = [file.name.removeprefix(_PREFIX) for file in directory.glob(_PREFIX + "*")]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def read_gate_snapshot(directory: Path, gpu: int, now: Instant) -> DeviceSnapshot | None:
    """Return a snapshot of a gate file, which needs no daemon; None where there is no valid file."""
    path = gate_path(directory, gpu)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            rules = tenant_table.read_tenant_table(memory)  # type: ignore[arg-type]  # an mmap is a buffer, typeshed does not say so
            pages = {entry.slot: tenant_table.page_offset(entry.slot) for entry in rules.entries}
            counts = {slot: _counts(memory[begin : begin + tenant_table.PAGE_BYTES]) for slot, begin in pages.items()}
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise WorldError(
            f"cannot read {path}: {error.strerror}; only the user that runs the node may read it"
        ) from None
    return DeviceSnapshot(gpu, now, rules, counts)


def copy_gate_file(directory: Path, gpu: int) -> bytes:
    """Return a copy of a gate file; empty where there is none."""
    path = gate_path(directory, gpu)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise WorldError(
            f"cannot read {path}: {error.strerror}; only the user that runs the node may read it"
        ) from None


def _counts(page: bytes) -> GateCounts:
    return msgspec.convert(tenant_table.read_page(page), GateCounts)
