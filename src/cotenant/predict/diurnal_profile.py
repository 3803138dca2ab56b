"""Diurnal profile of a program: requests per second by time of day."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Final, NamedTuple

import msgspec

from cotenant.units.value import Value

DAY_NS: Final = 86_400 * 10**9
BINS_PER_DAY: Final = 96
"""Bins of 15 minutes; they bound the memory per program."""
PROGRAMS_LIMIT: Final = 256
"""Number of programs whose profiles are kept, the most recently seen ones."""
_MAX_PER_SECOND: Final = 1e24
"""Requests per second that no counter can exceed."""
MAX_SECONDS: Final = 86_400.0

_Rate = Annotated[float, msgspec.Meta(ge=0, le=_MAX_PER_SECOND)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class Program(NamedTuple):
    """User and task: what stays the same when a tenant restarts. Two users may have tasks of the same name."""

    uid: int
    task: str


class DiurnalBin(Value, frozen=True):
    """One bin of the day: requests per second on earlier days, and on the latest observed day."""

    part: Annotated[int, msgspec.Meta(ge=0, lt=BINS_PER_DAY)]
    usual: _Rate = 0.0
    """Mean of the earlier days."""
    days: _Count = 0
    """Number of earlier days."""
    day: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 31) - 1)] = -1
    """The latest observed day, which is not in `usual` or `days`; counted from the clock's first midnight, -1: none."""
    latest: _Rate = 0.0
    """Mean of the latest day."""
    seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 0.0
    """Observed time of the latest day."""

    def __post_init__(self) -> None:
        """Reject values that are not finite."""
        if not all(math.isfinite(value) for value in (self.usual, self.latest, self.seconds)):
            raise ValueError("a value of a diurnal bin is not finite")


DiurnalProfile = tuple[DiurnalBin, ...]
"""The bins with data, in order."""


def in_order(day: DiurnalProfile) -> bool:
    """Return whether the bins are in order, each at most once."""
    return all(previous.part < following.part for previous, following in itertools.pairwise(day))
