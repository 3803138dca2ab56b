"""What does a policy say of a device, and what is it told?"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from cotenant.domain.foretold import Foretold
from cotenant.domain.gpu import GpuRoom


class Weighed(NamedTuple):
    """What it would mean to have somebody on a device."""

    cost: tuple[int, ...]
    """Whole numbers: what decides must not hang on the last bit of a float."""
    why: str
    short_ppm: int = 0
    """What its online tenants would need beyond the whole of it to keep their objectives."""


Rank: TypeAlias = Callable[[GpuRoom], tuple[int, ...]]
"""By the room alone, so that it can be kept as long as the room stays."""
Weigh: TypeAlias = Callable[[Foretold, Foretold], Weighed]
"""By how those on the device would fare, without the newcomer and with it."""


class PlacePolicy(NamedTuple):
    """A rank for each room; and, where a policy looks at who comes, a cost that decides before it."""

    rank: Rank
    weigh: Weigh | None = None
