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

_STABLE: Final = 0.85
"""Maximum utilization of the online share by online work in the long run."""
_PERCENT: Final = 10_000
_UNSEEN: Final = "its need is not known yet"


class FeedbackParameters(Value, frozen=True):
    """Step sizes and times chosen by the project; docs/concepts/control.md gives the reasons."""

    blind_ns: Duration = 200 * MILLISECOND_NS
    """Requests that end this soon after a change mostly began before it; longer for long requests."""
    blindest_ns: Duration = 5 * SECOND_NS
    dwell_ns: Duration = 500 * MILLISECOND_NS
    """Minimum time at a share before it is lowered."""
    enough: int = 20
    """Minimum number of requests of each tenant before the share is lowered."""
    min_change_ppm: int = 2 * _PERCENT
    """Smaller changes are not made."""
    plainly: float = 0.6
    """If the tail is below this fraction of the target, the forecast is trusted for a larger step."""
    most_down: float = 0.6
    """Minimum fraction of the online share that remains after one step down."""
    up_ppm: int = 5 * _PERCENT
    """Minimum first increase; doubles with each consecutive increase."""
    most_up: float = 2.0
    near_up: float = 1.08
    beyond_ns: Duration = 3 * SECOND_NS
    """Violations at the maximum share for this long make the objective unreachable."""
    met_ns: Duration = 2 * SECOND_NS
    """A tenant's demand is known after this long."""
    pressed_ns: Duration = 2 * SECOND_NS
    """Offline work within this time may have caused a violation."""


class Feedback:
    """The adjuster of one device."""

    def __init__(
        self,
        limits: ControlLimits,
        online_ppm: int,
        sense: TrackerParameters | None = None,
        steps: FeedbackParameters | None = None,
        caution: FailureMemoryParameters | None = None,
    ) -> None:
        """Begin at the current online share."""
        self.online_ppm = online_ppm
        self._limits = limits
        self._sense = sense or TrackerParameters()
        self._steps = steps or FeedbackParameters()
        self._tracks: dict[int, LatencyTracker] = {}
        self._offline: dict[int, int] = {}
        self._growth: dict[int, float] = {}
        self._forecasts: Mapping[int, Forecast] = {}
        self._changed_ns: Instant = NEVER
        self._blind_until_ns: Instant = NEVER
        self._pressed_ns: Instant = NEVER
        self._late_ns: Instant = NEVER
        self._late_since_ns: Instant = NEVER
        self._failures = FailureMemory(caution or FailureMemoryParameters())
        self._in_a_row = 0
        self._is_beyond = False
        self._has_left = False
        self._why = "no window measured yet"

    # -- measurements ----------------------------------------------------------------------------------------------

    def step(self, window: DeviceWindow, forecasts: Mapping[int, Forecast], now: Instant) -> AdjustDecision | None:
        """Apply the first rule that holds: join, stricter objective, violation, load, near violation, headroom."""
        self._forget(window)
        is_first, newcomer, began = self._changed_ns == NEVER, self._meet(window, now), self._began(window, now)
        stricter = self._reaim(window, now)
        self._take(window, forecasts, now)
        if is_first:  # the tenants and the share precede this adjuster
            self._changed_ns = now
        elif newcomer is not None:
            return self._to(self._unseen_ppm(newcomer), AdjustCause.JOINED, _UNSEEN, now, newcomer)
        elif began:
            self._failures.forgive()
            return self._to(self._limits.max_online_ppm, AdjustCause.JOINED, "offline work began", now)
        elif stricter is not None and (more := self._stricter(stricter, now)):
            return more
        return self._up(now) or self._down(now)

    def needs(self) -> dict[int, int]:
        """Return what each tenant uses of the device, weighted by how close it is to missing its objective.

        Only where the offline share is at its minimum or no offline work runs: then peers delay each other, and
        dividing the
        device helps. Elsewhere it would only limit them.
        """
        if not self._is_beyond or len(self._tracks) < 2:
            return {}
        return {slot: self._need_of(track) for slot, track in self._tracks.items()}

    def _need_of(self, track: LatencyTracker) -> int:
        """Return a tenant's need relative to its peers; 0: not measured for long enough."""
        if track.age_ns < self._steps.met_ns or track.ended < self._steps.enough:
            return 0
        return max(round(1e6 * track.demand * (0.5 + min(track.fare().ratio, 1.5))), 1)

    def why(self) -> str:
        """Return the last change, or why there is none."""
        return self._why

    def _forget(self, window: DeviceWindow) -> None:
        """Forget tenants that left."""
        here = {tenant.slot: tenant.generation for tenant in window.tenants if tenant.promised}
        gone = [slot for slot, track in self._tracks.items() if here.get(slot) != track.generation]
        for slot in gone:
            del self._tracks[slot]
        if (
            len(self._tracks) < 2 and self.online_ppm < self._limits.max_online_ppm
        ):  # the peers that delayed it have left
            self._is_beyond = False
        self._has_left = self._has_left or bool(gone)

    def _meet(self, window: DeviceWindow, now: Instant) -> int | None:
        """Return the slot of a tenant that joined and whose need is unknown."""
        newcomer = None
        for tenant in window.tenants:
            if tenant.promised and tenant.slot not in self._tracks:
                self._tracks[tenant.slot] = LatencyTracker(tenant, self._limits, self._sense, now)
                newcomer = tenant.slot
                self._late_ns = NEVER  # it did not cause earlier violations
        return newcomer

    def _reaim(self, window: DeviceWindow, now: Instant) -> LatencyTracker | None:
        """Apply changed objectives; return a tenant whose objective became stricter.

        A failed share still counts if the objective is stricter and may suffice if it is looser. Peers that divide a
        device
        continue to.
        """
        stricter = None
        for tenant in window.tenants:
            track = self._tracks.get(tenant.slot) if tenant.promised else None
            if track is None or track.slo_ns == tenant.slo_ns:
                continue
            if tenant.slo_ns > track.slo_ns:
                self._failures.forgive()
            else:
                stricter = track
            track.aim_at(tenant.slo_ns)
            self._changed_ns, self._late_ns, self._in_a_row = now, NEVER, 0
            self._is_beyond = self._is_beyond and len(self._tracks) > 1
        return stricter

    def _began(self, window: DeviceWindow, now: Instant) -> bool:
        """Return whether offline work began whose effect on others is unknown.

        A share below the maximum at the beginning was found with the tenants that are present.
        """
        began, is_resumed = False, self._changed_ns == NEVER and self.online_ppm < self._limits.max_online_ppm
        for tenant in window.tenants:
            if tenant.online:
                continue
            if tenant.device_ns or tenant.waited_ns:
                self._pressed_ns = now
            if (tenant.device_ns or is_resumed) and self._offline.get(tenant.slot) != tenant.generation:
                self._offline[tenant.slot] = tenant.generation
                began = not is_resumed
        return began

    def _take(self, window: DeviceWindow, forecasts: Mapping[int, Forecast], now: Instant) -> None:
        self._forecasts = forecasts
        counts = now >= self._blind_until_ns
        span_ns = max(window.end_ns - window.begin_ns, 1)
        for tenant in window.tenants:
            track = self._tracks.get(tenant.slot) if tenant.promised else None
            if track is not None:
                track.take(tenant, span_ns, now, counts=counts)
                expected = track.forecast
                track.expect(forecasts[tenant.slot].load if tenant.slot in forecasts else None, span_ns)
                self._growth[tenant.slot] = track.growth(expected)

    def _is_pressed(self, now: Instant) -> bool:
        return self._pressed_ns != NEVER and now - self._pressed_ns <= self._steps.pressed_ns

    # -- raising -----------------------------------------------------------------------------------------------

    def _up(self, now: Instant) -> AdjustDecision | None:
        for track in self._tracks.values():
            more = self._loaded(track, now) or self._full(track, now)
            if more is not None:
                return more
        if now < self._blind_until_ns:
            return None
        harmed = [track for track in self._tracks.values() if track.is_harmed()]
        if harmed:
            return self._harmed(max(harmed, key=lambda track: track.fare().recent_ratio), now)
        near = next((track for track in self._tracks.values() if track.is_near()), None)
        if near is None or not self._is_pressed(now):
            return None
        up_ppm = max(round(self.online_ppm * self._steps.near_up), self.online_ppm + self._steps.min_change_ppm)
        up_ppm = min(up_ppm, self._tolerable_ppm())
        if up_ppm < self.online_ppm + self._steps.min_change_ppm:
            return None
        self._fail(now)
        return self._to(up_ppm, AdjustCause.NEAR_OBJECTIVE, self._describe(near), now, near.slot)

    def _stricter(self, track: LatencyTracker, now: Instant) -> AdjustDecision | None:
        """Return the increase for a stricter objective, from measurements with offline work or as for a new tenant."""
        online_ppm, detail = self._unseen_ppm(track.slot), _UNSEEN
        if track.requests >= self._steps.enough and self._is_pressed(now):
            fare, detail = track.fare(), self._describe(track)
            online_ppm = round(track.need(self.online_ppm, fare.ratio))
            if fare.tail.likely_ns <= track.slo_ns:
                online_ppm = min(online_ppm, self._tolerable_ppm())
        if online_ppm < self.online_ppm + self._steps.min_change_ppm:
            return None
        return self._to(online_ppm, AdjustCause.OBJECTIVE, detail, now, track.slot)

    def _unseen_ppm(self, slot: int) -> int:
        """Return the forecast need of a tenant without measurements, at least the current share; else the maximum."""
        need = self._forecasts[slot].need_ppm if slot in self._forecasts else None
        return self._limits.max_online_ppm if need is None else max(round(need.high), self.online_ppm)

    def _harmed(self, track: LatencyTracker, now: Instant) -> AdjustDecision | None:
        """Raise the share after a violation, unless no offline work ran or the share is at its maximum."""
        detail, steps = self._describe(track), self._steps
        if not self._is_pressed(now):
            return self._unpressed(track, detail, now)
        if self.online_ppm >= self._limits.max_online_ppm:
            track.evidence = 0.0
            if self._is_beyond or now - self._changed_ns < steps.beyond_ns:
                return None
            self._is_beyond = True
            self._why = f"{detail}, although the online share is at its maximum"
            return AdjustDecision(self.online_ppm, AdjustCause.UNREACHABLE, self._why, track.slot, track.generation)
        self._fail(now)
        self._in_a_row += 1
        online_ppm = self.online_ppm + (steps.up_ppm << min(self._in_a_row - 1, 5))
        if track.is_grave():
            online_ppm = max(online_ppm, round(self.online_ppm * min(track.fare().recent_ratio, steps.most_up)))
        return self._to(
            online_ppm, AdjustCause.STUCK if track.is_stuck() else AdjustCause.VIOLATED, detail, now, track.slot
        )

    def _unpressed(self, track: LatencyTracker, detail: str, now: Instant) -> AdjustDecision | None:
        """Handle a violation without offline work: more share would not help, but peers may delay each other."""
        track.evidence = 0.0
        if self._late_ns == NEVER or now - self._late_ns > self._steps.pressed_ns:
            self._late_since_ns = now
        self._late_ns = now
        self._why = f"{detail}, although no offline work ran"
        has_equal = any(one.priority == track.priority for one in self._tracks.values() if one is not track)
        if self._is_beyond or not has_equal or now - self._late_since_ns < self._steps.beyond_ns:
            return None
        self._is_beyond = True
        self._why += ": peers delay each other"
        return AdjustDecision(self.online_ppm, AdjustCause.UNREACHABLE, self._why, track.slot, track.generation)

    def _loaded(self, track: LatencyTracker, now: Instant) -> AdjustDecision | None:
        """Raise the share if more requests arrive or are forecast than it was measured with."""
        growth = self._growth.get(track.slot, 1.0)
        if growth <= 1 or not self._is_pressed(now):
            return None
        ratio = track.fare().ratio if track.requests >= self._steps.enough else 1.0
        need_ppm = min(round(track.need(self.online_ppm, min(ratio, 1.0), growth)), self._tolerable_ppm())
        if track.is_flooded() or track.active_with(growth) >= _STABLE:  # its queue would grow without bound
            need_ppm = self._limits.max_online_ppm
        track.load *= growth
        if need_ppm < self.online_ppm + self._steps.min_change_ppm:
            return None
        return self._to(need_ppm, AdjustCause.LOAD_INCREASED, f"{growth:.1f} times as many requests", now, track.slot)

    def _full(self, track: LatencyTracker, now: Instant) -> AdjustDecision | None:
        """Raise the share if a tenant is active all the time and its queue grows, before requests are late."""
        if not track.is_saturated() or not self._is_pressed(now) or self.online_ppm >= self._limits.max_online_ppm:
            return None
        online_ppm = max(round(self.online_ppm * self._steps.most_up), round(track.peak / _STABLE * WHOLE_PPM))
        detail = f"it is active all the time and a request has waited {round_duration(track.oldest_ns)}"
        return self._to(online_ppm, AdjustCause.SATURATED, detail, now, track.slot)

    def _fail(self, now: Instant) -> None:
        """Remember that this share failed, so that no smaller one is tried for a while."""
        if not any(track.is_surging() for track in self._tracks.values()):
            self._failures.fail(self.online_ppm, self._loads(), now)

    def _loads(self) -> dict[int, float]:
        return {slot: track.load for slot, track in self._tracks.items()}

    # -- lowering ----------------------------------------------------------------------------------------------------

    def _down(self, now: Instant) -> AdjustDecision | None:
        """Lower the share after a while, if offline work wants it and all tenants have shown headroom."""
        steps = self._steps
        tracks = [track for track in self._tracks.values() if not track.is_quiet(now)]
        if now < self._blind_until_ns or now - self._changed_ns < steps.dwell_ns or not self._is_pressed(now):
            return None
        if any(track.is_surging() for track in tracks):
            return None
        if not tracks or not all(track.requests >= steps.enough and track.is_calm() for track in tracks):
            return None
        self._in_a_row = 0
        strictest = max(tracks, key=lambda track: track.need(self.online_ppm, track.fare().ratio))
        need_ppm = round(strictest.need(self.online_ppm, strictest.fare().ratio))
        tolerable_ppm = self._tolerable_ppm()
        if all(track.fare().tail.likely_ns <= track.slo_ns * tolerable_ppm / WHOLE_PPM for track in tracks):
            need_ppm = min(need_ppm, tolerable_ppm)
        online_ppm = max(need_ppm, round(self.online_ppm * steps.most_down))
        ratio = max(track.fare().ratio for track in tracks)
        if ratio < steps.plainly and not self._failures.is_known(self._loads()):
            online_ppm = min(online_ppm, max(self._forecast_ppm(), round(self.online_ppm * ratio)))
        online_ppm = max(online_ppm, min(self._peak_ppm(tracks), self.online_ppm), self._limits.min_online_ppm)
        cause = AdjustCause.DEPARTED if self._has_left else AdjustCause.HEADROOM
        seen = min(track.requests for track in tracks)
        online_ppm, is_try = self._failures.reached(online_ppm, self.online_ppm, self._loads(), seen, now)
        cause = AdjustCause.PROBE if is_try else cause
        if self.online_ppm - online_ppm < steps.min_change_ppm and online_ppm > self._limits.min_online_ppm:
            return None
        if cause is AdjustCause.HEADROOM and strictest.is_eased:
            cause = AdjustCause.LOAD_DECREASED
        strictest.is_eased = False
        return self._to(
            online_ppm, cause, _latency_text(strictest, strictest.fare().tail.likely_ns), now, strictest.slot
        )

    def _peak_ppm(self, tracks: Sequence[LatencyTracker]) -> int:
        """Return the need of recent peaks, which may recur faster than the share could be raised again.

        As forecast, and at least the device time that they used.
        """
        asked_ppm = round(WHOLE_PPM * sum(track.peak for track in tracks))
        forecasts = [self._forecasts[track.slot].peak_ppm for track in tracks if track.slot in self._forecasts]
        return max([asked_ppm, *(min(ppm, self._tolerable_ppm()) for ppm in forecasts if ppm is not None)])

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

    def _to(
        self, online_ppm: int, cause: AdjustCause, detail: str, now: Instant, slot: int = -1
    ) -> AdjustDecision | None:
        online_ppm = min(max(online_ppm, self._limits.min_online_ppm), self._limits.max_online_ppm)
        if online_ppm == self.online_ppm:
            return None
        self._is_beyond = self._is_beyond and online_ppm >= self._limits.max_online_ppm
        self.online_ppm = online_ppm
        self._changed_ns = now
        self._has_left = False
        longest_ns = max((track.fare().tail.likely_ns for track in self._tracks.values()), default=0)
        blind_ns = min(max(self._steps.blind_ns, round(longest_ns)), self._steps.blindest_ns)
        self._blind_until_ns = now + blind_ns
        for track in self._tracks.values():
            track.begin_anew()
        self._why = detail
        generation = self._tracks[slot].generation if slot >= 0 else 0
        return AdjustDecision(online_ppm, cause, detail, slot, generation)

    def _describe(self, track: LatencyTracker) -> str:
        """Describe the latency, by all measurements at this share or by the latest, whichever is worse."""
        fare = track.fare()
        return _latency_text(track, max(fare.tail.likely_ns, fare.recent_ratio * track.aim_ns))


def _latency_text(track: LatencyTracker, latency_ns: float) -> str:
    """Describe a tail latency and the objective."""
    return (
        f"p{track.fraction * 100:g} {round_duration(round(latency_ns))} of its {round_duration(track.slo_ns)} objective"
    )
