"""The share of its device that each online tenant needs, from its measured windows.

A tenant serves requests while it is active; the delay caused by lower-priority tenants is not its own work. So its
active time without that delay, divided by the requests that ended, is the service time of a request when alone,
whatever the length of the queue.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import msgspec

from cotenant.node.model.control import ControlLimits, DeviceWindow, TenantWindow
from cotenant.predict.load import Load
from cotenant.predict.share_need import AloneLatency, Objective, alone_of, need_ppm, tolerable_ppm
from cotenant.predict.usage import TaskUse
from cotenant.units.estimate import Estimate
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM

_MIN_REQUESTS: Final = 20
"""Minimum number of requests before the need of a tenant without a profile is estimated."""
_MIN_MEANS: Final = 3
_MEAN_WINDOWS: Final = 6
"""Number of windows in the second shortest moving average of the load."""
_DEVIATES: Final = 1.645
_MIN_WEIGHT: Final = 0.03
_MAX_DISPERSION: Final = 16.0
_NEEDS_LIMIT: Final = 512
_NEARLY_ALL_PPM: Final = 900_000
_PEAK_WINDOWS: Final = 3
"""Number of windows in a peak; a shorter burst is attributed to chance."""
_PEAK_HALF_NS: Final = 20 * SECOND_NS
"""Half-life of the excess of a peak over the mean."""
_DELAY_KEPT: Final = 0.95
"""Part of the earlier measurements of the delay that remains after a window."""
_MIN_PERMITTED_NS: Final = SECOND_NS // 20
"""Until so much delay was permitted, a tenant is taken to suffer all of it."""
_MIN_EFFECT: Final = 0.05
_MAX_REQUESTS: Final = 2000
"""Beyond this number the sums are halved, because programs change."""


class _TenantSums:
    """The number and the times of a tenant's requests, in sum, and estimates that are derived from them."""

    __slots__ = (
        *("peak_key", "active_ns", "at_peak_ppm", "generation", "needs", "lost_ns", "mean", "tolerable_ppm"),
        *("delayed_ns", "peak", "permitted_ns", "recent", "requests", "variance", "windows"),
    )

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.requests = self.active_ns = self.lost_ns = 0
        self.delayed_ns = self.permitted_ns = 0.0
        self.windows, self.mean, self.variance = 0, 0.0, 0.0
        self.recent: deque[int] = deque(maxlen=_PEAK_WINDOWS)
        self.peak = 0.0
        self.peak_key: tuple[int, ...] = ()
        self.at_peak_ppm: int | None = None
        self.tolerable_ppm: int | None = None
        self.needs: dict[tuple[int, ...], Estimate] = {}

    def count(self, requests: int, span_ns: int) -> None:
        """Add the requests of one more window to the mean, the variance and the recent peak."""
        self.recent.append(requests)
        count = sum(self.recent)
        rate = (count - math.sqrt(count)) / _PEAK_WINDOWS  # a short-term count includes random variation
        excess = (self.peak - self.mean) * 0.5 ** (span_ns / _PEAK_HALF_NS)
        self.peak = max(rate, self.mean + max(excess, 0.0))
        self.windows += 1
        weight = max(1 / self.windows, _MIN_WEIGHT)
        deviation = requests - self.mean
        self.mean += weight * deviation
        self.variance = (1 - weight) * (self.variance + weight * deviation * deviation)

    def add_delay(self, delayed_ns: int, undelayed_ns: int, online_ppm: int) -> None:
        """Add the measured delay at an online share, and what the share permits."""
        self.delayed_ns = _DELAY_KEPT * self.delayed_ns + delayed_ns
        self.permitted_ns = _DELAY_KEPT * self.permitted_ns + undelayed_ns * (WHOLE_PPM - online_ppm) / online_ppm

    @property
    def effect(self) -> float:
        """Part of the permitted delay that the tenant really suffers: work on other SMs delays it by less than that."""
        if self.permitted_ns < _MIN_PERMITTED_NS:
            return 1.0
        return min(max(self.delayed_ns / self.permitted_ns, _MIN_EFFECT), 1.0)

    @property
    def dispersion(self) -> float:
        """Variance over mean of the number of requests per window, limited to a plausible range."""
        return min(max(self.variance / self.mean, 1.0), _MAX_DISPERSION) if self.mean > 0 else 1.0


def _coarse(value: float) -> int:
    """Return a logarithmic bucket of about 3%, the accuracy of the estimate."""
    return round(30 * math.log(max(value, 1e-9)))


def _arrivals(load: Load, dispersion: float) -> Estimate | None:
    """Return the current mean number of requests per window, quick to rise and slow to fall; None: no data yet.

    This is the mean, not the next window: the queueing model accounts for random arrivals already.
    """
    if len(load.means) < _MIN_MEANS:
        return None
    mean = max(load.means[1:])
    spread = _DEVIATES * math.sqrt(dispersion * max(mean, 1.0) / _MEAN_WINDOWS)
    return Estimate(max(mean - spread, 0.0), mean, mean + spread)


class ShareNeeds:
    """Estimates for the tenants of one device."""

    def __init__(self, limits: ControlLimits) -> None:
        """Begin without data."""
        self._objective = (limits.quantile_ppm / WHOLE_PPM, limits.headroom_ppm / WHOLE_PPM)
        self._reserve_ppm = limits.headroom_ppm
        self._min_share = limits.min_online_ppm / WHOLE_PPM
        self._max_online_ppm = limits.max_online_ppm
        self._sums: dict[int, _TenantSums] = {}

    def update(
        self,
        tenant: TenantWindow,
        window: DeviceWindow,
        load: Load,
        use: TaskUse | None = None,
        online_ppm: int = WHOLE_PPM,
    ) -> Estimate | None:
        """Handle one window of a tenant; return its need in the next one, in ppm; None: too little data.

        `online_ppm` was the online share in this window. The service time is learned only at a large share: at a small
        one the gate's accounting misses the cost of concurrent execution, and the delay that other tenants caused would
        be counted as a need of the tenant itself.
        """
        sums = self._sums.get(tenant.slot)
        if sums is None or sums.generation != tenant.generation:
            sums = self._sums[tenant.slot] = _TenantSums(tenant.generation)
        sums.count(tenant.requests, window.end_ns - window.begin_ns)
        if online_ppm >= _NEARLY_ALL_PPM or sums.requests < _MIN_REQUESTS:
            sums.requests += tenant.requests
            sums.active_ns += tenant.active_ns
            sums.lost_ns += min(sum(other.lost_ns for other in window.tenants if not other.online), tenant.active_ns)
        if sums.requests > _MAX_REQUESTS:
            sums.requests, sums.active_ns, sums.lost_ns = sums.requests // 2, sums.active_ns // 2, sums.lost_ns // 2
        has_profile = use is not None and use.round_ns > 0
        expected = _arrivals(load, sums.dispersion)
        span_ns = window.end_ns - window.begin_ns
        if expected is None or span_ns <= 0 or sums.requests < (1 if has_profile else _MIN_REQUESTS):
            return None
        measured = (sums.requests, sums.active_ns, sums.lost_ns) if sums.requests >= _MIN_REQUESTS else (0, 0, 0)
        alone = alone_of(use, *measured)
        if alone is None:
            return None
        sums.add_delay(tenant.delayed_ns, tenant.undelayed_ns, online_ppm)
        alone = msgspec.structs.replace(alone, duty=alone.duty * sums.effect)
        busy = max(sums.peak, sums.mean) * alone.mean_ns / span_ns
        sums.tolerable_ppm = tolerable_ppm(alone.mean_ns, tenant.slo_ns, busy, self._max_online_ppm, self._reserve_ppm)
        objective = Objective(*self._objective, sums.dispersion, self._min_share)
        per_second = expected.times(SECOND_NS / span_ns)
        rates = (per_second.point, per_second.high, objective.dispersion)
        key = (tenant.slo_ns, *map(_coarse, (alone.mean_ns, alone.duty, *rates)))
        if key not in sums.needs:  # the estimate costs a thousand lookups, and loads recur
            if len(sums.needs) >= _NEEDS_LIMIT:
                sums.needs.clear()
            sums.needs[key] = need_ppm(alone, tenant.slo_ns, per_second, objective).share
        need = sums.needs[key]
        self._at_peak(sums, alone, tenant.slo_ns, sums.peak * SECOND_NS / span_ns)
        return need

    def at_peak_ppm(self, slot: int) -> int | None:
        """Return the need of a tenant at its recent load peaks; None: too little data."""
        return self._sums[slot].at_peak_ppm if slot in self._sums else None

    def tolerable_ppm(self, slot: int) -> int | None:
        """Return the share at which a tenant loses only a small part of its objective; None: too little data."""
        return self._sums[slot].tolerable_ppm if slot in self._sums else None

    def _at_peak(self, sums: _TenantSums, alone: AloneLatency, slo_ns: int, per_second: float) -> None:
        """Estimate the need at a peak with a dispersion of 1 (random arrivals): the peak itself contains the burst."""
        key = (slo_ns, *map(_coarse, (alone.mean_ns, alone.duty, per_second)))
        if sums.peak_key != key:
            sums.peak_key = key
            rate = Estimate(per_second, per_second, per_second)
            sums.at_peak_ppm = round(
                need_ppm(alone, slo_ns, rate, Objective(*self._objective, 1.0, self._min_share)).share.point
            )
