"""What is known of a program's days? How many requests come at which time of day, whoever looks and how often."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Final, NamedTuple

import msgspec

from cotenant.domain.value import Value

DAY_NS: Final = 86_400 * 10**9
PARTS_OF_A_DAY: Final = 96
"""Quarters of an hour: what is remembered of a program is bounded by them."""
PROGRAMS_LIMIT: Final = 256
"""Of so many programs, those seen last, the days are remembered."""
_MOST_A_SECOND: Final = 1e24
"""More than the sums of any page can say."""
MOST_SECONDS: Final = 86_400.0

_Rate = Annotated[float, msgspec.Meta(ge=0, le=_MOST_A_SECOND)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class Program(NamedTuple):
    """Whose it is and which task: what is the same when a tenant comes back. Two users may call theirs the same."""

    uid: int
    task: str


class TimeOfDay(Value, frozen=True):
    """One part of the day: requests a second on earlier days, and on the latest one of which it was seen."""

    part: Annotated[int, msgspec.Meta(ge=0, lt=PARTS_OF_A_DAY)]
    usual: _Rate = 0.0
    """Mean of the earlier days."""
    days: _Count = 0
    """How many they are."""
    day: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 31) - 1)] = -1
    """The latest one, which is in neither; counted from the clock's first midnight, -1: none."""
    latest: _Rate = 0.0
    """Mean of the latest day."""
    seconds: Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)] = 0.0
    """How long of it was seen."""

    def __post_init__(self) -> None:
        """Refuse what is no number, wherever it came from."""
        if not all(math.isfinite(figure) for figure in (self.usual, self.latest, self.seconds)):
            raise ValueError("a figure of a day is not finite")


Day = tuple[TimeOfDay, ...]
"""The parts of which anything is known, in their order."""


def in_order(day: Day) -> bool:
    """Whether each part is there once, the earlier ones first."""
    return all(one.part < other.part for one, other in itertools.pairwise(day))
