"""How does one online tenant fare against its objective? What is remembered of it, window by window."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from cotenant.domain.control import ControlLimits, TenantWindow
from cotenant.domain.estimate import Estimate
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import Duration, Instant
from cotenant.domain.value import Value
from cotenant.policy.adjust.tail import Latencies, Tail

_LATE: Final = 1.2
_WAITS: Final = 0.5
"""Of the objective: who waits for less may do so."""
_SURE: Final = 1.645
"""Standard deviations from the middle of an estimate to its ends."""
_FULL: Final = 0.9
"""Active for such a part of a window: always."""
_BUSIEST: Final = 0.9
"""A client that sends its next request as soon as it has the answer keeps its tenant active all the time."""


class Sense(Value, frozen=True):
    """How a tenant is looked at. Our choices; docs/control.md says why these."""

    keep: int = 400
    """So many latest requests are never forgotten by time alone."""
    half_life_ns: Duration = 5_000_000_000
    """Of those beyond, after how long half count."""
    recent_ns: Duration = 300_000_000
    """The same of what is looked at after harm."""
    quiet_ns: Duration = 5_000_000_000
    """A tenant this long without a request has no say."""
    sure: float = 1.64
    """So many standard deviations above the estimate of the tail count as what it hardly exceeds."""
    alarm: float = 3.5
    """Evidence of harm, as the logarithm of how much likelier it makes a tenant that misses its objective."""
    credit: float = 3.0
    """What a good record weighs against such evidence at most."""
    fine: float = 0.5
    harmed: float = 3.0
    """Of the requests that may miss the objective, so many times as many do when all is well, and when it is not."""
    together: float = 2.0
    """Requests miss the objective together, waiting for one another: so many at a time, until it is known better."""
    together_most: float = 8.0
    grave: float = 0.5
    """Such a part of the recent requests beyond the objective is grave."""
    grave_requests: int = 8
    differs: float = 1.3
    """So many times the load, or the other way round, is another load."""
    load_ns: Duration = 3_000_000_000
    """After this long, half of what load is taken for is what is foreseen since."""
    surprise: float = 4.5
    """So many standard deviations more requests than were foreseen are no chance."""
    moment_ns: Duration = 200_000_000
    """What it asks of the device is smoothed over such a time."""
    peak_ns: Duration = 20_000_000_000
    """After this long, half of what a peak asked for beyond the mean is forgotten."""
    stuck: int = 2
    """A request that lasts so many times the objective is harm by itself."""
    lost: int = 50
    """One that lasts so many times the objective is not waited for: its end was not told."""


class Fare(NamedTuple):
    """How it stands at the end of a window."""

    tail: Tail
    ratio: float
    """What the tail hardly exceeds, of what is aimed at."""
    recent_ratio: float
    """The latest tail as it was counted, of what is aimed at."""


class Track:
    """One tenant's memory."""

    def __init__(self, tenant: TenantWindow, limits: ControlLimits, sense: Sense, now: Instant) -> None:
        """Nothing is known of it."""
        self.slot, self.generation, self.priority = tenant.slot, tenant.generation, tenant.priority
        self._aimed = (WHOLE_PPM - limits.headroom_ppm) / WHOLE_PPM
        self.slo_ns, self.aim_ns = tenant.slo_ns, tenant.slo_ns * self._aimed
        self.fraction = limits.quantile_ppm / WHOLE_PPM
        self.age_ns: Duration = 0
        self.ended = 0
        self.active = 0.0
        self.demand = 0.0
        self._rate = 0.0
        self.peak = 0.0
        self._short_demand = 0.0
        self._full = 0
        self.evidence = 0.0
        self.load = 0.0
        self.foreseen: Estimate | None = None
        self.is_eased = False
        self.oldest_ns = 0
        self.last_ns = now
        self._sense = sense
        self._seen = Latencies(sense.keep)
        self._recent = Latencies(0)
        self._over = 0.0
        self._latest = (0, 0)
        self._together = sense.together
        self._is_new = True
        miss = 1 - self.fraction
        self._up = math.log(sense.harmed / sense.fine)
        self._down = -math.log((1 - min(sense.harmed * miss, 0.99)) / (1 - sense.fine * miss))

    def take(self, tenant: TenantWindow, span_ns: Duration, now: Instant, *, counts: bool) -> None:
        """One more window; what does not count began before the last change."""
        sense = self._sense
        weight = 1.0 if self._is_new else 1 - 0.5 ** (span_ns / 1e9)
        self._is_new = False
        self.priority = tenant.priority
        self.age_ns += span_ns
        self.ended += tenant.requests
        self.active += weight * (min(tenant.active_ns / span_ns, 1.0) - self.active)
        self.demand += weight * (min(tenant.device_ns / span_ns, 1.0) - self.demand)
        self._rate += weight * (tenant.requests - self._rate)
        self._follow_peak(min(tenant.device_ns / span_ns, 1.0), span_ns)
        self._full = self._full + 1 if tenant.active_ns >= _FULL * span_ns else 0
        self.oldest_ns = tenant.oldest_ns
        self._latest = (self._latest[1], tenant.requests)
        fade = 0.5 ** (span_ns / sense.recent_ns)
        self._recent.fade(fade)
        self._over *= fade
        self._recent.add(tenant.latencies)
        self._over += tenant.over
        if tenant.requests or tenant.oldest_ns:
            self.last_ns = now
        if counts:
            self._seen.fade(0.5 ** (span_ns / sense.half_life_ns))
            self._seen.add(tenant.latencies)
            well = max(tenant.requests - tenant.over, 0)
            more = (tenant.over * self._up - well * self._down) / self._together
            self.evidence = max(self.evidence + more, -sense.credit)
            if tenant.over:
                most = min(float(tenant.over), sense.together_most)
                self._together += 0.1 * (most - self._together)

    def _follow_peak(self, demand: float, span_ns: Duration) -> None:
        """What it asked of the device at most of late, for longer than a moment."""
        self._short_demand += (demand - self._short_demand) * (1 - 0.5 ** (span_ns / self._sense.moment_ns))
        faded = (self.peak - self.demand) * 0.5 ** (span_ns / self._sense.peak_ns)
        self.peak = max(self._short_demand, self.demand + max(faded, 0.0))

    def expect(self, load: Estimate | None, span_ns: Duration) -> None:
        """What is foreseen for the next window; when there is much less to do, what was seen before says little."""
        self.foreseen = load
        if load is None:
            return
        self.load = self.load or load.point
        if load.high * self._sense.differs < self.load:
            self.begin_anew()
            self.load = load.point
            self.is_eased = True
        self.load += (load.point - self.load) * (1 - 0.5 ** (span_ns / self._sense.load_ns))

    def growth(self, expected: Estimate | None) -> float:
        """How many times as many requests as before are foreseen, or came already and nobody foresaw; 1: as many."""
        if not self.load:
            return 1.0
        most = self._latest[1] / self.load if self.is_flooded() else 1.0
        if self.foreseen is not None and self.foreseen.low > self._sense.differs * self.load:
            most = self.foreseen.point / self.load
        if expected is not None:
            spread = self._sense.surprise * (expected.high - expected.point) / _SURE
            for requests, windows in ((self._latest[1], 1), (sum(self._latest), 2)):
                if requests > windows * expected.point + spread * math.sqrt(2) + 1:
                    surely = requests - _SURE * math.sqrt(requests)
                    most = max(most, surely / windows / self.load)
        return most

    def active_with(self, growth: float) -> float:
        """For which part of the time it would be active with so many times its load, at this share."""
        return self.active * growth * self.load / self._rate if self._rate else 0.0

    def is_flooded(self) -> bool:
        """Whether it works all the time for far more requests than its load: a burst, known from others or not."""
        usual = self.load + 4 * math.sqrt(self.load) + 3
        return self._full > 0 and self._latest[1] >= max(2 * self.load, usual)

    def is_surging(self) -> bool:
        """Whether more requests ended of late than its load explains: harm then says nothing about that load."""
        usual = 2 * self.load
        return sum(self._latest) > usual + 3 * math.sqrt(usual) + 1

    def aim_at(self, slo_ns: Duration) -> None:
        """It is promised another latency: how long its requests took is known as before, who was late is another."""
        self.slo_ns, self.aim_ns = slo_ns, slo_ns * self._aimed
        self.evidence = 0.0
        self._over = self._recent.above(slo_ns)
        self._together = self._sense.together

    def begin_anew(self) -> None:
        """The share was changed: what was seen before it says nothing about after."""
        self._seen.clear()
        self._recent.clear()
        self._over = 0.0
        self.evidence = 0.0

    @property
    def requests(self) -> float:
        """How many are known since the last change."""
        return self._seen.requests

    def is_quiet(self, now: Instant) -> bool:
        """Whether it had nothing to do for so long that it has no say."""
        return now - self.last_ns > self._sense.quiet_ns

    def _is_pending(self) -> bool:
        return self.slo_ns < self.oldest_ns < self._sense.lost * self.slo_ns

    def is_stuck(self) -> bool:
        """Whether a request does not end; one that never ended at all is not believed any more."""
        return self._sense.stuck * self.slo_ns < self.oldest_ns < self._sense.lost * self.slo_ns

    def is_harmed(self) -> bool:
        """Whether it misses its objective, beyond what chance explains."""
        pending = self._up if self._is_pending() else 0.0
        return self.is_stuck() or self.evidence + pending / self._together >= self._sense.alarm

    def is_grave(self) -> bool:
        """Whether no small step can help."""
        requests = max(self._recent.requests, 1.0)
        many = self._over >= self._sense.grave_requests and self._over >= self._sense.grave * requests
        return many or self.is_stuck()

    def is_saturated(self) -> bool:
        """Whether it has worked all the time for a while, and a request has waited longer than any is used to."""
        usual_ns = self._seen.quantile(self.fraction)
        waits = self.oldest_ns > max(_LATE * usual_ns, _WAITS * self.slo_ns)
        return self._full > 2 and waits and not self.oldest_ns >= self._sense.lost * self.slo_ns

    def is_near(self) -> bool:
        """Whether more than may miss the objective miss what is aimed at, beyond what chance explains."""
        may = (1 - self.fraction) * self.requests
        return self._seen.above(self.aim_ns) > max(may + 2 * math.sqrt(may) + 1, 4.0)

    def is_calm(self) -> bool:
        """Whether no more was missed of late than may be."""
        may = max((1 - self.fraction) * self._recent.requests, 0.5)
        return self.evidence <= 0 and self._over <= may and not self._is_pending()

    def fare(self) -> Fare:
        """How it stands."""
        tail = self._seen.tail(self.fraction, self._sense.sure, self._together)
        recent_ns = max(self._recent.quantile(self.fraction), self.oldest_ns if self.is_stuck() else 0)
        return Fare(tail, tail.hardly_ns / self.aim_ns, recent_ns / self.aim_ns)

    def need(self, online_ppm: int, ratio: float, growth: float = 1.0) -> float:
        """The share with which the tail would be what is aimed at, if it is this part of it now and load grows so.

        A share N' makes the time that it is active at most N / N' as long, and what waits in a queue the more the
        less time is left: N' = N (a + (1 - a) r), with a the part of the time that it is active now.
        """
        active = min(self.active, _BUSIEST)
        return online_ppm * (active * growth + (1 - active) * ratio)
