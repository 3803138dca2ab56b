"""The activity of a device's tenants between two snapshots of its gate file."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence

import msgspec

from cotenant.gate.rules import GateEntry, GateRules
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM


class GateCounts(msgspec.Struct, frozen=True):
    """The counters on a gate page, or of a tenant, by the names in native/gate/pages.h; all zero on an unused page."""

    generation: int = 0
    quiet_ns: int = 0
    wanted_ns: int = 0
    launches: int = 0
    device_ns: int = 0
    filled_ns: int = 0
    waits: int = 0
    spun_ns: int = 0
    overruns: int = 0
    overrun_ns: int = 0
    overrun: tuple[int, ...] = ()
    waited: tuple[int, ...] = ()
    late: int = 0
    stale: int = 0
    forecasts: int = 0
    early: int = 0
    miss_ns: int = 0
    stuck: int = 0
    waited_ns: int = 0
    at_ns: int = 0
    asked_ns: int = 0
    requests_ended: int = 0
    requests_over: int = 0
    requests_sum_ns: int = 0
    requests_began_ns: int = 0
    requests_reported: int = 0
    request_buckets: tuple[int, ...] = ()
    cut_launches: int = 0
    parts: int = 0
    whole_launches: tuple[int, ...] = ()


class DeviceSnapshot(msgspec.Struct, frozen=True):
    """A gate file at one instant: its tenant table, and the counters by slot."""

    gpu: int
    at_ns: Instant
    rules: GateRules
    counts: Mapping[int, GateCounts]

    def counts_of(self, entry: GateEntry) -> GateCounts:
        """Return the counters of an entry's tenant; all zero if the page is still of an earlier generation."""
        counts = self.counts.get(entry.slot, _NO_COUNTS)
        return counts if counts.generation == entry.generation else _NO_COUNTS


class GateState(enum.Enum):
    """The present state of a tenant at the gate."""

    PAUSED = "paused"
    WAITING = "waiting"
    RUNNING = "running"
    QUIET = "quiet"


class TenantActivity(msgspec.Struct, frozen=True):
    """One tenant between two snapshots. Device time is the expected time of launches when they passed the gate."""

    slot: int
    generation: int
    priority: int
    is_online: bool
    state: GateState
    launches_per_s: float
    device_ppm: int
    """The device time of its launches, relative to the interval; more than the whole if work queued up."""
    filled_ppm: int
    """The device time that it ran in idle gaps of higher-priority tenants, relative to the interval."""
    filled_of_idle_ppm: int | None
    """The part of their idle time that it filled; None without higher-priority tenants or idle time."""
    waits_per_s: float
    waited_p50_ns: int
    waited_p99_ns: int
    overruns_per_s: float
    """How often a higher-priority tenant launched while work of this tenant was still expected to run."""
    overrun_p50_ns: int
    overrun_p99_ns: int
    overrun_ppm: int
    """The time that higher-priority tenants may have lost to that, relative to the interval."""
    early_ppm: int | None
    """The part of its launches with a forecast that came before it; None without forecasts."""
    miss_ns: int | None
    """The mean distance of launches from their forecast."""
    spun_ppm: int
    """The share of a processor that it spent spinning; `GateRules.spin_ppm` limits it."""
    late_per_s: float
    """Submissions that a launch of higher priority had preceded."""
    stale: int
    """Admissions that missed a launch of higher priority; always 0 if the gate is correct."""
    stuck: int
    """Launches that passed because no work had ended for too long, since the tenant began."""


_NO_COUNTS = GateCounts()


def activity_between(before: DeviceSnapshot, after: DeviceSnapshot) -> list[TenantActivity]:
    """Return the activity of the tenants of the second snapshot, highest priority first."""
    elapsed_ns = max(1, after.at_ns - before.at_ns)
    entries = sorted(after.rules.entries, key=lambda entry: (entry.priority, entry.slot))
    deltas = {entry.slot: _counts_between(before.counts_of(entry), after.counts_of(entry)) for entry in entries}
    activities = []
    for entry in entries:
        higher = [deltas[other.slot].device_ns for other in entries if other.priority < entry.priority]
        idle_ns = max(0, elapsed_ns - sum(higher)) if higher else 0
        activities.append(
            _activity(entry, after.counts_of(entry), deltas[entry.slot], (elapsed_ns, idle_ns, after.at_ns))
        )
    return activities


def quantile_bound(buckets: Sequence[int], part: float) -> int:
    """Return an upper bound of a quantile in nanoseconds; 0 for empty buckets.

    Bucket n counts durations from 2^n to 2^(n+1) ns, so the result is a power of two; the last bucket has no upper end.
    """
    rank = max(1, math.ceil(part * sum(buckets)))
    cumulative = 0
    for power, count in enumerate(buckets):
        cumulative += count
        if count and cumulative >= rank:
            return 1 << (power + 1)
    return 0


def _activity(entry: GateEntry, now: GateCounts, delta: GateCounts, times: tuple[int, int, Instant]) -> TenantActivity:
    elapsed_ns, idle_ns, at_ns = times

    def per_s(count: int) -> float:
        return count * SECOND_NS / elapsed_ns

    def share(part_ns: int) -> int:
        return part_ns * WHOLE_PPM // elapsed_ns

    return TenantActivity(
        slot=entry.slot,
        generation=entry.generation,
        priority=entry.priority,
        is_online=entry.online,
        state=_state(entry, now, delta, at_ns),
        launches_per_s=per_s(delta.launches),
        device_ppm=share(delta.device_ns),
        filled_ppm=share(delta.filled_ns),
        filled_of_idle_ppm=delta.filled_ns * WHOLE_PPM // idle_ns if idle_ns else None,
        waits_per_s=per_s(delta.waits),
        waited_p50_ns=quantile_bound(delta.waited, 0.5),
        waited_p99_ns=quantile_bound(delta.waited, 0.99),
        overruns_per_s=per_s(delta.overruns),
        overrun_p50_ns=quantile_bound(delta.overrun, 0.5),
        overrun_p99_ns=quantile_bound(delta.overrun, 0.99),
        overrun_ppm=share(delta.overrun_ns),
        early_ppm=delta.early * WHOLE_PPM // delta.forecasts if delta.forecasts else None,
        miss_ns=delta.miss_ns // delta.forecasts if delta.forecasts else None,
        spun_ppm=share(delta.spun_ns),
        late_per_s=per_s(delta.late),
        stale=now.stale,
        stuck=now.stuck,
    )


def _state(entry: GateEntry, now: GateCounts, delta: GateCounts, at_ns: Instant) -> GateState:
    if entry.paused:
        return GateState.PAUSED
    if now.wanted_ns:
        return GateState.WAITING
    return GateState.RUNNING if delta.launches or at_ns < now.quiet_ns else GateState.QUIET


def _counts_between(before: GateCounts, after: GateCounts) -> GateCounts:
    """Return the difference of the counters. A snapshot may catch an update half done, so no difference is negative."""

    def increase(old: Sequence[int], new: Sequence[int]) -> tuple[int, ...]:
        return tuple(max(0, count - (old[index] if index < len(old) else 0)) for index, count in enumerate(new))

    names = ("launches", "device_ns", "filled_ns", "waits", "spun_ns", "overruns", "overrun_ns", "late", "forecasts")
    differences = {name: max(0, getattr(after, name) - getattr(before, name)) for name in (*names, "early", "miss_ns")}
    return GateCounts(
        **differences, overrun=increase(before.overrun, after.overrun), waited=increase(before.waited, after.waited)
    )
