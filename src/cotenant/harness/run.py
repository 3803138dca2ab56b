"""Measurements of one sharing run: the online program's own clock, and the device's counters before and after."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from cotenant.errors import WorldError
from cotenant.workload.kernel import WorkKind
from cotenant.workload.load import Workload

Mode: TypeAlias = Literal[
    "alone",
    "offline alone",
    "apart",
    "through",
    "unsampled",
    "slices",
    "mps",
    "mps priorities",
    "cotenant slices",
    "cotenant mps",
]
"""Alone: no other program, without cotenant. Apart: both at the same time, each on its own device. Through: no other
program, under cotenant; unsampled: the same without timing one launch in 64. The last five share the device; with MPS
priorities the offline program has the lower client priority."""


class SharingRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times are 0 without an online program; progress is 0 without an offline one."""

    mode: Mode
    wall_ns: int
    """By the device's clock, from before the first online launch to after the last completion."""
    requests: int = 0
    latency_sum_ns: int = 0
    """Sum over all requests, each from when it was due."""
    latency_p50_ns: int = 0
    latency_p99_ns: int = 0
    online_delayed_ns: int = 0
    """Delay of its kernels by another client, as the device measured it."""
    offline_done_ns: int = 0
    """Kernel time that the offline program completed, at its duration alone."""
    busy_ns: int = 0
    sm_ns: int = 0


class Progress:
    """Kernel time completed after a number of kernels of a load."""

    def __init__(self, load: Workload) -> None:
        """Compute the sums once: a load has thousands of kernels."""
        durations = [launch.device_ns for launch in load.launches if launch.kernel.work is WorkKind.KERNEL]
        self._sums = [0, *itertools.accumulate(durations)]

    def done_ns(self, kernels: int) -> int:
        """Return the kernel time of this many kernels."""
        each = len(self._sums) - 1
        if not each:
            return 0
        return kernels // each * self._sums[-1] + self._sums[kernels % each]

    def kernels_by(self, done_ns: int) -> int:
        """Return the number of kernels of the first repetition that make up this time."""
        return min(bisect.bisect_left(self._sums, done_ns), len(self._sums) - 1)


def client_of(counters: Mapping[str, Any], pid: int) -> Mapping[str, Any]:
    """Return one client's counters."""
    for client in counters["clients"]:
        if client["pid"] == pid:
            match: Mapping[str, Any] = client
            return match
    raise WorldError(f"the device has no counters of client {pid}; it ended before they were read")


def measure_run(
    mode: Mode,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    online: tuple[int, Mapping[str, Any]] | None,
    offline: tuple[int, Progress] | None,
) -> SharingRun:
    """Return the run from counters before and after, the online program's output and the offline one's progress."""
    output: Mapping[str, Any] = {}
    delayed_ns = done_ns = 0
    if online is not None:
        pid, output = online
        first, last = (client_of(counters, pid)["counters"]["delayed_ns"] for counters in (before, after))
        delayed_ns = last - first
    if offline is not None:
        pid, progress = offline
        first, last = (client_of(counters, pid)["counters"]["kernels"] for counters in (before, after))
        done_ns = progress.done_ns(last) - progress.done_ns(first)
    latency: Mapping[str, int] = output.get("latency_ns", {})
    return SharingRun(
        mode=mode,
        wall_ns=after["now_ns"] - before["now_ns"],
        requests=output.get("requests", 0),
        latency_sum_ns=output.get("latency_sum_ns", 0),
        latency_p50_ns=latency.get("p50", 0),
        latency_p99_ns=latency.get("p99", 0),
        online_delayed_ns=delayed_ns,
        offline_done_ns=done_ns,
        busy_ns=after["counters"]["busy_ns"] - before["counters"]["busy_ns"],
        sm_ns=after["counters"]["sm_ns"] - before["counters"]["sm_ns"],
    )
