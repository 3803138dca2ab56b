"""Measurement windows: differences of the running sums on the tenants' pages between two reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from cotenant.gate.request_buckets import Sparse, count_above
from cotenant.node.model.control import DeviceWindow, TenantWindow
from cotenant.units.instant import SECOND_NS, Instant

Page: TypeAlias = Mapping[str, int | list[int]]
"""A tenant's gate page, by field name."""
STRAY_NS: Final = 60 * SECOND_NS
"""A request that began longer ago than this belongs to a process that died, or is not an instant."""
_ASKS_WITHIN_NS: Final = SECOND_NS
"""A waiting process asks every few milliseconds; one that has not asked for this long was stopped or has died."""
_MAX_INCREASE: Final = 1 << 56
"""Upper bound of the increase between two reads (two years in ns); a larger one is corrupt data."""
_SUMS: Final = (
    *("requests_ended", "requests_over", "requests_sum_ns"),
    *("active_ns", "device_ns", "waited_ns", "overrun_ns"),
    *("launches", "cut_launches", "parts"),
)


_DELAYS: Final = ("delayed_ns", "undelayed_ns")


class Occupant(NamedTuple):
    """A tenant of a device, as far as windows need it."""

    slot: int
    generation: int
    online: bool
    slo_ns: int = 0
    priority: int = 0
    limit_ppm: int = 0


class _Sums(NamedTuple):
    page: Page
    generation: int
    slo_ns: int
    counts: tuple[int, ...]
    delays: tuple[int, ...]
    buckets: list[int]


class Windows:
    """Reads of one device's pages. The first read of a tenant only begins its window."""

    __slots__ = ("_before", "_begin_ns", "_gpu")

    def __init__(self, gpu: int, now: Instant) -> None:
        """Begin the first window now."""
        self._gpu = gpu
        self._begin_ns = now
        self._before: dict[int, _Sums] = {}

    def window(self, now: Instant, occupants: Iterable[Occupant], pages: Mapping[int, Page]) -> DeviceWindow:
        """Return the window since the last read; an unreadable page counts as unchanged.

        A page that is the same object as at the last read has not changed.
        """
        tenants, after = [], {}
        for occupant in occupants:
            page = pages.get(occupant.slot)
            if page is None or page["generation"] != occupant.generation:
                tenants.append(_idle_window(occupant))
                continue
            before = self._before.get(occupant.slot)
            is_same = before is not None and before.page is page and before.slo_ns == occupant.slo_ns
            sums = before if before is not None and is_same else _sums_of(page, occupant)
            after[occupant.slot] = sums
            tenant = _tenant_window(occupant, before, sums, _oldest_ns(page, now))
            if _is_waiting(page, now):  # a wait is counted when it ends
                tenant = msgspec.structs.replace(tenant, waited_ns=max(tenant.waited_ns, now - self._begin_ns))
            tenants.append(tenant)
        self._before = after
        window = DeviceWindow(self._gpu, self._begin_ns, now, tuple(tenants))
        self._begin_ns = now
        return window


def _sums_of(page: Page, occupant: Occupant) -> _Sums:
    counts = tuple(value if isinstance(value := page[name], int) else 0 for name in _SUMS)
    delays = tuple(value if isinstance(value := page[name], int) else 0 for name in _DELAYS)
    buckets = page["request_buckets"]
    return _Sums(
        page, occupant.generation, occupant.slo_ns, counts, delays, buckets if isinstance(buckets, list) else []
    )


def _tenant_window(occupant: Occupant, before: _Sums | None, after: _Sums, oldest_ns: int) -> TenantWindow:
    """Return one tenant's window; a new tenant, or sums that shrank or leapt, begin an empty one."""
    if before is after:  # the page has not changed
        return _idle_window(occupant, oldest_ns)
    increase = [now - was for was, now in zip(before.counts, after.counts, strict=True)] if before else []
    if before is None or before.generation != after.generation or min(increase) < 0 or max(increase) > _MAX_INCREASE:
        return _idle_window(occupant, oldest_ns)
    ended, over, sum_ns, active_ns, device_ns, waited_ns, lost_ns, launches, cut_launches, parts = increase
    delayed_ns, undelayed_ns = _delay_increase(before.delays, after.delays)
    latencies = _bucket_increase(before.buckets, after.buckets) if ended else ()
    if before.slo_ns != after.slo_ns:  # some were counted against the previous objective
        over = min(round(count_above(latencies, after.slo_ns)), ended)
    return msgspec.structs.replace(
        _idle_window(occupant, oldest_ns),
        requests=ended,
        over=over,
        sum_ns=sum_ns,
        latencies=latencies,
        active_ns=active_ns,
        device_ns=device_ns,
        waited_ns=waited_ns,
        lost_ns=lost_ns,
        delayed_ns=delayed_ns,
        undelayed_ns=undelayed_ns,
        launches=max(launches - parts + cut_launches, 0),
    )


def _delay_increase(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, int]:
    """Return delay and undelayed time of a window; the measured delay of few waits may be negative."""
    delayed_ns, undelayed_ns = (now - was for was, now in zip(before, after, strict=True))
    if not 0 < undelayed_ns <= _MAX_INCREASE or delayed_ns > _MAX_INCREASE:
        return 0, 0
    return max(delayed_ns, 0), undelayed_ns


def _idle_window(occupant: Occupant, oldest_ns: int = 0) -> TenantWindow:
    """Return a window without any activity."""
    slot, generation, online, slo_ns, priority, limit_ppm = occupant
    return TenantWindow(slot, generation, online, slo_ns, oldest_ns=oldest_ns, priority=priority, limit_ppm=limit_ppm)


def _bucket_increase(before: list[int], after: list[int]) -> Sparse:
    """Return the increase of each bucket; buckets are 32-bit words that wrap around."""
    pairs = enumerate(zip(before, after, strict=True))
    return tuple((bucket, (now - was) % 2**32) for bucket, (was, now) in pairs if now != was)


def _is_waiting(page: Page, now: Instant) -> bool:
    """Return whether a launch of the tenant waits at the gate."""
    wanted_ns, asked_ns = page["wanted_ns"], page["asked_ns"]
    return isinstance(asked_ns, int) and bool(wanted_ns) and abs(now - asked_ns) <= _ASKS_WITHIN_NS


def _oldest_ns(page: Page, now: Instant) -> int:
    began_ns = page["requests_began_ns"]
    if not isinstance(began_ns, int) or not began_ns or abs(now - began_ns) > STRAY_NS:
        return 0
    return max(now - began_ns, 0)
