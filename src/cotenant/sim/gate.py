"""Rosters as a table: what the file of each device would say."""

from __future__ import annotations

import msgspec

from cotenant.domain.gate import GateRules, GateSeat


class SimGates:
    """One entry per device; both handles are the device itself."""

    __slots__ = ("_rules", "_seats")

    def __init__(self) -> None:
        """No device has a roster yet."""
        self._rules: dict[int, GateRules] = {}
        self._seats: dict[int, dict[int, GateSeat]] = {}

    def seat(self, gpu: int, rules: GateRules) -> None:
        """Say who is on a device and by which rules."""
        self._rules[gpu] = rules
        self._seats[gpu] = {seat.slot: seat for seat in rules.seats}

    def sit(self, gpu: int, seat: GateSeat) -> None:
        """Add one seat, or change it."""
        self._seats[gpu][seat.slot] = seat

    def rise(self, gpu: int, slot: int) -> None:
        """Take one seat away."""
        del self._seats[gpu][slot]

    def read(self, gpu: int) -> GateRules | None:
        """What the roster of a device says."""
        rules = self._rules.get(gpu)
        if rules is None:
            return None
        seats = self._seats[gpu]
        return msgspec.structs.replace(rules, seats=tuple(seats[slot] for slot in sorted(seats)))

    def handles(self, gpu: int) -> tuple[int, ...]:
        """The device, to look at and to write to."""
        return () if gpu < 0 else (gpu, gpu)
