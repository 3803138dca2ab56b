"""What did one run show? The online program's own clock, and the device's books before and after."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from cotenant.domain.kernel import Work
from cotenant.domain.load import Load
from cotenant.errors import WorldError

Mode: TypeAlias = Literal[
    "alone", "offline alone", "apart", "through", "unsampled", "slices", "mps", "cotenant slices", "cotenant mps"
]
"""Alone: nobody else, no cotenant. Apart: both at a time, a device for each. Through: nobody else, under cotenant;
unsampled: without its one timed launch in 64. The last four share the device."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Without an online program its times are 0, without an offline one its progress is."""

    mode: Mode
    wall_ns: int
    """By the device's clock, from before the first online launch to after the last completion."""
    requests: int = 0
    latency_sum_ns: int = 0
    """Of all requests, each from when it was due: the online completion time without the pauses it has anyway."""
    latency_p50_ns: int = 0
    latency_p99_ns: int = 0
    online_delayed_ns: int = 0
    """What its kernels waited because of another client, as the device booked it."""
    offline_done_ns: int = 0
    """Kernel time that the offline program completed: what these kernels take alone."""
    busy_ns: int = 0
    sm_ns: int = 0


class Progress:
    """How much kernel time is done once so many kernels of a load are complete, one after the other?"""

    def __init__(self, load: Load) -> None:
        """The sums are made once: a load has thousands of kernels."""
        durations = [launch.device_ns for launch in load.launches if launch.kernel.work is Work.KERNEL]
        self._sums = [0, *itertools.accumulate(durations)]

    def done_ns(self, kernels: int) -> int:
        """Whole rounds, and the beginning of one."""
        each = len(self._sums) - 1
        if not each:
            return 0
        return kernels // each * self._sums[-1] + self._sums[kernels % each]

    def kernels_by(self, done_ns: int) -> int:
        """How many kernels of the first round make up so much time."""
        return min(bisect.bisect_left(self._sums, done_ns), len(self._sums) - 1)


def client_of(books: Mapping[str, Any], pid: int) -> Mapping[str, Any]:
    """One client's part of the books."""
    for client in books["clients"]:
        if client["pid"] == pid:
            found: Mapping[str, Any] = client
            return found
    raise WorldError(f"the device's books know no client {pid}; it left before it was looked at")


def scene_of(
    mode: Mode,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    online: tuple[int, Mapping[str, Any]] | None,
    offline: tuple[int, Progress] | None,
) -> Scene:
    """From books before and after; of the programs their pids, what the online one said, how the offline one counts."""
    said: Mapping[str, Any] = {}
    delayed_ns = done_ns = 0
    if online is not None:
        pid, said = online
        first, last = (client_of(books, pid)["counters"]["delayed_ns"] for books in (before, after))
        delayed_ns = last - first
    if offline is not None:
        pid, progress = offline
        first, last = (client_of(books, pid)["counters"]["kernels"] for books in (before, after))
        done_ns = progress.done_ns(last) - progress.done_ns(first)
    latency: Mapping[str, int] = said.get("latency_ns", {})
    return Scene(
        mode=mode,
        wall_ns=after["now_ns"] - before["now_ns"],
        requests=said.get("requests", 0),
        latency_sum_ns=said.get("latency_sum_ns", 0),
        latency_p50_ns=latency.get("p50", 0),
        latency_p99_ns=latency.get("p99", 0),
        online_delayed_ns=delayed_ns,
        offline_done_ns=done_ns,
        busy_ns=after["counters"]["busy_ns"] - before["counters"]["busy_ns"],
        sm_ns=after["counters"]["sm_ns"] - before["counters"]["sm_ns"],
    )
