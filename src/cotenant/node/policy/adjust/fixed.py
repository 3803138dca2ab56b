"""Fixed: sets the forecast need and ignores measurements, as a comparison for feedback."""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.node.model.control import AdjustCause, ControlLimits, DeviceWindow
from cotenant.node.policy.adjust.decision import AdjustDecision, Forecast
from cotenant.units.instant import Instant
from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value


class FixedParameters(Value, frozen=True):
    """Parameters chosen by the project."""

    step_ppm: int = 30_000


class FixedAdjuster:
    """The adjuster of one device."""

    def __init__(self, limits: ControlLimits, online_ppm: int, parameters: FixedParameters | None = None) -> None:
        """Begin at the current online share."""
        self.online_ppm = online_ppm
        self._limits = limits
        self._parameters = parameters or FixedParameters()
        self._needs: dict[int, int] = {}
        self._why = "no forecast yet"

    def step(self, window: DeviceWindow, forecasts: Mapping[int, Forecast], now: Instant) -> AdjustDecision | None:
        """Set the largest forecast need; the maximum for a tenant without a forecast."""
        del now
        limits, promised = self._limits, {tenant.slot: tenant for tenant in window.tenants if tenant.promised}
        self._needs = {}
        for slot in promised:
            need = forecasts[slot].need_ppm if slot in forecasts else None
            need_ppm = limits.max_online_ppm if need is None else round(min(need.high, limits.max_online_ppm))
            self._needs[slot] = max(need_ppm, limits.min_online_ppm)
        slot, online_ppm = max(self._needs.items(), key=lambda item: item[1])
        is_same = abs(online_ppm - self.online_ppm) < self._parameters.step_ppm and online_ppm != limits.max_online_ppm
        if is_same or online_ppm == self.online_ppm:
            return None
        cause = AdjustCause.LOAD_INCREASED if online_ppm > self.online_ppm else AdjustCause.LOAD_DECREASED
        self.online_ppm = online_ppm
        self._why = "predicted need"
        return AdjustDecision(online_ppm, cause, self._why, slot, promised[slot].generation)

    def needs(self) -> dict[int, int]:
        """Return the forecast need by slot, where the sum exceeds the device."""
        return self._needs if len(self._needs) > 1 and sum(self._needs.values()) > WHOLE_PPM else {}

    def why(self) -> str:
        """Return the reason for the last change."""
        return self._why
