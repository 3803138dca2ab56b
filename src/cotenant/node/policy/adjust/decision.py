"""Interface of adjust policies: one window and its forecasts in, a decision out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from cotenant.node.model.control import AdjustCause, DeviceWindow
from cotenant.units.estimate import Estimate
from cotenant.units.instant import Instant


class Forecast(NamedTuple):
    """The forecast load and share of a tenant in the next window."""

    load: Estimate | None = None
    """Number of requests."""
    need_ppm: Estimate | None = None
    """The smallest online share with which the tenant meets its objective."""
    peak_ppm: int | None = None
    """The same at the request rate of recent peaks; the whole device where even that does not suffice."""
    tolerable_ppm: int | None = None
    """The share at which lower-priority tenants cost only a small part of the objective."""


class AdjustDecision(NamedTuple):
    """A new online share; slot -1: no single tenant caused it."""

    online_ppm: int
    cause: AdjustCause
    detail: str
    slot: int = -1
    generation: int = 0


class Adjuster(Protocol):
    """The adjuster of one device; only `step` changes its state."""

    online_ppm: int
    """The online share now."""

    def step(self, window: DeviceWindow, forecasts: Mapping[int, Forecast], now: Instant) -> AdjustDecision | None:
        """Handle a window; return the change, or None."""
        ...

    def needs(self) -> dict[int, int]:
        """Return the estimated need of each online tenant with an objective, by slot; 0: unknown.

        Empty if peers need not divide the device.
        """
        ...

    def why(self) -> str:
        """Return the reason for the current share in one sentence."""
        ...
