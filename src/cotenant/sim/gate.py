"""Rosters as a table: what the file of each device would say."""

from __future__ import annotations

from cotenant.domain.gate import GateRules


class SimGates:
    """One entry per device; both handles are the device itself."""

    __slots__ = ("_rosters",)

    def __init__(self) -> None:
        """No device has a roster yet."""
        self._rosters: dict[int, GateRules] = {}

    def seat(self, gpu: int, rules: GateRules) -> None:
        """Say who is on a device and by which rules."""
        self._rosters[gpu] = rules

    def read(self, gpu: int) -> GateRules | None:
        """What the roster of a device says."""
        return self._rosters.get(gpu)

    def handles(self, gpu: int) -> tuple[int, ...]:
        """The device, to look at and to write to."""
        return () if gpu < 0 else (gpu, gpu)
