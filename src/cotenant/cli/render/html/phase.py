"""Results of one phase of the demo: the service alone or together with the training job."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Span: TypeAlias = tuple[int, int]
"""Start and end in nanoseconds of the monotonic clock."""


class TimelineWindow(msgspec.Struct, frozen=True):
    """A few milliseconds of a device, from its own records."""

    begin_ns: int
    end_ns: int
    requests: list[Span]
    """The instants at which each request was due and complete."""
    online: list[Span]
    """The times in which kernels of the service ran, without the time they were switched out."""
    offline: list[Span]


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies of the service and throughput of the training job in one sharing mode."""

    name: str
    requests: int
    requests_per_s: float
    p50_ns: int
    p99_ns: int
    max_ns: int
    latencies_ns: list[int]
    """Latencies of all requests, sorted."""
    steps_per_s: float
    """Throughput of the co-running training job; 0: there was none."""
    busy: float
    sm_activity: float
    waited_ns: int
    """Time that the service's kernels waited for another program, as the device counted it."""
    timeline: TimelineWindow
