"""Measurement windows of online tenants, and the adjustments that follow from them.

Latencies are counted in logarithmic buckets, as in the tenants' pages (native/gate/request.h): 16 per power of two, so
that a bucket is at most 1/16 wider than the latencies in it.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from cotenant.gate.request_buckets import Sparse
from cotenant.node.model.protection import WHY_LIMIT
from cotenant.units.instant import MILLISECOND_NS, Duration, Instant
from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value

Detail = Annotated[str, msgspec.Meta(max_length=WHY_LIMIT)]
Ppm = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_PPM)]


class TenantWindow(Value, frozen=True):
    """One tenant in one window: the increase of the running sums on its page."""

    slot: int
    generation: int
    online: bool
    slo_ns: Duration = 0
    """The latency objective; 0: none."""
    requests: int = 0
    """Requests that ended within the window."""
    over: int = 0
    """Those of them that exceeded the objective."""
    sum_ns: int = 0
    """Sum of their latencies."""
    latencies: Sparse = ()
    active_ns: Duration = 0
    """Time for which the tenant had work or expected some."""
    device_ns: Duration = 0
    """Expected device time of its launches that passed the gate."""
    waited_ns: Duration = 0
    """Time for which its launches waited at the gate."""
    lost_ns: Duration = 0
    """Delay that it caused to tenants of higher priority."""
    delayed_ns: Duration = 0
    """Delay of its host's waits by other tenants, as its process measured them."""
    undelayed_ns: Duration = 0
    """What the same waits would have taken alone."""
    launches: int = 0
    """Launches that passed the gate; one that was cut into parts counts once."""
    oldest_ns: Duration = 0
    """Age of its oldest unfinished request at the end of the window; 0: none."""
    priority: int = 0
    """Tenants with the same priority are peers."""
    limit_ppm: Ppm = 0
    """The share among peers that its user set; 0: none."""

    @property
    def promised(self) -> bool:
        """Whether it is an online tenant with a latency objective."""
        return self.online and self.slo_ns > 0


class DeviceWindow(Value, frozen=True):
    """All tenants of one device in one window."""

    gpu: int
    begin_ns: Instant
    end_ns: Instant
    tenants: tuple[TenantWindow, ...] = ()


class AdjustCause(enum.Enum):
    """Why the online share changed; a closed list, so that causes can be counted."""

    JOINED = "tenant joined"
    DEPARTED = "tenant left"
    VIOLATED = "objective violated"
    STUCK = "request stuck"
    NEAR_OBJECTIVE = "near objective"
    SATURATED = "saturated"
    LOAD_INCREASED = "load increased"
    LOAD_DECREASED = "load decreased"
    HEADROOM = "headroom"
    PROBE = "probe"
    UNREACHABLE = "objective unreachable"
    DIVIDED = "shares divided"
    OBJECTIVE = "objective changed"
    TRIMMED = "trimmed"
    SIMPLE_MODE = "simple mode selected"
    GATE_MODE = "simple mode taken back"


class Adjustment(Value, frozen=True):
    """A new online share of a device, with its cause."""

    gpu: int
    online_ppm: Ppm
    cause: AdjustCause
    detail: Detail = ""
    """One sentence with the measured values."""
    shares: tuple[tuple[int, int], ...] = ()
    """Slot and share among peers, for tenants without a share of their own."""
    slot: int = -1
    generation: int = 0
    """The tenant that caused the change; slot -1: none in particular."""
    is_simple: bool = False
    """Whether the gate is open, and offline work has the SMs that the online share leaves."""


class OnlineShareSetpoint(Value, frozen=True):
    """The online share in force on a device whose online tenants have latency objectives."""

    gpu: int
    online_ppm: int
    shares: tuple[tuple[int, int], ...] = ()
    """Slot and share among peers, for tenants that are still on the device."""
    is_simple: bool = False
    """Whether the gate is open, and offline work has the SMs that the online share leaves."""


class ControlLimits(Value, frozen=True):
    """Bounds and parameters of share adjustment; docs/concepts/control.md gives the reasons for the defaults."""

    period_ns: Duration = 100 * MILLISECOND_NS
    """Length of a measurement window."""
    adjust: str = "feedback"
    """Name of the adjustment policy; "off": none."""
    quantile_ppm: Ppm = 990_000
    """Fraction of the requests that must meet the objective."""
    headroom_ppm: Ppm = 100_000
    """Fraction of the objective that is kept free as a safety margin."""
    min_online_ppm: Ppm = 100_000
    """Lower bound of the online share while online tenants are active."""
    max_online_ppm: Ppm = 980_000
    """Upper bound of the online share; the remainder always goes to offline tenants."""
    mps_share: bool = False
    """Whether offline programs that start under MPS get only the SMs that the online share leaves."""
    simple_mode: str = "measured"
    """Name of the policy that chooses between the gate and an open gate with a fixed part of the SMs."""

    @property
    def enabled(self) -> bool:
        """Whether any policy adjusts shares."""
        return self.adjust != "off"
