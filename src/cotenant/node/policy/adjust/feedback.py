"""Feedback control: raise the online share at once after violations, lower it slowly, remember failed shares.

After each change it waits for measurements at the new share. A failed share is not tried again before a wait that
doubles each time (as CUBIC flattens around the window of its last loss), so that it settles under a steady load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cotenant.node.model.control import AdjustCause, ControlLimits, DeviceWindow
from cotenant.node.policy.adjust.decision import AdjustDecision, Forecast
from cotenant.node.policy.adjust.failure_memory import FailureMemory, FailureMemoryParameters
from cotenant.node.policy.adjust.track import LatencyTracker, TrackerParameters
from cotenant.units.instant import MILLISECOND_NS, NEVER, SECOND_NS, Duration, Instant
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import round_duration
from cotenant.units.value import Value

_MAX_UTILIZATION: Final = 0.85
"""Maximum utilization of the online share by online work in the long run."""
_PERCENT_PPM: Final = 10_000
_TOLERABLE_PPM: Final = 95 * _PERCENT_PPM
"""A share that every objective tolerates, before the time of a request alone is known."""
_NEED_UNKNOWN: Final = "its need is not known yet"


class FeedbackParameters(Value, frozen=True):
    """Step sizes and times chosen by the project; docs/concepts/control.md gives the reasons."""

    blind_ns: Duration = 200 * MILLISECOND_NS
    """Requests that end this soon after a change mostly began before it; longer for long requests."""
    blindest_ns: Duration = 5 * SECOND_NS
    dwell_ns: Duration = 500 * MILLISECOND_NS
    """Minimum time at a share before it is lowered."""
    enough: int = 20
    """Minimum number of requests of each tenant before the share is lowered."""
    min_change_ppm: int = 2 * _PERCENT_PPM
    """Smaller changes are not made, except for trimming."""
    trim_ppm: int = _PERCENT_PPM
    """First step of trimming; doubles with each consecutive step down, up to `trim_most` of them."""
    trim_most: int = 5
    """Largest number of steps at once."""
    plainly: float = 0.6
    """If the tail is below this fraction of the target, the forecast is trusted for a larger step."""
    most_down: float = 0.6
    """Minimum fraction of the online share that remains after one step down."""
    up_ppm: int = 5 * _PERCENT_PPM
    """Minimum first increase; doubles with each consecutive increase."""
    most_up: float = 2.0
    near_up: float = 1.08
    beyond_ns: Duration = 3 * SECOND_NS
    """Violations at the maximum share for this long make the objective unreachable."""
    met_ns: Duration = 2 * SECOND_NS
    """A tenant's demand is known after this long."""
    pressed_ns: Duration = 2 * SECOND_NS
    """Offline work within this time may have caused a violation."""
    unused: float = 0.1
    """Offline work gains nothing from a smaller share if less of the time is left unused by it and by online work."""
    gain: float = 2.0
    """A decrease permits at most this multiple of the delay with which offline work would use that time."""
    busy: float = 0.4
    """Online work that is active for more of the time leaves so little that offline work gains next to it as well."""


class Feedback:
    """The adjuster of one device."""

    def __init__(
        self,
        limits: ControlLimits,
        online_ppm: int,
        tracker_parameters: TrackerParameters | None = None,
        steps: FeedbackParameters | None = None,
        memory_parameters: FailureMemoryParameters | None = None,
    ) -> None:
        """Begin at the current online share."""
        self.online_ppm = online_ppm
        self._limits = limits
        self._tracker_parameters = tracker_parameters or TrackerParameters()
        self._steps = steps or FeedbackParameters()
        self._tracks: dict[int, LatencyTracker] = {}
        self._offline: dict[int, int] = {}
        self._growth: dict[int, float] = {}
        self._forecasts: Mapping[int, Forecast] = {}
        self._changed_ns: Instant = NEVER
        self._unsettled_until_ns: Instant = NEVER
        self._offline_active_ns: Instant = NEVER
        self._violated_ns: Instant = NEVER
        self._violated_since_ns: Instant = NEVER
        self._online_active = self._offline_used = 0.0
        self._windows = 0
        self._failures = FailureMemory(memory_parameters or FailureMemoryParameters())
        self._consecutive_raises = 0
        self._trims = 0
        self._is_unreachable = False
        self._tenant_left = False
        self._why = "no window measured yet"

    # -- measurements ----------------------------------------------------------------------------------------------

    def step(self, window: DeviceWindow, forecasts: Mapping[int, Forecast], now: Instant) -> AdjustDecision | None:
        """Apply the first rule that holds: join, stricter objective, violation, load, near violation, headroom."""
        self._forget(window)
        is_first = self._changed_ns == NEVER
        newcomer = self._track_new_tenants(window, now)
        work_began = self._offline_work_began(window, now)
        stricter = self._apply_objectives(window, now)
        self._add_window(window, forecasts, now)
        if is_first:  # the tenants and the share precede this adjuster
            self._changed_ns = now
        elif newcomer is not None:
            return self._set_share(self._initial_ppm(newcomer), AdjustCause.JOINED, _NEED_UNKNOWN, now, newcomer)
        elif work_began:
            self._failures.clear()
            return self._set_share(self._limits.max_online_ppm, AdjustCause.JOINED, "offline work began", now)
        elif stricter is not None and (decision := self._raise_for_objective(stricter, now)):
            return decision
        return self._raise_share(now) or self._lower_share(now) or self._trim_share(now)

    def needs(self) -> dict[int, int]:
        """Return the device time of each tenant, weighted by how close the tenant is to missing its objective.

        The result is empty unless the offline share is at its minimum or no offline work runs: only then do peers delay
        each other, and dividing the device helps. Otherwise a division would only limit them.
        """
        if not self._is_unreachable or len(self._tracks) < 2:
            return {}
        return {slot: self._need_of(track) for slot, track in self._tracks.items()}

    def _need_of(self, track: LatencyTracker) -> int:
        """Return a tenant's need relative to its peers; 0: not measured for long enough."""
        if track.age_ns < self._steps.met_ns or track.ended < self._steps.enough:
            return 0
        return max(round(1e6 * track.demand * (0.5 + min(track.assess().ratio, 1.5))), 1)

    def why(self) -> str:
        """Return the last change, or why there is none."""
        return self._why

    def _forget(self, window: DeviceWindow) -> None:
        """Forget tenants that left."""
        generations = {tenant.slot: tenant.generation for tenant in window.tenants if tenant.promised}
        departed = [slot for slot, track in self._tracks.items() if generations.get(slot) != track.generation]
        for slot in departed:
            del self._tracks[slot]
        if len(self._tracks) < 2 and self.online_ppm < self._limits.max_online_ppm:
            self._is_unreachable = False  # the peers that delayed it have left
        self._tenant_left = self._tenant_left or bool(departed)

    def _track_new_tenants(self, window: DeviceWindow, now: Instant) -> int | None:
        """Return the slot of a tenant that joined and whose need is unknown."""
        newcomer = None
        for tenant in window.tenants:
            if tenant.promised and tenant.slot not in self._tracks:
                self._tracks[tenant.slot] = LatencyTracker(tenant, self._limits, self._tracker_parameters, now)
                newcomer = tenant.slot
                self._violated_ns = NEVER  # it did not cause earlier violations
        return newcomer

    def _apply_objectives(self, window: DeviceWindow, now: Instant) -> LatencyTracker | None:
        """Apply changed objectives; return a tenant whose objective became stricter.

        Recorded failures stay if the objective is stricter; they are dropped if it is looser, because the failed share
        may suffice now. Peers that divide a device continue to divide it.
        """
        stricter = None
        for tenant in window.tenants:
            track = self._tracks.get(tenant.slot) if tenant.promised else None
            if track is None or track.slo_ns == tenant.slo_ns:
                continue
            if tenant.slo_ns > track.slo_ns:
                self._failures.clear()
            else:
                stricter = track
            track.set_objective(tenant.slo_ns)
            self._changed_ns, self._violated_ns, self._consecutive_raises = now, NEVER, 0
            self._is_unreachable = self._is_unreachable and len(self._tracks) > 1
        return stricter

    def _offline_work_began(self, window: DeviceWindow, now: Instant) -> bool:
        """Return whether offline work began whose effect on others is unknown.

        A share below the maximum at the beginning was found with the tenants that are present.
        """
        began, is_resumed = False, self._changed_ns == NEVER and self.online_ppm < self._limits.max_online_ppm
        for tenant in window.tenants:
            if tenant.online:
                continue
            if tenant.device_ns or tenant.waited_ns:
                self._offline_active_ns = now
            if (tenant.device_ns or tenant.waited_ns or is_resumed) and self._offline.get(
                tenant.slot
            ) != tenant.generation:
                self._offline[tenant.slot] = tenant.generation
                began = not is_resumed
        return began

    def _add_window(self, window: DeviceWindow, forecasts: Mapping[int, Forecast], now: Instant) -> None:
        self._forecasts = forecasts
        counts = now >= self._unsettled_until_ns
        span_ns = max(window.end_ns - window.begin_ns, 1)
        self._measure_use(window, span_ns)
        for tenant in window.tenants:
            track = self._tracks.get(tenant.slot) if tenant.promised else None
            if track is not None:
                track.add_window(tenant, span_ns, now, counts=counts)
                expected = track.forecast
                track.set_forecast(forecasts[tenant.slot].load if tenant.slot in forecasts else None, span_ns)
                self._growth[tenant.slot] = track.growth(expected)

    def _measure_use(self, window: DeviceWindow, span_ns: Duration) -> None:
        """Update the mean part of the time in which online work is active, and that which offline work uses."""
        active_ns = sum(tenant.active_ns for tenant in window.tenants if tenant.online)
        used_ns = sum(tenant.device_ns for tenant in window.tenants if not tenant.online)
        self._windows = self._windows + 1 if used_ns else 0
        weight = max(1 - 0.5 ** (span_ns / SECOND_NS), 1 / max(self._windows, 1))
        self._online_active += weight * (min(active_ns / span_ns, 1.0) - self._online_active)
        self._offline_used += weight * (min(used_ns / span_ns, 1.0) - self._offline_used)

    def _useful_ppm(self) -> int:
        """Return the share below which offline work gains little device time.

        The pauses of online work cost it the least and are used first, in proportion to the delay that the share
        permits. Once they are used up, a smaller share makes offline work run next to online work, which delays both.
        """
        idle = 1 - self._online_active
        if self._online_active > self._steps.busy or not self._offline_used:
            return 0
        tolerable_ppm = min(self._tolerable_ppm(), _TOLERABLE_PPM)
        if idle - self._offline_used <= self._steps.unused:
            return tolerable_ppm
        delay = self._steps.gain * (WHOLE_PPM / self.online_ppm - 1) * idle / self._offline_used
        return min(round(WHOLE_PPM / (1 + delay)), tolerable_ppm)

    def _is_offline_active(self, now: Instant) -> bool:
        return self._offline_active_ns != NEVER and now - self._offline_active_ns <= self._steps.pressed_ns

    # -- raising -----------------------------------------------------------------------------------------------

    def _raise_share(self, now: Instant) -> AdjustDecision | None:
        for track in self._tracks.values():
            decision = self._raise_for_load(track, now) or self._raise_when_saturated(track, now)
            if decision is not None:
                return decision
        if now < self._unsettled_until_ns:
            return None
        violated = [track for track in self._tracks.values() if track.is_violated()]
        if violated:
            return self._raise_after_violation(max(violated, key=lambda track: track.assess().recent_ratio), now)
        near = next((track for track in self._tracks.values() if track.is_near()), None)
        if near is None or not self._is_offline_active(now):
            return None
        up_ppm = max(round(self.online_ppm * self._steps.near_up), self.online_ppm + self._steps.min_change_ppm)
        up_ppm = min(up_ppm, self._tolerable_ppm())
        if up_ppm < self.online_ppm + self._steps.min_change_ppm:
            return None
        self._record_failure(now)
        return self._set_share(up_ppm, AdjustCause.NEAR_OBJECTIVE, self._describe(near), now, near.slot)

    def _raise_for_objective(self, track: LatencyTracker, now: Instant) -> AdjustDecision | None:
        """Return the increase for a stricter objective, from measurements with offline work or as for a new tenant."""
        online_ppm, detail = self._initial_ppm(track.slot), _NEED_UNKNOWN
        if track.requests >= self._steps.enough and self._is_offline_active(now):
            assessment, detail = track.assess(), self._describe(track)
            online_ppm = round(track.need(self.online_ppm, assessment.ratio))
            if assessment.tail.estimate_ns <= track.slo_ns:
                online_ppm = min(online_ppm, self._tolerable_ppm())
        if online_ppm < self.online_ppm + self._steps.min_change_ppm:
            return None
        return self._set_share(online_ppm, AdjustCause.OBJECTIVE, detail, now, track.slot)

    def _initial_ppm(self, slot: int) -> int:
        """Return the forecast need of a tenant without measurements, at least the current share; else the maximum."""
        need = self._forecasts[slot].need_ppm if slot in self._forecasts else None
        return self._limits.max_online_ppm if need is None else max(round(need.high), self.online_ppm)

    def _raise_after_violation(self, track: LatencyTracker, now: Instant) -> AdjustDecision | None:
        """Raise the share after a violation, unless no offline work ran or the share is at its maximum."""
        detail, steps = self._describe(track), self._steps
        if not self._is_offline_active(now):
            return self._violated_without_offline(track, detail, now)
        if self.online_ppm >= self._limits.max_online_ppm:
            track.evidence = 0.0
            if self._is_unreachable or now - self._changed_ns < steps.beyond_ns:
                return None
            self._is_unreachable = True
            self._why = f"{detail}, although the online share is at its maximum"
            return AdjustDecision(self.online_ppm, AdjustCause.UNREACHABLE, self._why, track.slot, track.generation)
        self._record_failure(now)
        self._trims = 0
        self._consecutive_raises += 1
        online_ppm = self.online_ppm + (steps.up_ppm << min(self._consecutive_raises - 1, 5))
        if track.is_severe():
            online_ppm = max(online_ppm, round(self.online_ppm * min(track.assess().recent_ratio, steps.most_up)))
        return self._set_share(
            online_ppm, AdjustCause.STUCK if track.is_stuck() else AdjustCause.VIOLATED, detail, now, track.slot
        )

    def _violated_without_offline(self, track: LatencyTracker, detail: str, now: Instant) -> AdjustDecision | None:
        """Handle a violation without offline work: more share would not help, but peers may delay each other."""
        track.evidence = 0.0
        if self._violated_ns == NEVER or now - self._violated_ns > self._steps.pressed_ns:
            self._violated_since_ns = now
        self._violated_ns = now
        self._why = f"{detail}, although no offline work ran"
        has_peer = any(other.priority == track.priority for other in self._tracks.values() if other is not track)
        if self._is_unreachable or not has_peer or now - self._violated_since_ns < self._steps.beyond_ns:
            return None
        self._is_unreachable = True
        self._why += ": peers delay each other"
        return AdjustDecision(self.online_ppm, AdjustCause.UNREACHABLE, self._why, track.slot, track.generation)

    def _raise_for_load(self, track: LatencyTracker, now: Instant) -> AdjustDecision | None:
        """Raise the share if more requests arrive or are forecast than it was measured with."""
        growth = self._growth.get(track.slot, 1.0)
        if growth <= 1 or track.is_closed_loop or not self._is_offline_active(now):
            return None
        ratio = track.assess().ratio if track.requests >= self._steps.enough else 1.0
        need_ppm = min(round(track.need(self.online_ppm, min(ratio, 1.0), growth)), self._tolerable_ppm())
        if track.is_flooded() or track.active_with(growth) >= _MAX_UTILIZATION:  # its queue would grow without bound
            need_ppm = self._limits.max_online_ppm
        track.load *= growth
        if need_ppm < self.online_ppm + self._steps.min_change_ppm:
            return None
        return self._set_share(
            need_ppm, AdjustCause.LOAD_INCREASED, f"{growth:.1f} times as many requests", now, track.slot
        )

    def _raise_when_saturated(self, track: LatencyTracker, now: Instant) -> AdjustDecision | None:
        """Raise the share if a tenant is active all the time and its queue grows, before requests are late."""
        if (
            not track.is_saturated()
            or track.is_closed_loop
            or not self._is_offline_active(now)
            or self.online_ppm >= self._limits.max_online_ppm
        ):
            return None
        online_ppm = max(round(self.online_ppm * self._steps.most_up), round(track.peak / _MAX_UTILIZATION * WHOLE_PPM))
        detail = f"it is active all the time and a request has waited {round_duration(track.oldest_ns)}"
        return self._set_share(online_ppm, AdjustCause.SATURATED, detail, now, track.slot)

    def _record_failure(self, now: Instant) -> None:
        """Remember that this share failed, so that no smaller one is tried for a while."""
        if not any(track.is_surging() for track in self._tracks.values()):
            self._failures.record(self.online_ppm, self._loads(), now)

    def _loads(self) -> dict[int, float]:
        return {slot: track.load for slot, track in self._tracks.items()}

    # -- lowering ----------------------------------------------------------------------------------------------------

    def _lower_share(self, now: Instant) -> AdjustDecision | None:
        """Lower the share after a while, if offline work wants it and all tenants have shown headroom."""
        steps = self._steps
        tracks = [track for track in self._tracks.values() if not track.is_quiet(now)]
        if (
            now < self._unsettled_until_ns
            or now - self._changed_ns < steps.dwell_ns
            or not self._is_offline_active(now)
        ):
            return None
        if any(track.is_surging() for track in tracks):
            return None
        if not tracks or not all(track.requests >= steps.enough and track.is_calm() for track in tracks):
            return None
        self._consecutive_raises = 0
        strictest = max(tracks, key=lambda track: track.need(self.online_ppm, track.assess().ratio))
        need_ppm = round(strictest.need(self.online_ppm, strictest.assess().ratio))
        tolerable_ppm = self._tolerable_ppm()
        if all(track.assess().tail.estimate_ns <= track.slo_ns * tolerable_ppm / WHOLE_PPM for track in tracks):
            need_ppm = min(need_ppm, tolerable_ppm)
        online_ppm = max(need_ppm, round(self.online_ppm * steps.most_down))
        ratio = max(track.assess().ratio for track in tracks)
        if ratio < steps.plainly and not self._failures.has_failure(self._loads()):
            online_ppm = min(online_ppm, max(self._forecast_ppm(), round(self.online_ppm * ratio)))
        online_ppm = max(online_ppm, self._smallest_ppm(tracks))
        cause = AdjustCause.DEPARTED if self._tenant_left else AdjustCause.HEADROOM
        requests = min(track.requests for track in tracks)
        online_ppm, is_probe = self._failures.limit_decrease(online_ppm, self.online_ppm, self._loads(), requests, now)
        cause = AdjustCause.PROBE if is_probe else cause
        if self.online_ppm - online_ppm < steps.min_change_ppm and online_ppm > self._limits.min_online_ppm:
            return None
        if cause is AdjustCause.HEADROOM and strictest.load_decreased:
            cause = AdjustCause.LOAD_DECREASED
        strictest.load_decreased = False
        return self._set_share(
            online_ppm, cause, _latency_text(strictest, strictest.assess().tail.estimate_ns), now, strictest.slot
        )

    # -- trimming ----------------------------------------------------------------------------------------------------

    def _trim_share(self, now: Instant) -> AdjustDecision | None:
        """Move in small steps towards the share at which about half of the permitted misses occur.

        Each request in time earns a little, each miss costs one, as in a stochastic approximation of the quantile. A
        share with too many misses has failed and is not tried again soon.
        """
        steps = self._steps
        tracks = [track for track in self._tracks.values() if not track.is_quiet(now)]
        if now < self._unsettled_until_ns or not tracks or not self._is_offline_active(now):
            return None
        worst = max(tracks, key=lambda track: track.debt)
        count = worst.debt / worst.parameters.trim_debt
        if count >= 1 and self.online_ppm < self._limits.max_online_ppm:
            self._record_failure(now)
            self._trims = 0
            up_ppm = self.online_ppm + steps.trim_ppm * min(int(count) + 1, steps.trim_most)
            return self._set_share(up_ppm, AdjustCause.TRIMMED, self._describe(worst), now, worst.slot)
        worst = min(tracks, key=lambda track: track.credit)
        if (
            worst.credit < worst.parameters.trim_credit
            or now - self._changed_ns < steps.dwell_ns
            or any(track.is_surging() for track in tracks)
        ):
            return None
        down_ppm = steps.trim_ppm * min(1 << self._trims, steps.trim_most)
        wanted_ppm = max(self.online_ppm - down_ppm, self._smallest_ppm(tracks))
        requests = min(track.requests for track in tracks)
        online_ppm, is_probe = self._failures.limit_decrease(wanted_ppm, self.online_ppm, self._loads(), requests, now)
        if online_ppm >= self.online_ppm:
            return None
        self._trims = min(self._trims + 1, steps.trim_most)
        cause = AdjustCause.PROBE if is_probe else AdjustCause.TRIMMED
        return self._set_share(online_ppm, cause, self._describe(worst), now, worst.slot)

    def _smallest_ppm(self, tracks: Sequence[LatencyTracker]) -> int:
        """Return the share below which no decrease goes, at most the present one."""
        smallest_ppm = max(self._peak_ppm(tracks), self._useful_ppm())
        return max(min(smallest_ppm, self.online_ppm), self._limits.min_online_ppm)

    def _peak_ppm(self, tracks: Sequence[LatencyTracker]) -> int:
        """Return the need of recent peaks, which may recur faster than the share could be raised again.

        It is the forecast need, and at least the device time that the peaks used. In a closed loop no more requests
        arrive than are answered.
        """
        tracks = [track for track in tracks if not track.is_closed_loop]
        forecasts = [self._forecasts[track.slot].peak_ppm for track in tracks if track.slot in self._forecasts]
        used_ppm = round(WHOLE_PPM * sum(track.peak for track in tracks))
        return max([used_ppm, *(min(ppm, self._tolerable_ppm()) for ppm in forecasts if ppm is not None)])

    def _tolerable_ppm(self) -> int:
        """Return the share above which only violations or a growing queue justify an increase."""
        tolerable = [self._forecasts[slot].tolerable_ppm if slot in self._forecasts else None for slot in self._tracks]
        max_online_ppm = self._limits.max_online_ppm
        return max((max_online_ppm if share is None else share for share in tolerable), default=max_online_ppm)

    def _forecast_ppm(self) -> int:
        """Return the largest forecast need, which one step may reach while no smaller share has failed."""
        needs = [self._forecasts[slot].need_ppm if slot in self._forecasts else None for slot in self._tracks]
        known = [round(need.high) for need in needs if need is not None]
        return max(known) if len(known) == len(needs) else WHOLE_PPM

    # -- results ----------------------------------------------------------------------------------------------------

    def _set_share(
        self, online_ppm: int, cause: AdjustCause, detail: str, now: Instant, slot: int = -1
    ) -> AdjustDecision | None:
        online_ppm = min(max(online_ppm, self._limits.min_online_ppm), self._limits.max_online_ppm)
        if online_ppm == self.online_ppm:
            return None
        self._is_unreachable = self._is_unreachable and online_ppm >= self._limits.max_online_ppm
        self.online_ppm = online_ppm
        self._changed_ns = now
        self._windows = 0
        self._tenant_left = False
        longest_ns = max((track.assess().tail.estimate_ns for track in self._tracks.values()), default=0)
        blind_ns = min(max(self._steps.blind_ns, round(longest_ns)), self._steps.blindest_ns)
        self._unsettled_until_ns = now + blind_ns
        for track in self._tracks.values():
            track.reset()
        self._why = detail
        generation = self._tracks[slot].generation if slot >= 0 else 0
        return AdjustDecision(online_ppm, cause, detail, slot, generation)

    def _describe(self, track: LatencyTracker) -> str:
        """Describe the latency, by all measurements at this share or by the latest, whichever is worse."""
        assessment = track.assess()
        return _latency_text(track, max(assessment.tail.estimate_ns, assessment.recent_ratio * track.target_ns))


def _latency_text(track: LatencyTracker, latency_ns: float) -> str:
    """Describe a tail latency and the objective."""
    return (
        f"p{track.fraction * 100:g} {round_duration(round(latency_ns))} of its {round_duration(track.slo_ns)} objective"
    )
