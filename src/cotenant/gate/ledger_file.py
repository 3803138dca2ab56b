"""The memory ledger of a device as a file that its tenants map; it outlives the daemon."""

from __future__ import annotations

import mmap
import os
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from cotenant import _native
from cotenant.errors import WorldError
from cotenant.gate.ledger import LedgerAccount, LedgerLine, LedgerSnapshot

LEDGER_VARIABLE: Final = "COTENANT_LEDGER_FD"
"""Two descriptors separated by a comma: the ledger of the tenant's device for reading and for writing."""
_PREFIX: Final = "ledger-"


class _File(NamedTuple):
    """The mapped file of one device, and its descriptors for tenants."""

    memory: mmap.mmap
    reading: int
    writing: int


class LiveLedgers:
    """One file per device; the handles are two descriptors of it, for reading and for writing."""

    def __init__(self, directory: Path, slots: int) -> None:
        """Keep ledgers for this many slots in a directory; the content of existing files stays."""
        self._directory = directory
        self._slots = slots
        self._files: dict[int, _File] = {}
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise WorldError(f"cannot create {directory}: {error.strerror}; repair its parent directory") from None

    def grant(self, gpu: int, slot: int, generation: int) -> None:
        """Open an empty account; an account of this generation keeps its lines. Does nothing without a device."""
        if gpu >= 0:
            _native.ledger_grant(self._file(gpu, slot + 1).memory, slot, generation)

    def held(self, gpu: int, slot: int) -> int:
        """Return the device memory that a tenant holds, in bytes."""
        file = self._existing(gpu)
        return 0 if file is None or slot >= _slots_of(file) else _native.ledger_account(file.memory, slot)[1]

    def denied(self, gpu: int) -> dict[int, int]:
        """Return the allocations that a quota refused, by slot, including those of ended processes."""
        file = self._existing(gpu)
        if file is None:
            return {}
        accounts = ((slot, _native.ledger_account(file.memory, slot)[2]) for slot in range(_slots_of(file)))
        counts = Counter({slot: before for slot, before in accounts if before})
        for line in _lines(file.memory):
            counts[line.slot] += line.denied
        return counts

    def handles(self, gpu: int) -> tuple[int, ...]:
        """Return the descriptors for a tenant; empty on a node without devices."""
        if gpu < 0:
            return ()
        file = self._file(gpu)
        return file.reading, file.writing

    def devices(self) -> list[int]:
        """Return the devices that have a ledger, also from an earlier process."""
        return devices_in(self._directory)

    def lines(self, gpu: int) -> list[LedgerLine]:
        """Return the lines of all processes."""
        file = self._existing(gpu)
        return [] if file is None else _lines(file.memory)

    def clear(self, gpu: int, slot: int, line: int, owner: int) -> None:
        """Free the line of an ended process, unless another process has taken it."""
        _native.ledger_clear(self._file(gpu).memory, slot, line, owner)

    def measured(self, gpu: int, line: LedgerLine, held_bytes: int) -> bool:
        """Store what the device reports for a process; ignored if the process allocated since the line was read."""
        memory = self._file(gpu).memory
        return _native.ledger_measured(memory, line.slot, line.line, line.owner, line.begun, line.ended, held_bytes)

    def sweep(self, gpu: int, slot: int) -> None:
        """Free shared memory of an account that no process has open any more."""
        _native.ledger_sweep(self._file(gpu).memory, slot)

    def learn_context(self, gpu: int, context_bytes: int) -> None:
        """Store the size of a context on this device."""
        _native.ledger_learn(self._file(gpu).memory, context_bytes)

    def close(self) -> None:
        """Unmap the files; they stay for the tenants and the next daemon."""
        for file in self._files.values():
            file.memory.close()
            os.close(file.reading)
            os.close(file.writing)
        self._files.clear()

    def _existing(self, gpu: int) -> _File | None:
        """Return the file of a device if it exists, without creating it."""
        if gpu in self._files or (gpu >= 0 and ledger_path(self._directory, gpu).exists()):
            return self._file(gpu)
        return None

    def _file(self, gpu: int, min_slots: int = 0) -> _File:
        opened = self._files.get(gpu)
        if opened is not None and min_slots <= _slots_of(opened):
            return opened
        if opened is not None:
            self._files.pop(gpu)
            opened.memory.close()
            os.close(opened.reading)
            os.close(opened.writing)
        path = ledger_path(self._directory, gpu)
        slots = max(self._slots, min_slots)
        size_bytes = _native.LEDGER_HEADER_BYTES + slots * _native.LEDGER_ACCOUNT_BYTES
        try:
            writing = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                # The file grows and never shrinks: a tenant that mapped it would receive SIGBUS.
                size_bytes = max(size_bytes, os.fstat(writing).st_size)
                os.posix_fallocate(writing, 0, size_bytes)  # a full disk is reported here
                memory = mmap.mmap(writing, size_bytes)
                reading = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except BaseException:
                os.close(writing)
                raise
        except OSError as error:
            raise WorldError(f"cannot create the ledger {path}: {error.strerror}; repair its directory") from None
        _native.ledger_init(memory, slots)
        file = self._files[gpu] = _File(memory, reading, writing)
        return file


def ledger_path(directory: Path, gpu: int) -> Path:
    """Return the path of a device's ledger."""
    return directory / f"{_PREFIX}{gpu}"


def devices_in(directory: Path) -> list[int]:
    """Return the devices that have a ledger in this directory."""
    names = [file.name.removeprefix(_PREFIX) for file in directory.glob(_PREFIX + "*")]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def read_ledger_snapshot(directory: Path, gpu: int) -> LedgerSnapshot | None:
    """Return a snapshot of a ledger, which needs no daemon; None where there is no valid file."""
    path = ledger_path(directory, gpu)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            slots, context_bytes = _native.ledger_read(memory)
            lines = _lines(memory)
            accounts = {}
            for slot in range(slots):
                generation, held_bytes, *denied = _native.ledger_account(memory, slot)
                if generation:
                    own = tuple(line for line in lines if line.slot == slot)
                    accounts[slot] = LedgerAccount(slot, generation, held_bytes, own, *denied)
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise WorldError(
            f"cannot read {path}: {error.strerror}; only the user that runs the node may read it"
        ) from None
    return LedgerSnapshot(gpu, context_bytes, accounts)


def _slots_of(file: _File) -> int:
    return _native.ledger_read(file.memory)[0]


def _lines(memory: mmap.mmap) -> list[LedgerLine]:
    return [LedgerLine(*line) for line in _native.ledger_lines(memory)]
