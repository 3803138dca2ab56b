"""How do the tenants of a device get on with each other? What they counted between two looks, per second."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence

import msgspec

from cotenant.domain.gate import GateRules, GateSeat
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import SECOND_NS, Instant


class GateCounts(msgspec.Struct, frozen=True):
    """What a tenant's page says, by the names in native/gate/pages.h; nothing for a page of nobody."""

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
    foreseen: int = 0
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
    requests_told: int = 0
    request_buckets: tuple[int, ...] = ()


class DeviceLook(msgspec.Struct, frozen=True):
    """What the file of a device says at one instant: its roster, and the pages by slot."""

    gpu: int
    at_ns: Instant
    rules: GateRules
    counts: Mapping[int, GateCounts]

    def counts_of(self, seat: GateSeat) -> GateCounts:
        """What the holder of a seat wrote: a page of another generation is an earlier tenant's, and says nothing."""
        found = self.counts.get(seat.slot, _NOTHING)
        return found if found.generation == seat.generation else _NOTHING


class GateState(enum.Enum):
    """What a tenant does now, as far as the gate can see."""

    PAUSED = "paused"
    WAITING = "waiting"
    RUNNING = "running"
    QUIET = "quiet"


class Pace(msgspec.Struct, frozen=True):
    """One tenant between two looks. Device time is what each launch was expected to take when it passed the gate."""

    slot: int
    generation: int
    priority: int
    is_online: bool
    state: GateState
    launches_per_s: float
    device_ppm: int
    """Of the time between the looks, the device time of what it launched; more than the whole where work piled up."""
    filled_ppm: int
    """Of the time, what it put into gaps of those above."""
    filled_of_idle_ppm: int | None
    """Of what those above left idle, what it filled; None without anybody above, or where they left nothing."""
    waits_per_s: float
    waited_p50_ns: int
    waited_p99_ns: int
    overruns_per_s: float
    """How often one above came back while work of this tenant was still expected to run."""
    overrun_p50_ns: int
    overrun_p99_ns: int
    overrun_ppm: int
    """Of the time, what those above may have lost to that."""
    early_ppm: int | None
    """Of its launches that had a forecast, those that came before it; None without any."""
    miss_ns: int | None
    """How far from their forecast launches came, on the average."""
    spun_ppm: int
    """Of a processor, what it span away while it waited; the rules say what it may."""
    late_per_s: float
    """Submissions before which one above had launched already."""
    stale: int
    """Admissions that overlooked a launch of one above; there must be none, ever."""
    stuck: int
    """Launches that passed because nothing ended for too long, ever."""


_NOTHING = GateCounts()


def pace_of(before: DeviceLook, after: DeviceLook) -> list[Pace]:
    """Everybody who is on the roster at the second look, highest priority first."""
    elapsed_ns = max(1, after.at_ns - before.at_ns)
    seats = sorted(after.rules.seats, key=lambda seat: (seat.priority, seat.slot))
    passed = {seat.slot: _between(before.counts_of(seat), after.counts_of(seat)) for seat in seats}
    paces = []
    for seat in seats:
        above = [passed[other.slot].device_ns for other in seats if other.priority < seat.priority]
        idle_ns = max(0, elapsed_ns - sum(above)) if above else 0
        paces.append(_pace(seat, after.counts_of(seat), passed[seat.slot], (elapsed_ns, idle_ns, after.at_ns)))
    return paces


def quantile_bound(buckets: Sequence[int], part: float) -> int:
    """So many nanoseconds at most in this part of all cases; 0 without any.

    Bucket n holds what took 2^n up to 2^(n+1) nanoseconds, so this is a power of two; the last one holds the rest.
    """
    rank = max(1, math.ceil(part * sum(buckets)))
    seen = 0
    for power, count in enumerate(buckets):
        seen += count
        if count and seen >= rank:
            return 1 << (power + 1)
    return 0


def _pace(seat: GateSeat, now: GateCounts, passed: GateCounts, times: tuple[int, int, Instant]) -> Pace:
    elapsed_ns, idle_ns, at_ns = times

    def per_s(count: int) -> float:
        return count * SECOND_NS / elapsed_ns

    def share(part_ns: int) -> int:
        return part_ns * WHOLE_PPM // elapsed_ns

    return Pace(
        slot=seat.slot,
        generation=seat.generation,
        priority=seat.priority,
        is_online=seat.online,
        state=_state(seat, now, passed, at_ns),
        launches_per_s=per_s(passed.launches),
        device_ppm=share(passed.device_ns),
        filled_ppm=share(passed.filled_ns),
        filled_of_idle_ppm=passed.filled_ns * WHOLE_PPM // idle_ns if idle_ns else None,
        waits_per_s=per_s(passed.waits),
        waited_p50_ns=quantile_bound(passed.waited, 0.5),
        waited_p99_ns=quantile_bound(passed.waited, 0.99),
        overruns_per_s=per_s(passed.overruns),
        overrun_p50_ns=quantile_bound(passed.overrun, 0.5),
        overrun_p99_ns=quantile_bound(passed.overrun, 0.99),
        overrun_ppm=share(passed.overrun_ns),
        early_ppm=passed.early * WHOLE_PPM // passed.foreseen if passed.foreseen else None,
        miss_ns=passed.miss_ns // passed.foreseen if passed.foreseen else None,
        spun_ppm=share(passed.spun_ns),
        late_per_s=per_s(passed.late),
        stale=now.stale,
        stuck=now.stuck,
    )


def _state(seat: GateSeat, now: GateCounts, passed: GateCounts, at_ns: Instant) -> GateState:
    if seat.paused:
        return GateState.PAUSED
    if now.wanted_ns:
        return GateState.WAITING
    return GateState.RUNNING if passed.launches or at_ns < now.quiet_ns else GateState.QUIET


def _between(before: GateCounts, after: GateCounts) -> GateCounts:
    """What was added. A tenant counts up only; what a look caught in the midst of that is never less than none."""

    def added(old: Sequence[int], new: Sequence[int]) -> tuple[int, ...]:
        return tuple(max(0, count - (old[index] if index < len(old) else 0)) for index, count in enumerate(new))

    names = ("launches", "device_ns", "filled_ns", "waits", "spun_ns", "overruns", "overrun_ns", "late", "foreseen")
    plain = {name: max(0, getattr(after, name) - getattr(before, name)) for name in (*names, "early", "miss_ns")}
    return GateCounts(**plain, overrun=added(before.overrun, after.overrun), waited=added(before.waited, after.waited))
