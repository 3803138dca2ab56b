"""How is a device doing, and how far is a tenant on its way out? What protection remembers."""

from __future__ import annotations

import enum
from typing import Final

from cotenant.domain.instant import NEVER, SECOND_NS, Duration, Instant
from cotenant.domain.value import Value

EVICTIONS_LIMIT: Final = 8
"""Of so many turns to Overlimit a device's watch keeps the instants."""
WHY_LIMIT: Final = 256


class Health(enum.Enum):
    """The state of a device, as admission and eviction see it."""

    INIT = "init"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    OVERLIMIT = "overlimit"
    DISABLED = "disabled"


class GpuSample(Value, frozen=True):
    """What was seen of a device at one instant; -1: the device does not tell."""

    utilization_ppm: int = -1
    sm_activity_ppm: int = -1
    clock_ppm: int = -1
    """Of the highest clock that it has."""
    memory_used_bytes: int = -1
    memory_bytes: int = -1
    online_memory_bytes: int = 0
    offline_memory_bytes: int = 0
    """By the ledger, as the one before."""


class GpuWatch(Value, frozen=True):
    """What the monitor remembers of one device."""

    health: Health = Health.INIT
    since_ns: Instant = 0
    why: str = ""
    turn: int = 0
    """The turn that made it so."""
    breaches: int = 0
    calm: int = 0
    """Samples in a row above and below the thresholds."""
    evictions: tuple[Instant, ...] = ()
    """When it was Overlimit the latest times, newest last; at most `EVICTIONS_LIMIT`."""
    until_ns: Instant = NEVER
    """Back-off: not before then."""


class Stage(enum.Enum):
    """How far a tenant is on its way out, or aside."""

    RUNNING = "running"
    DRAINING = "draining"
    TERMINATING = "terminating"
    FINISHING = "finishing"
    KILLED = "killed"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESTORING = "restoring"


class Standing(Value, frozen=True):
    """Where a tenant stands with the node, since when and because of what; `until_ns` is its one deadline."""

    stage: Stage = Stage.RUNNING
    why: str = ""
    turn: int = 0
    """The turn that began it."""
    since_ns: Instant = 0
    until_ns: Instant = NEVER
    grace_ns: Duration = 0
    """How long its program has between the request to end and the end."""


class OnPressure(enum.Enum):
    """What becomes of an offline tenant whose memory is needed."""

    EVICT = "evict"
    SUSPEND = "suspend"


class ProtectLimits(Value, frozen=True):
    """By which limits a node protects. The figures are our choice; docs/protection.md says why these."""

    drain_ns: Duration = 2 * SECOND_NS
    """How long a tenant's announced work may take to end before the next step is taken all the same."""
    grace_ns: Duration = 10 * SECOND_NS
    """How long a program has between the request to end and its end, where neither it nor anybody else says."""
    obey_ns: Duration = 2 * SECOND_NS
    """How long a parent may take to end a program, or to say that it suspended it."""
    make_room_ns: Duration = 15 * SECOND_NS
    """How long an online newcomer waits for offline tenants to make room."""
    online_first_ns: Duration = 10 * SECOND_NS
    """After the death of an MPS server, how long offline newcomers wait for the online tenants that were there."""
    period_ns: Duration = SECOND_NS
    """How often a device is looked at."""
