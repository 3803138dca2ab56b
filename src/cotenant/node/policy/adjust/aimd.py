"""Additive increase, multiplicative decrease of the offline share, as in TCP: a simple baseline.

Each window in which too many requests miss their objective halves the offline share; each other window with requests
increases it a little. It finds the limit and oscillates around it.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.node.model.control import AdjustCause, ControlLimits, DeviceWindow, TenantWindow
from cotenant.node.policy.adjust.decision import AdjustDecision, Forecast
from cotenant.units.instant import Instant
from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value


class AimdParameters(Value, frozen=True):
    """Step sizes, chosen by the project."""

    more_ppm: int = 5_000
    """Increase of the offline share after a window without violations."""
    part_ppm: int = 500_000
    """Fraction of the offline share that remains after a window with violations."""


class Aimd:
    """The adjuster of one device."""

    def __init__(self, limits: ControlLimits, online_ppm: int, parameters: AimdParameters | None = None) -> None:
        """Begin at the current online share."""
        self.online_ppm = online_ppm
        self._limits = limits
        self._parameters = parameters or AimdParameters()
        self._why = "no window measured yet"

    def step(self, window: DeviceWindow, forecasts: Mapping[int, Forecast], now: Instant) -> AdjustDecision | None:
        """Halve the offline share after violations, else increase it."""
        del forecasts, now
        limits, promised = self._limits, [tenant for tenant in window.tenants if tenant.promised]
        violated = next((tenant for tenant in promised if self._is_violated(tenant)), None)
        if violated is not None:
            offline_ppm = (limits.max_online_ppm - self.online_ppm) * self._parameters.part_ppm // WHOLE_PPM
            return self._set_share(limits.max_online_ppm - offline_ppm, AdjustCause.VIOLATED, violated)
        served = next((tenant for tenant in promised if tenant.requests), None)
        if served is None:
            return None
        return self._set_share(self.online_ppm - self._parameters.more_ppm, AdjustCause.HEADROOM, served)

    def needs(self) -> dict[int, int]:
        """Return nothing: this policy estimates no needs."""
        return {}

    def why(self) -> str:
        """Return the reason for the last change."""
        return self._why

    def _is_violated(self, tenant: TenantWindow) -> bool:
        allowed = tenant.requests * (WHOLE_PPM - self._limits.quantile_ppm)
        return tenant.over * WHOLE_PPM > allowed or tenant.oldest_ns > tenant.slo_ns

    def _set_share(self, online_ppm: int, cause: AdjustCause, tenant: TenantWindow) -> AdjustDecision | None:
        online_ppm = min(max(online_ppm, self._limits.min_online_ppm), self._limits.max_online_ppm)
        if online_ppm == self.online_ppm:
            return None
        self.online_ppm = online_ppm
        self._why = f"{tenant.over} of {tenant.requests} requests missed the objective"
        return AdjustDecision(online_ppm, cause, self._why, tenant.slot, tenant.generation)
