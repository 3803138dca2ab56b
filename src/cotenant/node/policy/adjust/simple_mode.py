"""Choice between the gate and a simple mode: an open gate, and a fixed part of the SMs for offline work.

Where requests follow each other without pauses, there is nothing to fill: offline work gets more from SMs of its own,
and no launch has to wait. The mode is tried, and kept only while the offline work makes more progress in it than it did
at the gate. An online share is the set-point in both modes, and follows the measured latency: in the simple mode, what
it leaves is the part of the SMs. It begins with the smallest part.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from cotenant.node.model.control import DeviceWindow
from cotenant.units.instant import NEVER, SECOND_NS, Duration, Instant
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import round_share
from cotenant.units.value import Value

_SMOOTHING_NS: Final = 2 * SECOND_NS
"""Time constant of the mean activity and progress."""


class SimpleModeParameters(Value, frozen=True):
    """Thresholds chosen by the project; docs/concepts/control.md gives the reasons."""

    busy: float = 0.9
    """Online tenants that are active for this part of the time leave no pauses."""
    pausing: float = 0.75
    """Below this part of the time they leave pauses, which offline work uses better at the gate."""
    measured_ns: Duration = 3 * SECOND_NS
    """How long the gate is measured before the simple mode is tried."""
    tried_ns: Duration = 6 * SECOND_NS
    """How long the simple mode is tried before it is compared: the online share has to settle first."""
    misses: int = 3
    """With the smallest part of the SMs, this many requests beyond the objective end the trial, """
    missed: float = 4.0
    """if they are more than this multiple of the permitted ones."""
    gain: float = 1.05
    """Offline work must make this many times the progress that it made at the gate."""
    retry_ns: Duration = 120 * SECOND_NS
    """After the simple mode was taken back it is not tried for this long, which doubles each time."""
    retry_max_ns: Duration = 3_600 * SECOND_NS


class ModeInput(NamedTuple):
    """What the choice depends on besides the window."""

    online_ppm: int
    max_online_ppm: int
    is_possible: bool
    """Whether the SMs of offline work can be limited: under MPS, unless the configuration sets the mode itself."""
    quantile_ppm: int
    """Fraction of the requests that must meet the objective."""


class ModeChooser(Protocol):
    """The choice for one device; only `step` changes its state."""

    is_simple: bool
    """Whether the simple mode is in force."""

    def step(self, window: DeviceWindow, given: ModeInput, now: Instant) -> str | None:
        """Handle a window; return the reason if the mode changes, else None."""
        ...


class GateOnly:
    """The gate decides about every launch."""

    def __init__(self, *, is_simple: bool = False) -> None:
        """Leave the simple mode that was in force before a restart, if any."""
        self.is_simple = is_simple

    def step(self, window: DeviceWindow, given: ModeInput, now: Instant) -> str | None:
        """Leave the simple mode."""
        del window, given, now
        if not self.is_simple:
            return None
        self.is_simple = False
        return "simple modes are disabled"


class MeasuredMode:
    """Tries the simple mode where online work leaves no pauses, and keeps it while offline work gains by it."""

    def __init__(self, *, is_simple: bool = False, parameters: SimpleModeParameters | None = None) -> None:
        """Begin with the mode that is in force, without measurements."""
        self.is_simple = is_simple
        self._parameters = parameters or SimpleModeParameters()
        self._tenants: tuple[tuple[int, int, int], ...] = ()
        self._activity = self._progress = -1.0
        self._requests = self._missed = 0
        self._before: float | None = None
        self._since_ns: Instant = NEVER
        self._retry_at_ns: Instant = NEVER
        self._retry_ns = self._parameters.retry_ns

    def step(self, window: DeviceWindow, given: ModeInput, now: Instant) -> str | None:
        """Select the simple mode, or take it back."""
        tenants = tuple((tenant.slot, tenant.generation, tenant.slo_ns) for tenant in window.tenants)
        if tenants != self._tenants:
            return self._restart(tenants, now)
        self._measure(window, now)
        if self.is_simple:
            self._count_misses(window, given)
            return self._take_back(given, now)
        return self._select(given, now)

    def _restart(self, tenants: tuple[tuple[int, int, int], ...], now: Instant) -> str | None:
        """Forget what was measured with other tenants or objectives; a mode from before a restart stays."""
        is_first = not self._tenants
        self._tenants = tenants
        self._before, self._retry_at_ns, self._retry_ns = None, NEVER, self._parameters.retry_ns
        self._begin(now)
        if not self.is_simple or is_first:
            return None
        self.is_simple = False
        return "tenants or objectives changed"

    def _begin(self, now: Instant) -> None:
        self._since_ns = now
        self._activity = self._progress = -1.0
        self._requests = self._missed = 0

    def _count_misses(self, window: DeviceWindow, given: ModeInput) -> None:
        """Count requests beyond their objective while offline work has the smallest part of the SMs."""
        if given.online_ppm < given.max_online_ppm:
            self._requests = self._missed = 0
            return
        self._requests += sum(tenant.requests for tenant in window.tenants if tenant.promised)
        self._missed += sum(tenant.over for tenant in window.tenants if tenant.promised)

    def _is_harmful(self, given: ModeInput) -> bool:
        permitted = self._requests * (WHOLE_PPM - given.quantile_ppm) / WHOLE_PPM
        return self._missed >= self._parameters.misses and self._missed > self._parameters.missed * permitted

    def _measure(self, window: DeviceWindow, now: Instant) -> None:
        """Update the mean activity of online tenants, and how many launches per second offline tenants make."""
        span_ns = max(window.end_ns - window.begin_ns, 1)
        active = [tenant.active_ns / span_ns for tenant in window.tenants if tenant.online]
        activity = min(max(active, default=0.0), 1.0)
        progress = sum(tenant.launches for tenant in window.tenants if not tenant.online) * SECOND_NS / span_ns
        if self._activity < 0:
            self._activity, self._progress = activity, progress
            return
        weight = max(span_ns / max(now - self._since_ns, span_ns), 1 - 0.5 ** (span_ns / _SMOOTHING_NS))
        self._activity += weight * (activity - self._activity)
        self._progress += weight * (progress - self._progress)

    def _select(self, given: ModeInput, now: Instant) -> str | None:
        parameters = self._parameters
        is_measured = now - self._since_ns >= parameters.measured_ns
        is_due = self._retry_at_ns == NEVER or now >= self._retry_at_ns
        if not (is_measured and is_due and given.is_possible) or given.online_ppm >= given.max_online_ppm:
            return None
        if self._activity < parameters.busy or not self._progress:
            return None
        self.is_simple, self._before = True, self._progress
        reason = f"online work is active for {_percent(self._activity)} of the time"
        self._begin(now)
        return reason

    def _take_back(self, given: ModeInput, now: Instant) -> str | None:
        parameters = self._parameters
        reason = None
        if not given.is_possible:
            reason = "the SMs of offline work cannot be limited any more"
        elif self._is_harmful(given):
            missed = f"{self._missed} of {self._requests} requests"
            reason = f"{missed} missed the objective with the smallest part of the SMs"
        elif now - self._since_ns >= parameters.tried_ns:
            if self._activity < parameters.pausing:
                reason = f"online work is active for {_percent(self._activity)} of the time only"
            elif self._before is not None and self._progress < parameters.gain * self._before:
                reason = f"offline work makes {self._progress:.0f} launches/s, and {self._before:.0f} at the gate"
        if reason is None:
            return None
        self.is_simple = False
        self._retry_at_ns = now + self._retry_ns
        self._retry_ns = min(2 * self._retry_ns, parameters.retry_max_ns)
        self._begin(now)
        return reason


def _percent(part: float) -> str:
    return round_share(round(min(part, 1.0) * WHOLE_PPM))
