"""Who sits where, and does it fit? A refusal is a value with its reason."""

from __future__ import annotations

import enum

from cotenant.domain.gpu import WHOLE_PPM, Gpu, GpuRoom
from cotenant.domain.instant import Duration
from cotenant.domain.value import Value


class Reason(enum.Enum):
    """Why a request was refused."""

    NO_SLOT = "no-slot"
    NAME_TAKEN = "name-taken"
    NO_MEMORY = "no-memory"
    NO_SHARE = "no-share"
    NO_SEAT = "no-seat"
    NO_GATE = "no-gate"
    UNKNOWN_GPU = "unknown-gpu"
    UNKNOWN_SLOT = "unknown-slot"
    UNKNOWN_TENANT = "unknown-tenant"
    NOT_YOURS = "not-yours"
    STALE = "stale"
    ALREADY_HERE = "already-here"
    UNHEALTHY = "unhealthy"
    NO_ROOM_YET = "no-room-yet"
    EVICTED = "evicted"
    NO_OBJECTIVE = "no-objective"
    UNKNOWN_JOB = "unknown-job"
    UNKNOWN_NODE = "unknown-node"
    QUEUE_FULL = "queue-full"
    OVER = "over"


class Reject(Value, frozen=True):
    """A decided refusal: the reason for programs, the sentence for people."""

    reason: Reason
    detail: str
    retry_after_ns: Duration = 0
    """After how long it is worth another try; zero: not by itself."""


class Seat(Value, frozen=True):
    """What one tenant holds of one device."""

    tenant: str
    gpu: int
    memory_bytes: int
    share_ppm: int


class Plan(Value, frozen=True):
    """All seats of a node at one instant."""

    gpus: tuple[Gpu, ...]
    seats: tuple[Seat, ...] = ()

    def room(self, index: int) -> GpuRoom:
        """What the seats leave of one device; negative where they overbook it."""
        seats = [seat for seat in self.seats if seat.gpu == index]
        return GpuRoom(
            index,
            self.gpus[index].memory_bytes - sum(seat.memory_bytes for seat in seats),
            WHOLE_PPM - sum(seat.share_ppm for seat in seats),
            len(seats),
        )
