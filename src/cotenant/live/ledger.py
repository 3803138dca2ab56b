"""A device's memory ledger as a file that its tenants map: an account per slot; it outlives the daemon."""

from __future__ import annotations

import mmap
import os
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from cotenant import _native
from cotenant.domain.ledger import LedgerAccount, LedgerLine, LedgerLook
from cotenant.errors import WorldError

LEDGER_VARIABLE: Final = "COTENANT_LEDGER_FD"
"""Two descriptors with a comma between them: the file of the tenant's device to read, and to write."""
_PREFIX: Final = "ledger-"


class _File(NamedTuple):
    """One device's file: mapped, and opened for tenants in both ways."""

    memory: mmap.mmap
    reading: int
    writing: int


class LiveLedgers:
    """One file per device; the handles are descriptors of it, one for reading and one for writing."""

    def __init__(self, directory: Path, slots: int) -> None:
        """Keep the files in this directory, with room for so many slots; what is in them already stays."""
        self._directory = directory
        self._slots = slots
        self._files: dict[int, _File] = {}
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise WorldError(f"cannot make {directory}: {error.strerror}; mend its parent directory") from None

    def grant(self, gpu: int, slot: int, generation: int) -> None:
        """An empty account; one that this generation has already keeps its lines. Nothing where there is no device."""
        if gpu >= 0:
            _native.ledger_grant(self._file(gpu, slot + 1).memory, slot, generation)

    def held(self, gpu: int, slot: int) -> int:
        """The device memory that a tenant holds, in bytes."""
        file = self._known(gpu)
        return 0 if file is None or slot >= _slots_of(file) else _native.ledger_account(file.memory, slot)[1]

    def denied(self, gpu: int) -> dict[int, int]:
        """Allocations refused by a quota, by slot, also to processes that are gone; slots without any are left out."""
        file = self._known(gpu)
        if file is None:
            return {}
        accounts = ((slot, _native.ledger_account(file.memory, slot)[2]) for slot in range(_slots_of(file)))
        found = Counter({slot: before for slot, before in accounts if before})
        for line in _lines(file.memory):
            found[line.slot] += line.denied
        return found

    def handles(self, gpu: int) -> tuple[int, ...]:
        """The descriptors to hand over; a node without devices has none."""
        if gpu < 0:
            return ()
        file = self._file(gpu)
        return file.reading, file.writing

    def devices(self) -> list[int]:
        """The devices that have a ledger, of this process or of an earlier one."""
        return devices_in(self._directory)

    def lines(self, gpu: int) -> list[LedgerLine]:
        """Every process that has a line, whoever's it is."""
        file = self._known(gpu)
        return [] if file is None else _lines(file.memory)

    def clear(self, gpu: int, slot: int, line: int, owner: int) -> None:
        """Free the line of a process that is gone; one that is another's by now stays."""
        _native.ledger_clear(self._file(gpu).memory, slot, line, owner)

    def measured(self, gpu: int, line: LedgerLine, held_bytes: int) -> bool:
        """What the device says that a process holds; taken only if it has done nothing since the line was read."""
        memory = self._file(gpu).memory
        return _native.ledger_measured(memory, line.slot, line.line, line.owner, line.begun, line.ended, held_bytes)

    def sweep(self, gpu: int, slot: int) -> None:
        """Free what an account left to others and nobody has open any more."""
        _native.ledger_sweep(self._file(gpu).memory, slot)

    def learn_context(self, gpu: int, context_bytes: int) -> None:
        """Say to all what a context takes of this device."""
        _native.ledger_learn(self._file(gpu).memory, context_bytes)

    def close(self) -> None:
        """Unmap everything; the files stay for the tenants and the next daemon."""
        for file in self._files.values():
            file.memory.close()
            os.close(file.reading)
            os.close(file.writing)
        self._files.clear()

    def _known(self, gpu: int) -> _File | None:
        """The file of a device if it has one; to look must not make one."""
        if gpu in self._files or (gpu >= 0 and path_of(self._directory, gpu).exists()):
            return self._file(gpu)
        return None

    def _file(self, gpu: int, least_slots: int = 0) -> _File:
        known = self._files.get(gpu)
        if known is not None and least_slots <= _slots_of(known):
            return known
        if known is not None:
            self._files.pop(gpu)
            known.memory.close()
            os.close(known.reading)
            os.close(known.writing)
        path = path_of(self._directory, gpu)
        slots = max(self._slots, least_slots)
        size_bytes = _native.LEDGER_HEADER_BYTES + slots * _native.LEDGER_ACCOUNT_BYTES
        try:
            writing = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                # It grows and never shrinks: a tenant that mapped it would be ended by SIGBUS.
                size_bytes = max(size_bytes, os.fstat(writing).st_size)
                os.posix_fallocate(writing, 0, size_bytes)  # a full disk is said here
                memory = mmap.mmap(writing, size_bytes)
                reading = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except BaseException:
                os.close(writing)
                raise
        except OSError as error:
            raise WorldError(f"cannot make the ledger {path}: {error.strerror}; mend its directory") from None
        _native.ledger_init(memory, slots)
        made = self._files[gpu] = _File(memory, reading, writing)
        return made


def path_of(directory: Path, gpu: int) -> Path:
    """Where the ledger of a device is."""
    return directory / f"{_PREFIX}{gpu}"


def devices_in(directory: Path) -> list[int]:
    """The devices that have a ledger here."""
    names = [file.name.removeprefix(_PREFIX) for file in directory.glob(_PREFIX + "*")]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def look_at(directory: Path, gpu: int) -> LedgerLook | None:
    """What the ledger of a device says, with or without a daemon; None where there is none (yet)."""
    path = path_of(directory, gpu)
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
        raise WorldError(f"cannot read {path}: {error.strerror}; only the user that runs the node may") from None
    return LedgerLook(gpu, context_bytes, accounts)


def _slots_of(file: _File) -> int:
    return _native.ledger_read(file.memory)[0]


def _lines(memory: mmap.mmap) -> list[LedgerLine]:
    return [LedgerLine(*line) for line in _native.ledger_lines(memory)]
