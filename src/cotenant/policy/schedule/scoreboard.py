"""Who had how much of the device lately, and what is each one's part when there is not enough for all?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

_KEPT: Final = 0.5
"""Of what was noted, this much still counts a session later: sessions before the last few hardly do. Our choice."""


class Demand(NamedTuple):
    """What one priority of one model asks of the device, in units."""

    key: int
    priority: int
    units: float
    weight: int


def parts(demands: Sequence[Demand], units: float) -> dict[tuple[int, int], float]:
    """Share out the device: a higher priority first; within one, by weight, nobody more than was asked for.

    What somebody does not need is shared out among the rest, again by weight, so that nothing is left over while
    anybody wants more.
    """
    given: dict[tuple[int, int], float] = {}
    left = units
    for priority in sorted({one.priority for one in demands}):
        hungry = [one for one in demands if one.priority == priority]
        while hungry:
            level = left / sum(one.weight for one in hungry)
            content = [one for one in hungry if one.units <= level * one.weight]
            for one in content or hungry:
                given[one.key, priority] = max(min(one.units, level * one.weight), 0.0)
                left -= given[one.key, priority]
            hungry = [one for one in hungry if (one.key, priority) not in given]
    return given


class Scoreboard:
    """Device time (units times nanoseconds) by model, over recent sessions."""

    __slots__ = ("_past", "_spent")

    def __init__(self) -> None:
        """Nobody had anything."""
        self._spent: dict[int, float] = {}
        self._past: dict[int, float] = {}

    def add(self, key: int, area_ns: float) -> None:
        """A run took so much."""
        self._spent[key] = self._spent.get(key, 0.0) + area_ns

    def turn_over(self, known: Mapping[int, object]) -> None:
        """A session is over; what is gone is forgotten."""
        before = self._past
        self._past = {key: _KEPT * before.get(key, 0.0) + self._spent.get(key, 0.0) for key in known}
        self._spent = {}

    def served(self, key: int) -> float:
        """What it had lately."""
        return self._past.get(key, 0.0) + self._spent.get(key, 0.0)
