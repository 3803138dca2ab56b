"""What of one act of the demo is told and drawn?"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Span: TypeAlias = tuple[int, int]
"""From when to when, in nanoseconds of the monotonic clock."""


class Picture(msgspec.Struct, frozen=True):
    """Some milliseconds of a device, by its own record of what ran."""

    begin_ns: int
    end_ns: int
    requests: list[Span]
    """When each was due and when it was complete."""
    online: list[Span]
    """When kernels of the service ran, without the time they were switched out."""
    offline: list[Span]


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
