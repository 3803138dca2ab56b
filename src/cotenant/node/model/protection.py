"""Health of devices, the lifecycle of tenants, and the limits of protection."""

from __future__ import annotations

import enum
from typing import Final

from cotenant.units.instant import NEVER, SECOND_NS, Duration, Instant
from cotenant.units.value import Value

EVICTIONS_LIMIT: Final = 8
"""The monitor keeps the instants of this many changes to Overlimit."""
WHY_LIMIT: Final = 256


def clipped(text: str, limit: int = WHY_LIMIT) -> str:
    """Return a text cut to the limit; a cut text ends with an ellipsis, after a whole word if possible."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    words = head.rsplit(" ", 1)[0]
    return f"{words if 2 * len(words) > limit else head}\N{HORIZONTAL ELLIPSIS}"


class Health(enum.Enum):
    """The health of a device, which admission and eviction depend on."""

    INIT = "init"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    OVERLIMIT = "overlimit"
    DISABLED = "disabled"


class Block(enum.Enum):
    """A condition that must end before any tenant may join a device."""

    DEVICE = "device"
    """The device or its firmware does not respond."""
    SERVER = "server"
    """Its MPS server is not running."""
    DRAIN = "drain"
    """An error affected all tenants of the device: all must leave first."""


class GpuSample(Value, frozen=True):
    """Measurements of a device at one instant; -1: the device does not report the value."""

    utilization_ppm: int = -1
    sm_activity_ppm: int = -1
    clock_ppm: int = -1
    """SM clock as a fraction of its maximum."""
    memory_used_bytes: int = -1
    memory_bytes: int = -1
    online_memory_bytes: int = 0
    offline_memory_bytes: int = 0
    """From the ledger, as is `online_memory_bytes`."""


class GpuWatch(Value, frozen=True):
    """The monitor's state of one device."""

    health: Health = Health.INIT
    since_ns: Instant = 0
    why: str = ""
    turn: int = 0
    """The turn that caused the current health."""
    breaches: int = 0
    calm: int = 0
    """Consecutive samples above the high thresholds (`breaches`) and below the calm ones (`calm`)."""
    evictions: tuple[Instant, ...] = ()
    """Instants of the latest changes to Overlimit, newest last; at most `EVICTIONS_LIMIT`."""
    until_ns: Instant = NEVER
    """End of the back-off after Overlimit."""
    blocked: tuple[Block, ...] = ()
    """What prevents tenants from joining; not empty exactly while the health is Disabled."""


class ExitPhase(enum.Enum):
    """The phases of a tenant's lifecycle, from running to exited or suspended."""

    RUNNING = "running"
    DRAINING = "draining"
    TERMINATING = "terminating"
    FINISHING = "finishing"
    KILLED = "killed"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESTORING = "restoring"


class Lifecycle(Value, frozen=True):
    """The phase of a tenant, when it began and why; `until_ns` is its only deadline."""

    phase: ExitPhase = ExitPhase.RUNNING
    why: str = ""
    turn: int = 0
    """The turn in which the change began."""
    since_ns: Instant = 0
    until_ns: Instant = NEVER
    grace_ns: Duration = 0
    """Time between the request to exit and the kill."""
    may_restart: bool = False
    """Whether its parent may start it again: the tenant was not asked to end for good."""
    ignores_drain: bool = False
    """Whether the phase lasts until its deadline even if the tenant has no work left."""
    suspended: bool = False
    """Whether its memory is on the host: it then holds neither device memory nor reservations."""
    held_bytes: int = 0
    """Device memory that it held when its suspension began; 0: unknown."""
    awaits_notice: bool = False
    """Whether the phase waits until an operator has announced the disruption of its pod."""


class OnPressure(enum.Enum):
    """What happens to an offline tenant whose memory an online tenant needs."""

    EVICT = "evict"
    SUSPEND = "suspend"


class OnBypass(enum.Enum):
    """What happens to a tenant that uses device memory which the hook did not see, or more than its quota."""

    EVICT = "evict"
    """An offline tenant is killed at once; an online tenant is only reported."""
    REPORT = "report"
    """Every tenant is only reported."""


class ProtectLimits(Value, frozen=True):
    """Thresholds and times of protection; docs/concepts/protection.md gives the reasons for the defaults."""

    period_ns: Duration = SECOND_NS
    """Sampling period of a device."""
    memory_ppm: int = 950_000
    """Used memory above `memory_ppm` is high, above `memory_over_ppm` over the limit, up to `memory_calm_ppm` calm."""
    memory_calm_ppm: int = 900_000
    memory_over_ppm: int = 980_000
    utilization_ppm: int = 980_000
    """Utilization and SM activity are high only if both are, and only while online tenants hold memory."""
    utilization_calm_ppm: int = 900_000
    sm_activity_ppm: int = 950_000
    sm_activity_calm_ppm: int = 850_000
    clock_ppm: int = 600_000
    """An SM clock below `clock_ppm` is low, below `clock_over_ppm` over the limit, from `clock_calm_ppm` on calm."""
    clock_calm_ppm: int = 700_000
    clock_over_ppm: int = 500_000
    load_ppm: int = 500_000
    """Below this utilization a low clock is power saving and does not count."""
    samples: int = 5
    """Consecutive high samples that make a device Unhealthy."""
    over_samples: int = 5
    """Further consecutive samples over the limit that make it Overlimit."""
    calm_samples: int = 10
    """Consecutive calm samples that improve its health by one step."""
    init_samples: int = 3
    backoff_ns: Duration = 30 * SECOND_NS
    """Time without offline tenants after the first Overlimit; doubles with each further one in the window."""
    backoff_cap_ns: Duration = 900 * SECOND_NS
    backoff_window_ns: Duration = 3600 * SECOND_NS
    hang_factor: int = 100
    """A kernel hangs if it exceeds its expected time by this factor and `hang_least_ns`."""
    hang_least_ns: Duration = 10 * SECOND_NS
    hang_unknown_ns: Duration = 600 * SECOND_NS
    """The same for a kernel without a profile; 0: never."""
    drain_ns: Duration = 2 * SECOND_NS
    """How long a tenant's announced work may take before the next phase begins anyway."""
    grace_ns: Duration = 10 * SECOND_NS
    """Time between the request to exit and the kill, unless the tenant or the request sets another."""
    fault_grace_ns: Duration = 2 * SECOND_NS
    """Time for a program with a fatal error to exit by itself."""
    obey_ns: Duration = 2 * SECOND_NS
    """Time for a parent to kill its program."""
    make_room_ns: Duration = 15 * SECOND_NS
    """How long an online tenant waits to join while offline tenants free memory, and a parent may take to suspend."""
    online_first_ns: Duration = 10 * SECOND_NS
    """After an MPS server died, how long offline tenants wait for the online tenants that were there."""
    pod_notice_ns: Duration = 10 * SECOND_NS
    """How long a tenant in a pod is paused until its pod is evicted, before the node ends it by itself."""
