"""What of one act of the demo is told and drawn?"""

from __future__ import annotations

import msgspec


class Bin(msgspec.Struct, frozen=True, array_like=True):
    """From one look at the device's books to the next: which part of its SMs each program had."""

    begin_ns: int
    end_ns: int
    online: float
    offline: float


class Picture(msgspec.Struct, frozen=True):
    """Some milliseconds of a device."""

    begin_ns: int
    end_ns: int
    bins: list[Bin]
    requests: list[tuple[int, int]]
    """When each was due and when it was complete."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """The service in one surrounding."""

    name: str
    requests: int
    requests_per_s: float
    p50_ns: int
    p99_ns: int
    max_ns: int
    latencies_ns: list[int]
    """Of every request, in order of size."""
    steps_per_s: float
    """Of the training job beside it; 0: there was none."""
    busy: float
    sm_activity: float
    waited_ns: int
    """Device time its kernels waited because of another program, as the device booked it."""
    picture: Picture
