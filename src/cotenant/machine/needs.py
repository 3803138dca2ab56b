"""How much of its device does each online tenant need, by what its windows show? Remembers what a request takes.

While it is active a tenant serves; what those below held it up is not its own. So what it was active for, without
that, over the requests that ended, is what a request takes alone, however full the queue was.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from cotenant.domain.control import ControlLimits, DeviceWindow, TenantWindow
from cotenant.domain.estimate import Estimate
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.use import TaskUse
from cotenant.policy.predict.load import Load
from cotenant.policy.predict.need import Alone, Wants, alone_of, mild_ppm, need_ppm

_LEAST_REQUESTS: Final = 20
"""Before so many were seen, a tenant without a profile is a stranger."""
_MEANS: Final = 3
_WINDOWS: Final = 6
"""As many windows are in the second quickest mean."""
_SURE: Final = 1.645
_FORGET: Final = 0.03
_MOST_DISPERSION: Final = 16.0
_KNOWN_LIMIT: Final = 512
_NEARLY_ALL_PPM: Final = 900_000
_SHORT_WINDOWS: Final = 3
"""As many windows are in a peak: a burst that is over sooner is chance."""
_PEAK_HALF_NS: Final = 20 * SECOND_NS
"""After this long, half of what a peak was above the mean is forgotten."""
_KEPT_REQUESTS: Final = 2000
"""After so many the older half counts for half: programs change."""


class _Seen:
    """What a tenant's requests took, in sum."""

    __slots__ = (
        *("about_peak", "active_ns", "at_peak_ppm", "generation", "known", "lost_ns", "mean", "mild_ppm"),
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
        self.mild_ppm: int | None = None
        self.known: dict[tuple[int, ...], Estimate] = {}

    def count(self, requests: int, span_ns: int) -> None:
        """How many came in one more window."""
        self.recent.append(requests)
        many = sum(self.recent)
        surely = (many - math.sqrt(many)) / _SHORT_WINDOWS  # so many in a short time may be chance
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
    """The same for values within about 3 %: the answer is no better than that."""
    return round(30 * math.log(max(value, 1e-9)))


def _arrivals(load: Load, dispersion: float) -> Estimate | None:
    """Requests in a window as they come on average now: up at once, down slowly; None: nothing was seen yet.

    Not what the next window may bring: that requests come by chance is what a queue is about, and counts once.
    """
    if len(load.means) < _MEANS:
        return None
    mean = max(load.means[1:])
    spread = _SURE * math.sqrt(dispersion * max(mean, 1.0) / _WINDOWS)
    return Estimate(max(mean - spread, 0.0), mean, mean + spread)


class Needs:
    """Of the tenants of one device."""

    def __init__(self, limits: ControlLimits) -> None:
        """Nobody was seen yet."""
        self._wants = (limits.quantile_ppm / WHOLE_PPM, limits.headroom_ppm / WHOLE_PPM)
        self._least = limits.least_ppm / WHOLE_PPM
        self._most_ppm = limits.most_ppm
        self._seen: dict[int, _Seen] = {}

    def of(
        self,
        tenant: TenantWindow,
        window: DeviceWindow,
        load: Load,
        use: TaskUse | None = None,
        online_ppm: int = WHOLE_PPM,
    ) -> Estimate | None:
        """One more window of a tenant: what it needs in the next, in millionths; None: too little is known.

        `online_ppm` is what online work kept in this one. What a request takes alone is learned where it nearly is: at
        a small share the gate's books miss what running side by side costs, and a service would seem to need what it
        was slowed by.
        """
        seen = self._seen.get(tenant.slot)
        if seen is None or seen.generation != tenant.generation:
            seen = self._seen[tenant.slot] = _Seen(tenant.generation)
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
        seen.mild_ppm = mild_ppm(alone.mean_ns, tenant.slo_ns, busy, self._most_ppm)
        wants = Wants(*self._wants, seen.dispersion, self._least)
        per_second = expected.times(SECOND_NS / span_ns)
        about = (tenant.slo_ns, *map(_coarse, (alone.mean_ns, per_second.point, per_second.high, wants.dispersion)))
        if about not in seen.known:  # it takes a thousand times as long to answer as to ask, and loads come again
            if len(seen.known) >= _KNOWN_LIMIT:
                seen.known.clear()
            seen.known[about] = need_ppm(alone, tenant.slo_ns, per_second, wants).share
        need = seen.known[about]
        self._at_peak(seen, alone, tenant.slo_ns, seen.peak * SECOND_NS / span_ns)
        return need

    def at_peak_ppm(self, slot: int) -> int | None:
        """What a tenant would need as at the peaks of late; None: too little is known."""
        return self._seen[slot].at_peak_ppm if slot in self._seen else None

    def mild_ppm(self, slot: int) -> int | None:
        """With what a tenant loses hardly a part of its objective; None: too little is known."""
        return self._seen[slot].mild_ppm if slot in self._seen else None

    def _at_peak(self, seen: _Seen, alone: Alone, slo_ns: int, per_second: float) -> None:
        """Within a peak requests come by chance alone: that they come in bursts is in the peak itself."""
        about = (slo_ns, *map(_coarse, (alone.mean_ns, per_second)))
        if seen.about_peak != about:
            seen.about_peak = about
            exactly = Estimate(per_second, per_second, per_second)
            seen.at_peak_ppm = round(
                need_ppm(alone, slo_ns, exactly, Wants(*self._wants, 1.0, self._least)).share.point
            )
