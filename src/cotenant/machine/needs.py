"""How much of its device does each online tenant need, by what its windows show? Remembers what a request takes.

While it is active a tenant serves; what those below held it up is not its own. So what it was active for, without
that, over the requests that ended, is what a request takes alone, however full the queue was.
"""

from __future__ import annotations

import math
from typing import Final

from cotenant.domain.control import ControlLimits, DeviceWindow, TenantWindow
from cotenant.domain.estimate import Estimate
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.use import TaskUse
from cotenant.policy.predict.load import Load
from cotenant.policy.predict.need import Wants, alone_of, need_ppm

_LEAST_REQUESTS: Final = 20
"""Before so many were seen, a tenant without a profile is a stranger."""
_MEANS: Final = 3
_WINDOWS: Final = 6
"""As many windows are in the second quickest mean."""
_SURE: Final = 1.645
_FORGET: Final = 0.03
_MOST_DISPERSION: Final = 16.0
_KEPT_REQUESTS: Final = 2000
"""After so many the older half counts for half: programs change."""


class _Seen:
    """What a tenant's requests took, in sum."""

    __slots__ = ("about", "active_ns", "generation", "lost_ns", "mean", "need", "requests", "variance", "windows")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.requests = self.active_ns = self.lost_ns = 0
        self.windows, self.mean, self.variance = 0, 0.0, 0.0
        self.about: tuple[int, ...] = ()
        self.need: Estimate | None = None

    def count(self, requests: int) -> None:
        """How many came in one more window."""
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
        self._seen: dict[int, _Seen] = {}

    def of(self, tenant: TenantWindow, window: DeviceWindow, load: Load, use: TaskUse | None = None) -> Estimate | None:
        """One more window of a tenant: what it needs in the next, in millionths; None: too little is known."""
        seen = self._seen.get(tenant.slot)
        if seen is None or seen.generation != tenant.generation:
            seen = self._seen[tenant.slot] = _Seen(tenant.generation)
        seen.count(tenant.requests)
        seen.requests += tenant.requests
        seen.active_ns += tenant.active_ns
        seen.lost_ns += min(sum(one.lost_ns for one in window.tenants if not one.online), tenant.active_ns)
        if seen.requests > _KEPT_REQUESTS:
            seen.requests, seen.active_ns, seen.lost_ns = seen.requests // 2, seen.active_ns // 2, seen.lost_ns // 2
        is_known = use is not None and use.round_ns > 0
        expected = _arrivals(load, seen.dispersion)
        span_ns = window.end_ns - window.begin_ns
        if expected is None or span_ns <= 0 or (seen.requests < _LEAST_REQUESTS and not is_known):
            return None
        measured = (seen.requests, seen.active_ns, seen.lost_ns) if seen.requests >= _LEAST_REQUESTS else (0, 0, 0)
        alone = alone_of(use, *measured)
        if alone is None:
            return None
        wants = Wants(*self._wants, seen.dispersion, self._least)
        per_second = expected.times(SECOND_NS / span_ns)
        about = (tenant.slo_ns, *map(_coarse, (alone.mean_ns, per_second.point, per_second.high, wants.dispersion)))
        if seen.about != about:  # it takes a thousand times as long to answer as to ask
            seen.about = about
            seen.need = need_ppm(alone, tenant.slo_ns, per_second, wants).share
        return seen.need
