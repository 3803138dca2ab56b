"""Interface of place policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from cotenant.node.model.gpu import GpuCapacity
from cotenant.predict.sharing_forecast import SharingForecast


class DeviceScore(NamedTuple):
    """The predicted effect of placing a tenant on a device."""

    cost: tuple[int, ...]
    """Integers, so that decisions do not depend on floating-point rounding."""
    why: str
    shortfall_ppm: int = 0
    """Share beyond the whole device that its online tenants would need for their objectives."""


RankDevice: TypeAlias = Callable[[GpuCapacity], tuple[int, ...]]
"""Ranks a device by its free capacity alone, so that ranks can be cached."""
ScoreDevice: TypeAlias = Callable[[SharingForecast, SharingForecast], DeviceScore]
"""Scores a device from the predictions without and with the new tenant."""


class PlacePolicy(NamedTuple):
    """The rank of a device and, for policies that predict, a score that takes precedence."""

    rank: RankDevice
    score: ScoreDevice | None = None
