"""Which GPU? Each policy ranks a device; of those that admission accepts, the lowest rank wins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from cotenant.domain.gpu import GpuRoom
from cotenant.policy.place.pack import pack
from cotenant.policy.place.spread import spread

PlacePolicy: TypeAlias = Callable[[GpuRoom], tuple[int, ...]]

POLICIES: Final[dict[str, PlacePolicy]] = {
    "spread": spread,
    "pack": pack,
}
