"""Events of the node's log: one sentence for people, a kind and a reason for programs."""

from __future__ import annotations

import enum
from typing import Final

from cotenant.units.instant import Instant
from cotenant.units.value import Value

NO_GPU: Final = -1


class LogLevel(enum.Enum):
    """Severity of a log event: no action is needed, attention may be needed, or something was lost."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogEventKind(enum.Enum):
    """Kinds of log events; a closed list, so that they can be counted."""

    STARTED = "started"
    STOPPED = "stopped"
    GAP = "gap"
    SETTINGS = "settings"
    JOURNAL_FAILED = "journal-failed"
    JOURNAL_RESTORED = "journal-restored"
    FILES_LOST = "files-lost"
    FILES_RESTORED = "files-restored"
    REQUESTS_DROPPED = "requests-dropped"
    UNDESCRIBED = "undescribed"
    JOINED = "joined"
    PLACED = "placed"
    JOIN_WAITING = "join-waiting"
    REFUSED = "refused"
    COMMAND_REFUSED = "command-refused"
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
    MEMORY_REQUESTED = "memory-requested"
    MEMORY_BYPASSED = "memory-bypassed"
    MEMORY_SEEN = "memory-seen"
    FOREIGN_MEMORY = "foreign-memory"
    PROCESSES_UNMATCHED = "processes-unmatched"
    PAGE_REWRITTEN = "page-rewritten"
    FAULTED = "faulted"
    HUNG = "hung"
    GPU_FOUND = "gpu-found"
    GPU_STATE = "gpu-state"
    GPU_FAULTED = "gpu-faulted"
    GPU_LOST = "gpu-lost"
    GPU_RECOVERED = "gpu-recovered"
    GPU_CALIBRATED = "gpu-calibrated"
    MPS_READY = "mps-ready"
    MPS_EXITED = "mps-exited"
    MPS_RESTART = "mps-restart"


class LogEvent(Value, frozen=True):
    """One entry of the node's log about one subject."""

    now: Instant
    turn: int
    what: LogEventKind
    text: str
    tenant: str = ""
    gpu: int = NO_GPU
    why: str = ""
    """A word from a closed list where one applies: the reason of a refusal, the class of a fault, a GPU's health."""
    level: LogLevel = LogLevel.INFO
    unix_ns: int = 0
    """Wall-clock time; 0: unknown."""
