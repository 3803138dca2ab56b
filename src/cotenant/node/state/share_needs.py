"""The share of its device that each online tenant needs, from its measured windows.

A tenant serves requests while it is active; the delay caused by lower-priority tenants is not its own work. So its
active time without that delay, divided by the requests that ended, is the service time of a request when alone,
whatever the length of the queue.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from cotenant.node.model.control import ControlLimits, DeviceWindow, TenantWindow
from cotenant.predict.load import Load
from cotenant.predict.share_need import AloneLatency, Objective, alone_of, need_ppm, tolerable_ppm
from cotenant.predict.usage import TaskUse
from cotenant.units.estimate import Estimate
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM

_LEAST_REQUESTS: Final = 20
"""Minimum number of requests before the need of a tenant without a profile is estimated."""
_MEANS: Final = 3
_WINDOWS: Final = 6
"""Number of windows in the second shortest moving average of the load."""
_SURE: Final = 1.645
_FORGET: Final = 0.03
_MOST_DISPERSION: Final = 16.0
_KNOWN_LIMIT: Final = 512
_NEARLY_ALL_PPM: Final = 900_000
_SHORT_WINDOWS: Final = 3
"""Number of windows in a peak; a shorter burst is attributed to chance."""
_PEAK_HALF_NS: Final = 20 * SECOND_NS
"""Half-life of the excess of a peak over the mean."""
_KEPT_REQUESTS: Final = 2000
"""Beyond this number the sums are halved, because programs change."""


class _TenantSums:
    """What a tenant's requests took, in sum."""

    __slots__ = (
        *("about_peak", "active_ns", "at_peak_ppm", "generation", "known", "lost_ns", "mean", "tolerable_ppm"),
        *("peak", "recent", "requests", "variance", "windows"),
    )

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.requests = self.active_ns = self.lost_ns = 0
        self.windows, self.mean, self.variance = 0, 0.0, 0.0
        self.recent: deque[int] = deque(maxlen=_SHORT_WINDOWS)
        self.peak = 0.0
        self.about_peak: tuple[int, ...] = ()
        self.at_peak_ppm: int | None = None
        self.tolerable_ppm: int | None = None
        self.known: dict[tuple[int, ...], Estimate] = {}

    def count(self, requests: int, span_ns: int) -> None:
        """How many came in one more window."""
        self.recent.append(requests)
        many = sum(self.recent)
        surely = (many - math.sqrt(many)) / _SHORT_WINDOWS  # a short-term count includes random variation
        faded = (self.peak - self.mean) * 0.5 ** (span_ns / _PEAK_HALF_NS)
        self.peak = max(surely, self.mean + max(faded, 0.0))
        self.windows += 1
        weight = max(1 / self.windows, _FORGET)
        off = requests - self.mean
        self.mean += weight * off
        self.variance = (1 - weight) * (self.variance + weight * off * off)

    @property
    def dispersion(self) -> float:
        """Variance over mean of how many come in a window."""
        return min(max(self.variance / self.mean, 1.0), _MOST_DISPERSION) if self.mean > 0 else 1.0


def _coarse(value: float) -> int:
    """Return a logarithmic bucket of about 3%, the accuracy of the estimate."""
    return round(30 * math.log(max(value, 1e-9)))


def _arrivals(load: Load, dispersion: float) -> Estimate | None:
    """Return the current mean number of requests per window, quick to rise and slow to fall; None: no data yet.

    This is the mean, not the next window: the queueing model accounts for random arrivals already.
    """
    if len(load.means) < _MEANS:
        return None
    mean = max(load.means[1:])
    spread = _SURE * math.sqrt(dispersion * max(mean, 1.0) / _WINDOWS)
    return Estimate(max(mean - spread, 0.0), mean, mean + spread)


class ShareNeeds:
    """Estimates for the tenants of one device."""

    def __init__(self, limits: ControlLimits) -> None:
        """Begin without data."""
        self._wants = (limits.quantile_ppm / WHOLE_PPM, limits.headroom_ppm / WHOLE_PPM)
        self._least = limits.min_online_ppm / WHOLE_PPM
        self._max_online_ppm = limits.max_online_ppm
        self._seen: dict[int, _TenantSums] = {}

    def of(
        self,
        tenant: TenantWindow,
        window: DeviceWindow,
        load: Load,
        use: TaskUse | None = None,
        online_ppm: int = WHOLE_PPM,
    ) -> Estimate | None:
        """Handle one window of a tenant; return its need in the next one, in ppm; None: too little data.

        `online_ppm` was the online share in this window. The service time is learned only at a large share: at a small
        one the
        gate's accounting misses the cost of concurrent execution, and a service would seem to need what slowed it down.
        """
        seen = self._seen.get(tenant.slot)
        if seen is None or seen.generation != tenant.generation:
            seen = self._seen[tenant.slot] = _TenantSums(tenant.generation)
        seen.count(tenant.requests, window.end_ns - window.begin_ns)
        if online_ppm >= _NEARLY_ALL_PPM or seen.requests < _LEAST_REQUESTS:
            seen.requests += tenant.requests
            seen.active_ns += tenant.active_ns
            seen.lost_ns += min(sum(one.lost_ns for one in window.tenants if not one.online), tenant.active_ns)
        if seen.requests > _KEPT_REQUESTS:
            seen.requests, seen.active_ns, seen.lost_ns = seen.requests // 2, seen.active_ns // 2, seen.lost_ns // 2
        is_known = use is not None and use.round_ns > 0
        expected = _arrivals(load, seen.dispersion)
        span_ns = window.end_ns - window.begin_ns
        if expected is None or span_ns <= 0 or seen.requests < (1 if is_known else _LEAST_REQUESTS):
            return None
        measured = (seen.requests, seen.active_ns, seen.lost_ns) if seen.requests >= _LEAST_REQUESTS else (0, 0, 0)
        alone = alone_of(use, *measured)
        if alone is None:
            return None
        busy = max(seen.peak, seen.mean) * alone.mean_ns / span_ns
        seen.tolerable_ppm = tolerable_ppm(alone.mean_ns, tenant.slo_ns, busy, self._max_online_ppm)
        objective = Objective(*self._wants, seen.dispersion, self._least)
        per_second = expected.times(SECOND_NS / span_ns)
        about = (tenant.slo_ns, *map(_coarse, (alone.mean_ns, per_second.point, per_second.high, objective.dispersion)))
        if about not in seen.known:  # the estimate costs a thousand lookups, and loads recur
            if len(seen.known) >= _KNOWN_LIMIT:
                seen.known.clear()
            seen.known[about] = need_ppm(alone, tenant.slo_ns, per_second, objective).share
        need = seen.known[about]
        self._at_peak(seen, alone, tenant.slo_ns, seen.peak * SECOND_NS / span_ns)
        return need

    def at_peak_ppm(self, slot: int) -> int | None:
        """Return the need of a tenant at its recent load peaks; None: too little data."""
        return self._seen[slot].at_peak_ppm if slot in self._seen else None

    def tolerable_ppm(self, slot: int) -> int | None:
        """Return the share at which a tenant loses only a small part of its objective; None: too little data."""
        return self._seen[slot].tolerable_ppm if slot in self._seen else None

    def _at_peak(self, seen: _TenantSums, alone: AloneLatency, slo_ns: int, per_second: float) -> None:
        """Estimate the need at a peak, in which arrivals are taken as random: the peak contains the burst."""
        about = (slo_ns, *map(_coarse, (alone.mean_ns, per_second)))
        if seen.about_peak != about:
            seen.about_peak = about
            exactly = Estimate(per_second, per_second, per_second)
            seen.at_peak_ppm = round(
                need_ppm(alone, slo_ns, exactly, Objective(*self._wants, 1.0, self._least)).share.point
            )
