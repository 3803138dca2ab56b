"""Weighted sharing of the device under overload, and the device time that each model used recently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

_DECAY: Final = 0.5
"""Factor by which recorded device time decays per session. Our choice."""


class Demand(NamedTuple):
    """Demand of one priority of one model, in units."""

    key: int
    priority: int
    units: float
    weight: int


def fair_shares(demands: Sequence[Demand], units: float) -> dict[tuple[int, int], float]:
    """Divide units by priority, and within a priority by weight; none gets more than its demand.

    Units that a model does not need are divided among the others, again by weight, so that none are left over while a
    demand is not met.
    """
    shares: dict[tuple[int, int], float] = {}
    remaining = units
    for priority in sorted({demand.priority for demand in demands}):
        unserved = [demand for demand in demands if demand.priority == priority]
        while unserved:
            level = remaining / sum(demand.weight for demand in unserved)
            satisfied = [demand for demand in unserved if demand.units <= level * demand.weight]
            for demand in satisfied or unserved:
                shares[demand.key, priority] = max(min(demand.units, level * demand.weight), 0.0)
                remaining -= shares[demand.key, priority]
            unserved = [demand for demand in unserved if (demand.key, priority) not in shares]
    return shares


class DeviceTimeRecord:
    """Device time (units times nanoseconds) by model, over recent sessions."""

    __slots__ = ("_past", "_spent")

    def __init__(self) -> None:
        """Start at zero."""
        self._spent: dict[int, float] = {}
        self._past: dict[int, float] = {}

    def add(self, key: int, area_ns: float) -> None:
        """Add the device time of a run."""
        self._spent[key] = self._spent.get(key, 0.0) + area_ns

    def turn_over(self, current: Mapping[int, object]) -> None:
        """Start a new session: decay the recorded time and drop models that are gone."""
        past = self._past
        self._past = {key: _DECAY * past.get(key, 0.0) + self._spent.get(key, 0.0) for key in current}
        self._spent = {}

    def served(self, key: int) -> float:
        """Return the recent device time of a model."""
        return self._past.get(key, 0.0) + self._spent.get(key, 0.0)
