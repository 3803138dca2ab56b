"""What happened, in one sentence that a person can read and a few words that a program can count?"""

from __future__ import annotations

import enum
from typing import Final

from cotenant.domain.instant import Instant
from cotenant.domain.value import Value

NO_GPU: Final = -1


class Level(enum.Enum):
    """Whether somebody should look: nothing to do, worth a look, something was lost."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class What(enum.Enum):
    """The kinds of happenings; the list is closed, so that they can be counted."""

    STARTED = "started"
    STOPPED = "stopped"
    GAP = "gap"
    JOINED = "joined"
    PLACED = "placed"
    AWAITED = "awaited"
    REFUSED = "refused"
    WISH_REFUSED = "wish-refused"
    RESUMED = "resumed"
    LEFT = "left"
    LOST = "lost"
    RESTARTED = "restarted"
    PAUSED = "paused"
    CONTINUED = "continued"
    PRIORITY = "priority"
    SHARE = "share"
    OBJECTIVE = "objective"
    RULES = "rules"
    ADJUSTED = "adjusted"
    EVICTING = "evicting"
    EVICTED = "evicted"
    QUITTING = "quitting"
    ENDING = "ending"
    KILLED = "killed"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    SUSPEND_FAILED = "suspend-failed"
    RESTORING = "restoring"
    RESTORED = "restored"
    RESTORE_FAILED = "restore-failed"
    MEMORY_WANTED = "memory-wanted"
    FAULTED = "faulted"
    HANGS = "hangs"
    GPU_FOUND = "gpu-found"
    GPU_STATE = "gpu-state"
    GPU_FAULTED = "gpu-faulted"
    GPU_LOST = "gpu-lost"
    GPU_BACK = "gpu-back"
    MPS_READY = "mps-ready"
    MPS_GONE = "mps-gone"
    MPS_RESTART = "mps-restart"


class Happening(Value, frozen=True):
    """One thing that happened to one subject, in one turn of the node."""

    now: Instant
    turn: int
    what: What
    text: str
    tenant: str = ""
    gpu: int = NO_GPU
    why: str = ""
    """One word out of a closed list where there is one: a refusal's reason, a fault's class, a device's state."""
    level: Level = Level.INFO
    unix_ns: int = 0
    """By the wall clock; 0: nobody knows."""
