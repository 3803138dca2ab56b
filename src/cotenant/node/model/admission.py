"""Results of admission: refusals with their reasons, and the reservations on each device."""

from __future__ import annotations

import enum

from cotenant.node.model.gpu import Gpu, GpuCapacity
from cotenant.units.instant import Duration
from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value


class Reason(enum.Enum):
    """Why a request was refused."""

    NO_SLOT = "no-slot"
    NAME_TAKEN = "name-taken"
    NO_MEMORY = "no-memory"
    NO_SHARE = "no-share"
    GPU_FULL = "gpu-full"
    NO_GATE = "no-gate"
    UNKNOWN_GPU = "unknown-gpu"
    UNKNOWN_SLOT = "unknown-slot"
    UNKNOWN_TENANT = "unknown-tenant"
    NOT_YOURS = "not-yours"
    STALE = "stale"
    ALREADY_HERE = "already-here"
    UNHEALTHY = "unhealthy"
    NO_CAPACITY_YET = "no-capacity-yet"
    EVICTED = "evicted"
    NO_OBJECTIVE = "no-objective"
    QUEUE_FULL = "queue-full"
    NOT_WRITABLE = "not-writable"
    TOO_MANY = "too-many-requests"
    NOT_ALLOWED = "not-allowed"
    """The peer may never do this, unless its limits or its role change."""
    LIMIT_REACHED = "limit-reached"
    """The tenants of the user reserve all that its limits allow."""
    BAD_FIELD = "bad-field"


class Reject(Value, frozen=True):
    """A refusal: the reason for programs, a sentence for people."""

    reason: Reason
    detail: str
    retry_after_ns: Duration = 0
    """After this long a new attempt may succeed; 0: not without another change."""


class Reservation(Value, frozen=True):
    """What one tenant has reserved of one device."""

    tenant: str
    gpu: int
    memory_bytes: int
    share_ppm: int


class Plan(Value, frozen=True):
    """All reservations of a node at one instant."""

    gpus: tuple[Gpu, ...]
    entries: tuple[Reservation, ...] = ()

    def capacity(self, index: int) -> GpuCapacity:
        """Return what the reservations leave of one device; negative where they exceed it."""
        entries = [entry for entry in self.entries if entry.gpu == index]
        return GpuCapacity(
            index,
            self.gpus[index].memory_bytes - sum(entry.memory_bytes for entry in entries),
            WHOLE_PPM - sum(entry.share_ppm for entry in entries),
            len(entries),
        )
