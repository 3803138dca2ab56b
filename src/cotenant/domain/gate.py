"""By which rules do the tenants of a device let each other pass?"""

from __future__ import annotations

import enum
from typing import Final

from cotenant.domain.value import Value

SEATS_LIMIT: Final = 96
"""Tenants of one device; as in native/gate/pages.h."""


class GatePolicy(enum.Enum):
    """Who may launch while a tenant above is active."""

    OPEN = "open"
    STRICT = "strict"
    FILL = "fill"


class Limit(enum.Enum):
    """What a tenant's share of the compute holds it to."""

    OFF = "off"
    CONSERVING = "conserving"
    """Its share among equals, and what they leave of theirs."""
    STATIC = "static"
    """Its share, and never more."""


class GateSeat(Value, frozen=True):
    """A tenant as the others of its device know it."""

    slot: int
    generation: int
    priority: int
    online: bool
    paused: bool = False
    least_ppm: int = 0
    """Share of the time that it gets whatever those above do."""
    ending: bool = False
    """Whether it was asked to end, and launches only what it takes for that."""
    limit_ppm: int = 0
    """Share of the device that it has among its equals, and is held to."""
    static: bool = False
    """Whether it is held to it also when nobody else wants the rest."""


class GateRules(Value, frozen=True):
    """What the node says to all tenants of a device. The figures are our choice; docs/gate.md says why these."""

    policy: GatePolicy = GatePolicy.FILL
    bound_ns: int = 500_000
    """Device time that a tenant below may have submitted and not confirmed while nobody above is active."""
    delay_ppm: int = 20_000
    """Of its time, what a tenant above may lose to those below."""
    patience_ns: int = 2_000_000
    """A holder this long past its expected launch is quiet."""
    switch_ns: int = 10_000
    """What it costs to change the process on the device and back; a tenant under MPS knows that it costs nothing."""
    spin_ppm: int = 350_000
    """Of a processor, what a waiting tenant may spin away."""
    seats: tuple[GateSeat, ...] = ()
