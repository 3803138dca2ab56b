"""Latency tracking of one online tenant against its objective, window by window."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from cotenant.gate.request_buckets import count_above
from cotenant.node.model.control import ControlLimits, TenantWindow
from cotenant.node.policy.adjust.tail import Latencies, TailEstimate
from cotenant.units.estimate import Estimate
from cotenant.units.instant import Duration, Instant
from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value

_LATE: Final = 1.2
_WAITS: Final = 0.5
"""As a fraction of the objective: a shorter wait is tolerated."""
_SURE: Final = 1.645
"""Standard deviations between the middle of an estimate and its bounds."""
_FULL: Final = 0.9
"""A tenant that is active for this fraction of a window counts as always active."""
_BUSIEST: Final = 0.9
_CLOSED_WINDOWS: Final = 10
"""Windows after which the clients of a tenant may be taken to wait for their answers."""
_CLOSED_SPREAD: Final = 0.2
"""Largest relative deviation of the number of requests in the system, and of its mean from a whole number."""


class TrackerParameters(Value, frozen=True):
    """Parameters chosen by the project; docs/concepts/control.md gives the reasons."""

    keep: int = 400
    """Number of latest requests that never decay."""
    half_life_ns: Duration = 5_000_000_000
    """Half-life of the older requests."""
    recent_ns: Duration = 300_000_000
    """Half-life of the requests that are examined after a violation."""
    quiet_ns: Duration = 5_000_000_000
    """A tenant without requests for this long is ignored."""
    sure: float = 1.64
    """Standard deviations from the tail estimate to its upper bound."""
    alarm: float = 3.5
    """Log-likelihood ratio at which a violation of the objective is detected."""
    credit: float = 3.0
    """Maximum credit of a good record against such evidence."""
    fine: float = 0.5
    harmed: float = 3.0
    """Multiples of the allowed misses that are expected without (`fine`) and with (`harmed`) a violation."""
    together: float = 2.0
    """Initial estimate of how many requests miss the objective together because they queue."""
    together_most: float = 8.0
    grave: float = 0.5
    """Fraction of the recent requests beyond the objective that makes a violation severe."""
    grave_requests: int = 8
    differs: float = 1.3
    """A load that differs by this factor is another load."""
    load_ns: Duration = 3_000_000_000
    """Half-life of the load estimate."""
    surprise: float = 4.5
    """Standard deviations above the forecast at which an increase is not chance."""
    moment_ns: Duration = 200_000_000
    """Smoothing time of the device demand."""
    peak_ns: Duration = 20_000_000_000
    """Half-life of the excess of a demand peak over the mean."""
    stuck: int = 2
    """A request that lasts this multiple of the objective is a violation by itself."""
    lost: int = 50
    """A request that lasts this multiple of the objective is ignored: its end was not reported."""
    trim_misses: float = 0.4
    """Multiple of the allowed misses that is wanted."""
    trim_credit: float = 0.4
    """With this many fewer misses than wanted, the share is lowered by a step."""
    trim_debt: float = 8.0
    """With this many more misses than allowed, it is raised by a step."""


class LatencyAssessment(NamedTuple):
    """State of a tenant at the end of a window."""

    tail: TailEstimate
    ratio: float
    """Upper bound of the tail relative to the target."""
    recent_ratio: float
    """Latest counted tail relative to the target."""


class LatencyTracker:
    """The measurements of one tenant."""

    def __init__(self, tenant: TenantWindow, limits: ControlLimits, sense: TrackerParameters, now: Instant) -> None:
        """Begin without measurements."""
        self.slot, self.generation, self.priority = tenant.slot, tenant.generation, tenant.priority
        self._target_fraction = (WHOLE_PPM - limits.headroom_ppm) / WHOLE_PPM
        self.slo_ns, self.target_ns = tenant.slo_ns, tenant.slo_ns * self._target_fraction
        self.fraction = limits.quantile_ppm / WHOLE_PPM
        self.age_ns: Duration = 0
        self.ended = 0
        self.active = 0.0
        self.demand = 0.0
        self._rate = 0.0
        self.peak = 0.0
        self._short_demand = 0.0
        self._full_windows = 0
        self.evidence = 0.0
        self.load = 0.0
        self.forecast: Estimate | None = None
        self.load_decreased = False
        self.oldest_ns = 0
        self.last_ns = now
        self.parameters = sense
        self._latencies = Latencies(sense.keep)
        self._recent = Latencies(0)
        self._recent_over = 0.0
        self._latest_counts = (0, 0)
        self._misses_together = sense.together
        self._is_new = True
        self._windows = 0
        self._in_system = self._in_system_variance = 0.0
        # Since the last change of the share: fewer misses of the target than wanted, and more misses of the objective
        # than allowed.
        self.credit = self.debt = 0.0
        self._missed = 0.0
        miss = 1 - self.fraction
        self._miss_evidence = math.log(sense.harmed / sense.fine)
        self._hit_evidence = -math.log((1 - min(sense.harmed * miss, 0.99)) / (1 - sense.fine * miss))

    def add_window(self, tenant: TenantWindow, span_ns: Duration, now: Instant, *, counts: bool) -> None:
        """Add a window; `counts` is false for requests that began before the last change."""
        sense = self.parameters
        weight = 1.0 if self._is_new else 1 - 0.5 ** (span_ns / 1e9)
        self._is_new = False
        self.priority = tenant.priority
        self.age_ns += span_ns
        self.ended += tenant.requests
        self.active += weight * (min(tenant.active_ns / span_ns, 1.0) - self.active)
        self.demand += weight * (min(tenant.device_ns / span_ns, 1.0) - self.demand)
        self._rate += weight * (tenant.requests - self._rate)
        self._follow_peak(min(tenant.device_ns / span_ns, 1.0), span_ns)
        self._full_windows = self._full_windows + 1 if tenant.active_ns >= _FULL * span_ns else 0
        self.oldest_ns = tenant.oldest_ns
        self._latest_counts = (self._latest_counts[1], tenant.requests)
        fade = 0.5 ** (span_ns / sense.recent_ns)
        self._recent.fade(fade)
        self._recent_over *= fade
        self._recent.add(tenant.latencies)
        self._recent_over += tenant.over
        if tenant.requests or tenant.oldest_ns:
            self.last_ns = now
        self._follow_system(tenant.sum_ns / span_ns)
        if counts:
            self._latencies.fade(0.5 ** (span_ns / sense.half_life_ns))
            self._latencies.add(tenant.latencies)
            met = max(tenant.requests - tenant.over, 0)
            allowed, missed = (1 - self.fraction) * tenant.requests, self._beyond_target(tenant)
            self._missed += missed
            self.credit += sense.trim_misses * allowed - missed
            self.debt += tenant.over - allowed
            evidence = (tenant.over * self._miss_evidence - met * self._hit_evidence) / self._misses_together
            self.evidence = max(self.evidence + evidence, -sense.credit)
            if tenant.over:
                misses = min(float(tenant.over), sense.together_most)
                self._misses_together += 0.1 * (misses - self._misses_together)

    def _follow_peak(self, demand: float, span_ns: Duration) -> None:
        """Update the recent peak of the device demand."""
        self._short_demand += (demand - self._short_demand) * (1 - 0.5 ** (span_ns / self.parameters.moment_ns))
        excess = (self.peak - self.demand) * 0.5 ** (span_ns / self.parameters.peak_ns)
        self.peak = max(self._short_demand, self.demand + max(excess, 0.0))

    def _follow_system(self, in_system: float) -> None:
        """Update the mean number of requests in the system, which is their rate times their latency."""
        self._windows += 1
        weight = max(1 / self._windows, 1 / _CLOSED_WINDOWS)
        deviation = in_system - self._in_system
        self._in_system += weight * deviation
        self._in_system_variance = (1 - weight) * (self._in_system_variance + weight * deviation * deviation)

    @property
    def is_closed_loop(self) -> bool:
        """Return whether a fixed number of clients keeps the tenant busy, each sending when it has its answer.

        Then the number of requests in the system is constant, whatever they take. Their rate follows the latency, so
        that no queue can grow.
        """
        mean = self._in_system
        if self._windows < _CLOSED_WINDOWS or mean < 1 - _CLOSED_SPREAD:
            return False
        is_whole = abs(mean - round(mean)) <= _CLOSED_SPREAD
        return is_whole and math.sqrt(self._in_system_variance) <= _CLOSED_SPREAD * mean

    def set_forecast(self, load: Estimate | None, span_ns: Duration) -> None:
        """Set the forecast of the next window; after a large decrease, earlier measurements are dropped."""
        self.forecast = load
        if load is None:
            return
        self.load = self.load or load.point
        if load.high * self.parameters.differs < self.load:
            self.reset()
            self.load = load.point
            self.load_decreased = True
        self.load += (load.point - self.load) * (1 - 0.5 ** (span_ns / self.parameters.load_ns))

    def growth(self, expected: Estimate | None) -> float:
        """Return the expected or observed increase of the load as a factor; 1: none."""
        if not self.load:
            return 1.0
        factor = self._latest_counts[1] / self.load if self.is_flooded() else 1.0
        if self.forecast is not None and self.forecast.low > self.parameters.differs * self.load:
            factor = self.forecast.point / self.load
        if expected is not None:
            spread = self.parameters.surprise * (expected.high - expected.point) / _SURE
            for requests, windows in ((self._latest_counts[1], 1), (sum(self._latest_counts), 2)):
                if requests > windows * expected.point + spread * math.sqrt(2) + 1:
                    certain = requests - _SURE * math.sqrt(requests)
                    factor = max(factor, certain / windows / self.load)
        return factor

    def active_with(self, growth: float) -> float:
        """Return the active fraction of the time with this multiple of the load at the current share."""
        return self.active * growth * self.load / self._rate if self._rate else 0.0

    def is_flooded(self) -> bool:
        """Return whether the tenant is always active with far more requests than its load: a burst."""
        usual = self.load + 4 * math.sqrt(self.load) + 3
        return self._full_windows > 0 and self._latest_counts[1] >= max(2 * self.load, usual)

    def is_surging(self) -> bool:
        """Return whether more requests ended than the load explains; violations then do not count against the share."""
        usual = 2 * self.load
        return sum(self._latest_counts) > usual + 3 * math.sqrt(usual) + 1

    def set_objective(self, slo_ns: Duration) -> None:
        """Set another objective; the latencies stay, the evidence of violations restarts."""
        self.slo_ns, self.target_ns = slo_ns, slo_ns * self._target_fraction
        self.evidence = 0.0
        self._recent_over = self._recent.above(slo_ns)
        self._misses_together = self.parameters.together
        self.credit = self.debt = self._missed = 0.0

    def reset(self) -> None:
        """Drop the measurements after a change of the share."""
        self._latencies.clear()
        self._recent.clear()
        self._recent_over = 0.0
        self.evidence = 0.0
        self.credit = self.debt = self._missed = 0.0

    @property
    def requests(self) -> float:
        """Number of requests measured since the last change."""
        return self._latencies.requests

    def is_quiet(self, now: Instant) -> bool:
        """Return whether the tenant has been idle for so long that it is ignored."""
        return now - self.last_ns > self.parameters.quiet_ns

    def _is_pending(self) -> bool:
        return self.slo_ns < self.oldest_ns < self.parameters.lost * self.slo_ns

    def is_stuck(self) -> bool:
        """Return whether a request does not end; one whose end was never reported does not count."""
        return self.parameters.stuck * self.slo_ns < self.oldest_ns < self.parameters.lost * self.slo_ns

    def is_violated(self) -> bool:
        """Return whether the objective is violated beyond chance."""
        pending = self._miss_evidence if self._is_pending() else 0.0
        return self.is_stuck() or self.evidence + pending / self._misses_together >= self.parameters.alarm

    def is_severe(self) -> bool:
        """Return whether a violation is too severe for a small step."""
        requests = max(self._recent.requests, 1.0)
        many = (
            self._recent_over >= self.parameters.grave_requests
            and self._recent_over >= self.parameters.grave * requests
        )
        return many or self.is_stuck()

    def is_saturated(self) -> bool:
        """Return whether it has long been always active and a request waits longer than usual."""
        usual_ns = self._latencies.quantile(self.fraction)
        waits = self.oldest_ns > max(_LATE * usual_ns, _WAITS * self.slo_ns)
        return self._full_windows > 2 and waits and not self.oldest_ns >= self.parameters.lost * self.slo_ns

    def is_near(self) -> bool:
        """Return whether more requests than allowed exceed the target, beyond chance."""
        allowed = (1 - self.fraction) * self.requests
        counted = self.target_ns < self.slo_ns  # misses of the objective itself are known exactly
        beyond = self._latencies.above(self.target_ns) if counted else min(self._missed, self.requests)
        return beyond > max(allowed + 2 * math.sqrt(allowed) + 1, 4.0)

    def _beyond_target(self, tenant: TenantWindow) -> float:
        """Return how many requests of a window exceeded the target; only those beyond the objective are exact."""
        if self.target_ns >= self.slo_ns:
            return float(tenant.over)
        return count_above(tenant.latencies, self.target_ns)

    def is_calm(self) -> bool:
        """Return whether no more requests than allowed missed the objective recently."""
        allowed = max((1 - self.fraction) * self._recent.requests, 0.5)
        return self.evidence <= 0 and self._recent_over <= allowed and not self._is_pending()

    def assess(self) -> LatencyAssessment:
        """Return the tail latency since the last change of the share, and its ratios to the target."""
        tail = self._latencies.tail(self.fraction, self.parameters.sure, self._misses_together)
        recent_ns = max(self._recent.quantile(self.fraction), self.oldest_ns if self.is_stuck() else 0)
        return LatencyAssessment(tail, tail.upper_ns / self.target_ns, recent_ns / self.target_ns)

    def need(self, online_ppm: int, ratio: float, growth: float = 1.0) -> float:
        """Return the share at which the tail would equal the target, from its current ratio and load growth.

        A share N' changes the active time by at most N / N', and waiting in a queue grows as the free time shrinks:
        N' = N (a + (1 - a) r), with a the fraction of the time that the tenant is active now. In a closed loop no queue
        grows.
        """
        active = 0.0 if self.is_closed_loop else min(self.active, _BUSIEST)
        return online_ppm * (active * growth + (1 - active) * ratio)
