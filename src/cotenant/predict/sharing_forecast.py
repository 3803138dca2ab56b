"""Sharing rules of a device, and the forecast of its tenants."""

from __future__ import annotations

from cotenant.gate.rules import GatePolicy
from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value


class Sharing(Value, frozen=True):
    """Rules by which the tenants of a device share it."""

    policy: GatePolicy = GatePolicy.FILL
    kept_ppm: int = 980_000
    """Part that online tenants without an objective keep while active."""
    is_mps: bool = False
    """Whether kernels of different tenants run at the same time."""
    quantile_ppm: int = 990_000
    headroom_ppm: int = 100_000
    """Quantile of an objective, and the part of it that is kept as reserve."""


class SharingForecast(Value, frozen=True):
    """Forecast for the tenants of a device."""

    needs_ppm: int = 0
    """Sum of the needs of online tenants with an objective; above a million if the device is too small."""
    online: float = 0.0
    """Work of online tenants, 1 for each alone and within its objective."""
    offline: float = 0.0

    @property
    def short_ppm(self) -> int:
        """Return by how much the needs exceed the device."""
        return max(self.needs_ppm - WHOLE_PPM, 0)

    @property
    def goodput(self) -> float:
        """Return the work of all tenants."""
        return self.online + self.offline
