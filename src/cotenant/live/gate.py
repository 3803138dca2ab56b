"""A device's gate as a file that its tenants map: roster, floor and a page per slot; it outlives the daemon."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.domain.gate import GateRules, GateSeat
from cotenant.domain.instant import Instant
from cotenant.domain.pace import DeviceLook, GateCounts
from cotenant.errors import WorldError
from cotenant.policy.schedule import roster

HEADROOM_VARIABLE: Final = "COTENANT_HEADROOM"
"""Set for an offline program under MPS that is to have no more SMs than online leaves: what is left free besides."""
GATE_VARIABLE: Final = "COTENANT_GATE_FD"
"""Two descriptors with a comma between them: the file of the tenant's device to read, and to write."""
_PREFIX: Final = "gate-"


class _File(NamedTuple):
    """One device's file: mapped, and opened for tenants in both ways."""

    memory: mmap.mmap
    reading: int
    writing: int


class LiveGates:
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

    def seat(self, gpu: int, rules: GateRules) -> None:
        """Replace a roster; the pages of those who were not on it are cleared first: nobody looks at them yet."""
        # A restarted node may have fewer slots than its tenants hold, and may have lost the file.
        file = self._file(gpu, max((seat.slot + 1 for seat in rules.seats), default=0))
        memory = memoryview(file.memory)
        known = {(seat.slot, seat.generation) for seat in roster.read_roster(memory).seats}
        for seat in rules.seats:
            if (seat.slot, seat.generation) not in known:
                _clear_page(memory, seat.slot)
        roster.write_roster(memory, rules)

    def sit(self, gpu: int, seat: GateSeat) -> None:
        """Replace a roster by itself with one seat added or changed."""
        file = self._file(gpu)
        memory = memoryview(file.memory)
        rules = roster.read_roster(memory)
        others = [other for other in rules.seats if other.slot != seat.slot]
        if (seat.slot, seat.generation) not in {(other.slot, other.generation) for other in rules.seats}:
            _clear_page(memory, seat.slot)
        seats = tuple(sorted([*others, seat], key=_slot_of))
        roster.write_roster(memory, msgspec.structs.replace(rules, seats=seats))

    def rise(self, gpu: int, slot: int) -> None:
        """Replace a roster by itself without one seat."""
        memory = memoryview(self._file(gpu).memory)
        rules = roster.read_roster(memory)
        seats = tuple(seat for seat in rules.seats if seat.slot != slot)
        roster.write_roster(memory, msgspec.structs.replace(rules, seats=seats))

    def read(self, gpu: int) -> GateRules | None:
        """What the roster of a device says."""
        if gpu not in self._files and not path_of(self._directory, gpu).exists():
            return None
        return roster.read_roster(memoryview(self._file(gpu).memory))

    def page(self, gpu: int, slot: int) -> dict[str, int | list[int]]:
        """What the tenant in a slot says of its work; nothing where the file has no room for it."""
        memory = memoryview(self._file(gpu).memory)
        begin = roster.page_offset(slot)
        page = memory[begin : begin + roster.PAGE_BYTES]
        return roster.read_page(page) if len(page) == roster.PAGE_BYTES else {}

    def handles(self, gpu: int) -> tuple[int, ...]:
        """The descriptors to hand over; a node without devices has none."""
        if gpu < 0:
            return ()
        file = self._file(gpu)
        return file.reading, file.writing

    def counts(self, gpu: int, slot: int) -> GateCounts:
        """What the page of a slot says, whoever wrote it."""
        file = self._file(gpu)
        begin = roster.page_offset(slot)
        return _counts(file.memory[begin : begin + roster.PAGE_BYTES])

    def keep_only(self, gpus: list[int]) -> None:
        """Empty the rosters that an earlier process left behind for devices on which nobody is now."""
        for gpu in devices_in(self._directory):
            left = None if gpu in gpus else self.read(gpu)
            if left is not None and left.seats:
                self.seat(gpu, GateRules(left.policy))

    def close(self) -> None:
        """Unmap everything; the files stay for the tenants and the next daemon."""
        for file in self._files.values():
            file.memory.close()
            os.close(file.reading)
            os.close(file.writing)
        self._files.clear()

    def _file(self, gpu: int, least_slots: int = 0) -> _File:
        known = self._files.get(gpu)
        if known is not None:
            return known
        path = path_of(self._directory, gpu)
        try:
            writing = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                # It grows and never shrinks: a tenant that mapped it would be ended by SIGBUS.
                size_bytes = max(roster.file_bytes(max(self._slots, least_slots)), os.fstat(writing).st_size)
                os.posix_fallocate(writing, 0, size_bytes)  # a full disk is said here
                memory = mmap.mmap(writing, size_bytes)
                reading = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except BaseException:
                os.close(writing)
                raise
        except OSError as error:
            raise WorldError(f"cannot make the gate's file {path}: {error.strerror}; mend its directory") from None
        _format(memoryview(memory), size_bytes)
        made = self._files[gpu] = _File(memory, reading, writing)
        return made


def _slot_of(seat: GateSeat) -> int:
    return seat.slot


def _clear_page(memory: memoryview, slot: int) -> None:
    begin = roster.page_offset(slot)
    memory[begin : begin + roster.PAGE_BYTES] = bytes(roster.PAGE_BYTES)


def _format(memory: memoryview, size_bytes: int) -> None:
    """Make the file's beginning a roster. One that had room for fewer slots says afterwards what it said before."""
    try:
        before = roster.read_roster(memory)
    except ValueError:
        before = None
    roster.format_roster(memory, size_bytes // roster.PAGE_BYTES - roster.ROSTER_PAGES)
    if before is not None and roster.read_roster(memory) != before:
        roster.write_roster(memory, before)


def path_of(directory: Path, gpu: int) -> Path:
    """Where the file of a device is."""
    return directory / f"{_PREFIX}{gpu}"


def roster_of(descriptor: int) -> GateRules:
    """What the file of a device says to its tenants, through the descriptor that one of them has."""
    try:
        with mmap.mmap(descriptor, roster.file_bytes(0), access=mmap.ACCESS_READ) as memory:
            return roster.read_roster(memory)  # type: ignore[arg-type]  # an mmap is a buffer, typeshed does not say so
    except (OSError, ValueError):
        return GateRules()


def devices_in(directory: Path) -> list[int]:
    """The devices that have a file here."""
    names = [file.name.removeprefix(_PREFIX) for file in directory.glob(_PREFIX + "*")]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def look_at(directory: Path, gpu: int, now: Instant) -> DeviceLook | None:
    """What the file of a device says, with or without a daemon; None where it is gone, or no roster (yet)."""
    path = path_of(directory, gpu)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            rules = roster.read_roster(memory)  # type: ignore[arg-type]  # an mmap is a buffer, typeshed does not say so
            pages = {seat.slot: roster.page_offset(seat.slot) for seat in rules.seats}
            counts = {slot: _counts(memory[begin : begin + roster.PAGE_BYTES]) for slot, begin in pages.items()}
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise WorldError(f"cannot read {path}: {error.strerror}; only the user that runs the node may") from None
    return DeviceLook(gpu, now, rules, counts)


def copy_of(directory: Path, gpu: int) -> bytes:
    """The file of a device as it is at this instant; empty where it is gone."""
    path = path_of(directory, gpu)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise WorldError(f"cannot read {path}: {error.strerror}; only the user that runs the node may") from None


def _counts(page: bytes) -> GateCounts:
    return msgspec.convert(roster.read_page(page), GateCounts)
