"""What does a device's roster say, and what a tenant's page? Binds the gate's C code over any buffer."""

from __future__ import annotations

from typing import Final, TypeAlias

from cotenant import _native
from cotenant.domain.gate import GatePolicy, GateRules, GateSeat

PAGE_BYTES: Final = _native.GATE_PAGE_BYTES
ROSTER_PAGES: Final = 2
"""The roster and the floor come before the pages of the slots."""
_POLICIES: Final = (GatePolicy.OPEN, GatePolicy.STRICT, GatePolicy.FILL)
_PAUSED: Final = 1
_ONLINE: Final = 2
_ENDING: Final = 4
_STATIC: Final = 8
WritableBuffer: TypeAlias = "bytearray | memoryview"


def file_bytes(slots: int) -> int:
    """How large a device's file is that has room for so many slots."""
    return PAGE_BYTES * (ROSTER_PAGES + slots)


def page_offset(slot: int) -> int:
    """Where the page of a slot begins."""
    return PAGE_BYTES * (ROSTER_PAGES + slot)


def format_roster(file: WritableBuffer, slots: int) -> None:
    """Make the beginning of a file a roster; one that is already keeps what it says."""
    _native.roster_init(file, slots)


def write_roster(file: WritableBuffer, rules: GateRules) -> None:
    """Replace what the roster says, in one step for every reader."""
    header = (
        _POLICIES.index(rules.policy),
        rules.bound_ns,
        rules.delay_ppm,
        rules.patience_ns,
        rules.switch_ns,
        rules.spin_ppm,
    )
    seats = [
        (seat.slot, seat.generation, seat.priority, _flags_of(seat), seat.least_ppm, seat.limit_ppm)
        for seat in rules.seats
    ]
    _native.roster_write(file, header, seats)


def _flags_of(seat: GateSeat) -> int:
    return seat.paused * _PAUSED + seat.online * _ONLINE + seat.ending * _ENDING + seat.static * _STATIC


def read_roster(file: bytes | WritableBuffer) -> GateRules:
    """What the roster says. ValueError when this is none."""
    header, seats = _native.roster_read(file)
    return GateRules(
        _POLICIES[header[0]],
        *header[1:],
        tuple(
            GateSeat(
                *(slot, generation, priority, bool(flags & _ONLINE), bool(flags & _PAUSED), least),
                *(bool(flags & _ENDING), limit, bool(flags & _STATIC)),
            )
            for slot, generation, priority, flags, least, limit in seats
        ),
    )


def read_page(page: bytes | WritableBuffer) -> dict[str, int | list[int]]:
    """What a tenant's page says, by the names in native/gate/pages.h."""
    return _native.page_read(page)
