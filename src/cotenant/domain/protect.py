"""How is a device doing, and how far is a tenant on its way out? What protection remembers."""

from __future__ import annotations

import enum
from typing import Final

from cotenant.domain.instant import NEVER, SECOND_NS, Duration, Instant
from cotenant.domain.value import Value

EVICTIONS_LIMIT: Final = 8
"""Of so many turns to Overlimit a device's watch keeps the instants."""
WHY_LIMIT: Final = 256


def clipped(text: str, limit: int = WHY_LIMIT) -> str:
    """As much of a sentence as there is room for; one that had to be cut ends with dots, after a word if it can."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    words = head.rsplit(" ", 1)[0]
    return f"{words if 2 * len(words) > limit else head}\N{HORIZONTAL ELLIPSIS}"


class Health(enum.Enum):
    """The state of a device, as admission and eviction see it."""

    INIT = "init"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    OVERLIMIT = "overlimit"
    DISABLED = "disabled"


class Block(enum.Enum):
    """What must be well again before anybody joins a device."""

    DEVICE = "device"
    """It does not answer, or its firmware does not."""
    SERVER = "server"
    """Its MPS server is gone."""
    DRAIN = "drain"
    """An error reached everybody on it: they all leave first."""


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
    blocked: tuple[Block, ...] = ()
    """What keeps everybody away; something does exactly while it is Disabled."""


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
    again: bool = False
    """Whether its parent may start it anew elsewhere or later: nobody wanted it gone for good."""
    firm: bool = False
    """Whether the deadline is waited for even if no work is left."""
    aside: bool = False
    """Whether its memory is on the host: it holds nothing of the device, promises included."""
    held_bytes: int = 0
    """What it held of the device's memory when it had to go aside; zero: nobody knows."""


class OnPressure(enum.Enum):
    """What becomes of an offline tenant whose memory is needed."""

    EVICT = "evict"
    SUSPEND = "suspend"


class ProtectLimits(Value, frozen=True):
    """By which limits a node protects. The figures are our choice; docs/protection.md says why these."""

    period_ns: Duration = SECOND_NS
    """How often a device is looked at."""
    memory_ppm: int = 950_000
    """Used memory above this is high, above the one after the next over the limit, and not above the next calm."""
    memory_calm_ppm: int = 900_000
    memory_over_ppm: int = 980_000
    utilization_ppm: int = 980_000
    """Utilization and SM activity are high only if both are, and while online work is there."""
    utilization_calm_ppm: int = 900_000
    sm_activity_ppm: int = 950_000
    sm_activity_calm_ppm: int = 850_000
    clock_ppm: int = 600_000
    """An SM clock below this is low, below the one after the next over the limit, and not below the next calm."""
    clock_calm_ppm: int = 700_000
    clock_over_ppm: int = 500_000
    load_ppm: int = 500_000
    """Below this utilization a low clock only saves power."""
    samples: int = 5
    """So many samples in a row that are high make a device Unhealthy."""
    over_samples: int = 5
    """So many more that are over the limit make it Overlimit."""
    calm_samples: int = 10
    """So many that are calm lead one step back."""
    init_samples: int = 3
    backoff_ns: Duration = 30 * SECOND_NS
    """How long offline stays away after the first Overlimit; twice as long after each further one in the window."""
    backoff_cap_ns: Duration = 900 * SECOND_NS
    backoff_window_ns: Duration = 3600 * SECOND_NS
    hang_factor: int = 100
    """A kernel that takes so many times its expected device time hangs, but none before the least time."""
    hang_least_ns: Duration = 10 * SECOND_NS
    hang_unknown_ns: Duration = 600 * SECOND_NS
    """As much for a kernel that no profile knows; 0: never."""
    drain_ns: Duration = 2 * SECOND_NS
    """How long a tenant's announced work may take to end before the next step is taken all the same."""
    grace_ns: Duration = 10 * SECOND_NS
    """How long a program has between the request to end and its end, where neither it nor anybody else says."""
    fault_grace_ns: Duration = 2 * SECOND_NS
    """How long a program that met a fatal error has to end by itself before it is ended."""
    obey_ns: Duration = 2 * SECOND_NS
    """How long a parent may take to end a program, or to say that it suspended it."""
    make_room_ns: Duration = 15 * SECOND_NS
    """How long an online newcomer waits for offline tenants to make room."""
    online_first_ns: Duration = 10 * SECOND_NS
    """After the death of an MPS server, how long offline newcomers wait for the online tenants that were there."""
