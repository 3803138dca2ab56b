"""Additive increase, multiplicative decrease of what offline gets: the plain baseline, as TCP does it.

Each window in which too many requests miss their objective halves what offline gets; each other one with requests adds
a little. It finds the edge, and swings around it for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.domain.control import Cause, ControlLimits, DeviceWindow, TenantWindow
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import Instant
from cotenant.domain.value import Value
from cotenant.policy.adjust.verdict import Foreseen, Verdict


class Pace(Value, frozen=True):
    """How it goes up and down. Our choice."""

    more_ppm: int = 5_000
    """What offline gains in a window without harm."""
    part_ppm: int = 500_000
    """What is left of offline's part after a window with harm."""


class Aimd:
    """One device's."""

    def __init__(self, limits: ControlLimits, online_ppm: int, pace: Pace | None = None) -> None:
        """Begin where it stands."""
        self.online_ppm = online_ppm
        self._limits = limits
        self._pace = pace or Pace()
        self._why = "nothing was seen yet"

    def step(self, window: DeviceWindow, foreseen: Mapping[int, Foreseen], now: Instant) -> Verdict | None:
        """Half as much for offline after harm, a little more otherwise."""
        del foreseen, now
        limits, promised = self._limits, [tenant for tenant in window.tenants if tenant.promised]
        harmed = next((tenant for tenant in promised if self._is_harmed(tenant)), None)
        if harmed is not None:
            left_ppm = (limits.most_ppm - self.online_ppm) * self._pace.part_ppm // WHOLE_PPM
            return self._to(limits.most_ppm - left_ppm, Cause.VIOLATED, harmed)
        seen = next((tenant for tenant in promised if tenant.requests), None)
        return None if seen is None else self._to(self.online_ppm - self._pace.more_ppm, Cause.ROOM, seen)

    def needs(self) -> dict[int, int]:
        """It knows none."""
        return {}

    def why(self) -> str:
        """The last window that mattered."""
        return self._why

    def _is_harmed(self, tenant: TenantWindow) -> bool:
        allowed = tenant.requests * (WHOLE_PPM - self._limits.quantile_ppm)
        return tenant.over * WHOLE_PPM > allowed or tenant.oldest_ns > tenant.slo_ns

    def _to(self, online_ppm: int, cause: Cause, tenant: TenantWindow) -> Verdict | None:
        online_ppm = min(max(online_ppm, self._limits.least_ppm), self._limits.most_ppm)
        if online_ppm == self.online_ppm:
            return None
        self.online_ppm = online_ppm
        self._why = f"{tenant.over} of {tenant.requests} requests missed their objective"
        return Verdict(online_ppm, cause, self._why, tenant.slot, tenant.generation)
