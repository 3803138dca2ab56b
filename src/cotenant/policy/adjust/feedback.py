"""Feedback: give back to online at once when it misses its objective, take slowly, and remember where it failed.

After each change it waits for evidence at the new share. A share that failed is not gone below again before a while,
twice as long each time (as CUBIC flattens around the window of its last loss): so in steady load it comes to rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cotenant.domain.control import Cause, ControlLimits, DeviceWindow
from cotenant.domain.instant import MILLISECOND_NS, NEVER, SECOND_NS, Duration, Instant
from cotenant.domain.value import Value
from cotenant.policy.adjust.track import Sense, Track
from cotenant.policy.adjust.verdict import Foreseen, Verdict

_PERCENT: Final = 10_000


class Steps(Value, frozen=True):
    """How far and how soon it goes. Our choices; docs/control.md says why these."""

    blind_ns: Duration = 200 * MILLISECOND_NS
    """What ended so soon after a change mostly began before it; longer where requests last longer."""
    blindest_ns: Duration = 5 * SECOND_NS
    dwell_ns: Duration = SECOND_NS
    """So long it looks at least before it takes from online."""
    enough: int = 20
    """So many requests of each tenant it must have seen for that."""
    least_ppm: int = 2 * _PERCENT
    """A smaller change is none."""
    most_down: float = 0.6
    """What is left of online's share at least, in one step down."""
    up_ppm: int = 5 * _PERCENT
    """What online gets back at least, the first time; twice as much each time in a row."""
    most_up: float = 2.0
    near_up: float = 1.08
    margin_ppm: int = 2 * _PERCENT
    """So far above the share that failed it stays."""
    probe_ns: Duration = 10 * SECOND_NS
    """So long a share that failed is not tried again; twice as long each time that it fails."""
    probe_most_ns: Duration = 1280 * SECOND_NS
    proven: int = 100
    """So many requests without harm make a share that failed one that does not."""
    beyond_ns: Duration = 3 * SECOND_NS
    """With all that it may have online work misses its objective for so long, until it is said to be beyond reach."""
    pressed_ns: Duration = 2 * SECOND_NS
    """Offline work this long ago may be what harms online work now."""


class Feedback:
    """One device's."""

    def __init__(
        self, limits: ControlLimits, online_ppm: int, sense: Sense | None = None, steps: Steps | None = None
    ) -> None:
        """Begin where it stands."""
        self.online_ppm = online_ppm
        self._limits = limits
        self._sense = sense or Sense()
        self._steps = steps or Steps()
        self._tracks: dict[int, Track] = {}
        self._offline: dict[int, int] = {}
        self._growth: dict[int, float] = {}
        self._changed_ns: Instant = NEVER
        self._blind_until_ns: Instant = NEVER
        self._pressed_ns: Instant = NEVER
        self._floor_ppm = 0
        self._failures = 0
        self._try_ns: Instant = NEVER
        self._in_a_row = 0
        self._is_beyond = False
        self._why = "nothing was seen yet"

    # -- what is seen ----------------------------------------------------------------------------------------------

    def step(self, window: DeviceWindow, foreseen: Mapping[int, Foreseen], now: Instant) -> Verdict | None:
        """The first of these that holds: somebody came, harm, more load, near harm, somebody left, room."""
        if self._changed_ns == NEVER:
            self._changed_ns = now
        left = self._forget(window)
        came = self._meet(window, foreseen, now)
        self._take(window, foreseen, now)
        if came is not None:
            return came
        return self._up(now) or self._down(now, left=left)

    def needs(self) -> dict[int, int]:
        """What each uses of the device, more if its objective is nearly missed."""
        if len(self._tracks) < 2:
            return {}
        return {
            slot: round(1e6 * track.demand * (0.5 + min(track.fare().ratio, 1.5)))
            for slot, track in self._tracks.items()
        }

    def why(self) -> str:
        """The last change, or why there is none."""
        return self._why

    def _forget(self, window: DeviceWindow) -> bool:
        """Whether somebody left whose objective counted."""
        here = {tenant.slot: tenant.generation for tenant in window.tenants if tenant.promised}
        gone = [slot for slot, track in self._tracks.items() if here.get(slot) != track.generation]
        for slot in gone:
            del self._tracks[slot]
        return bool(gone)

    def _meet(self, window: DeviceWindow, foreseen: Mapping[int, Foreseen], now: Instant) -> Verdict | None:
        """Nobody knows what a newcomer needs, or does to others: online keeps as much as it may until that is seen."""
        verdict = None
        for tenant in window.tenants:
            if tenant.promised:
                if tenant.slot not in self._tracks:
                    self._tracks[tenant.slot] = Track(tenant, self._limits, self._sense, now)
                    need = foreseen[tenant.slot].need_ppm if tenant.slot in foreseen else None
                    high_ppm = self._limits.most_ppm if need is None else round(need.high)
                    verdict = self._to(max(high_ppm, self.online_ppm), Cause.JOINED, "it is new here", now, tenant.slot)
            elif tenant.device_ns and not tenant.online:
                self._pressed_ns = now
                if self._offline.get(tenant.slot) != tenant.generation:
                    self._offline[tenant.slot] = tenant.generation
                    self._forgive()
                    verdict = verdict or self._to(self._limits.most_ppm, Cause.JOINED, "offline work began", now)
            elif tenant.waited_ns and not tenant.online:
                self._pressed_ns = now
        return verdict

    def _take(self, window: DeviceWindow, foreseen: Mapping[int, Foreseen], now: Instant) -> None:
        counts = now >= self._blind_until_ns
        span_ns = max(window.end_ns - window.begin_ns, 1)
        for tenant in window.tenants:
            track = self._tracks.get(tenant.slot) if tenant.promised else None
            if track is not None:
                track.take(tenant, span_ns, now, counts=counts)
                expected = track.foreseen
                track.expect(foreseen[tenant.slot].load if tenant.slot in foreseen else None, span_ns)
                self._growth[tenant.slot] = track.growth(expected)

    def _is_pressed(self, now: Instant) -> bool:
        return self._pressed_ns != NEVER and now - self._pressed_ns <= self._steps.pressed_ns

    # -- giving back -----------------------------------------------------------------------------------------------

    def _up(self, now: Instant) -> Verdict | None:
        if now < self._blind_until_ns:
            return None
        harmed = [track for track in self._tracks.values() if track.is_harmed()]
        if harmed:
            return self._harmed(max(harmed, key=lambda track: track.fare().recent_ratio), now)
        for track in self._tracks.values():
            more = self._loaded(track, now)
            if more is not None:
                return more
        near = next((track for track in self._tracks.values() if track.is_near()), None)
        if near is None or not self._is_pressed(now) or self.online_ppm >= self._limits.most_ppm:
            return None
        self._fail(now)
        up_ppm = max(round(self.online_ppm * self._steps.near_up), self.online_ppm + self._steps.margin_ppm)
        return self._to(up_ppm, Cause.NEAR, self._told(near), now, near.slot)

    def _harmed(self, track: Track, now: Instant) -> Verdict | None:
        """Not blamed on offline work that did not run; at the most there is nothing left to give."""
        if not self._is_pressed(now):
            track.evidence = 0.0
            self._why = f"{self._told(track)}, though no offline work ran"
            return None
        told, steps = self._told(track), self._steps
        if self.online_ppm >= self._limits.most_ppm:
            track.evidence = 0.0
            if self._is_beyond or now - self._changed_ns < steps.beyond_ns:
                return None
            self._is_beyond = True
            self._why = f"{told}, though online keeps all that it may"
            return Verdict(self.online_ppm, Cause.BEYOND_REACH, self._why, track.slot, track.generation)
        self._fail(now)
        self._in_a_row += 1
        online_ppm = self.online_ppm + (steps.up_ppm << min(self._in_a_row - 1, 5))
        if track.is_grave():
            online_ppm = max(online_ppm, round(self.online_ppm * min(track.fare().recent_ratio, steps.most_up)))
        return self._to(online_ppm, Cause.STUCK if track.is_stuck() else Cause.VIOLATED, told, now, track.slot)

    def _loaded(self, track: Track, now: Instant) -> Verdict | None:
        """More requests than those it was judged by come or are foreseen, and they would need more."""
        growth = self._growth.get(track.slot, 1.0)
        if growth <= 1 or not self._is_pressed(now):
            return None
        ratio = track.fare().ratio if track.requests >= self._steps.enough else 1.0
        need_ppm = round(track.need(self.online_ppm, min(ratio, 1.0), growth))
        track.load *= growth
        if need_ppm < self.online_ppm + self._steps.least_ppm:
            return None
        return self._to(need_ppm, Cause.LOAD_UP, f"{growth:.1f} times the requests", now, track.slot)

    def _fail(self, now: Instant) -> None:
        """This share failed: nothing below it is tried before a while, twice as long each time."""
        self._failures += 1
        self._floor_ppm = self.online_ppm
        self._try_ns = now + self._patience()

    def _patience(self) -> Duration:
        return min(self._steps.probe_ns << min(max(self._failures - 1, 0), 16), self._steps.probe_most_ns)

    def _forgive(self) -> None:
        """It is another device by now: what failed before may do."""
        self._failures = self._floor_ppm = 0
        self._try_ns = NEVER

    # -- taking ----------------------------------------------------------------------------------------------------

    def _down(self, now: Instant, *, left: bool) -> Verdict | None:
        """Only after a while at this share, if offline wants it, and if everybody has shown that it may be."""
        steps = self._steps
        tracks = [track for track in self._tracks.values() if not track.is_quiet(now)]
        if now < self._blind_until_ns or now - self._changed_ns < steps.dwell_ns or not self._is_pressed(now):
            return None
        if not tracks or not all(track.requests >= steps.enough and track.is_calm() for track in tracks):
            return None
        self._in_a_row = 0
        strictest = max(tracks, key=lambda track: track.need(self.online_ppm, track.fare().ratio))
        need_ppm = round(strictest.need(self.online_ppm, strictest.fare().ratio))
        online_ppm = max(need_ppm, round(self.online_ppm * steps.most_down), self._limits.least_ppm)
        cause = Cause.LEFT if left else Cause.ROOM
        if self._failures:
            online_ppm, cause = self._above_floor(online_ppm, cause, min(track.requests for track in tracks), now)
        if self.online_ppm - online_ppm < steps.least_ppm:
            return None
        if cause is Cause.ROOM and strictest.is_eased:
            cause = Cause.LOAD_DOWN
        strictest.is_eased = False
        return self._to(online_ppm, cause, self._told(strictest), now, strictest.slot)

    def _above_floor(self, online_ppm: int, cause: Cause, seen: float, now: Instant) -> tuple[int, Cause]:
        """Half of the way to what failed, then rest; once in a while one small step below, and on if that holds."""
        steps = self._steps
        rest_ppm = self._floor_ppm + steps.margin_ppm
        if self.online_ppm > rest_ppm + steps.margin_ppm:
            return max(online_ppm, (self.online_ppm + rest_ppm) // 2), cause
        if now < self._try_ns or seen < steps.proven:
            return self.online_ppm, cause
        if self.online_ppm <= self._floor_ppm:  # what was tried last holds
            self._try_ns = now + self._patience()
        self._floor_ppm = max(online_ppm, self.online_ppm - 2 * steps.margin_ppm)
        return self._floor_ppm, Cause.PROBE

    # -- saying ----------------------------------------------------------------------------------------------------

    def _to(self, online_ppm: int, cause: Cause, detail: str, now: Instant, slot: int = -1) -> Verdict | None:
        online_ppm = min(max(online_ppm, self._limits.least_ppm), self._limits.most_ppm)
        if online_ppm == self.online_ppm:
            return None
        self._is_beyond = self._is_beyond and online_ppm >= self._limits.most_ppm
        self.online_ppm = online_ppm
        self._changed_ns = now
        longest_ns = max((track.fare().tail.likely_ns for track in self._tracks.values()), default=0)
        blind_ns = min(max(self._steps.blind_ns, round(longest_ns)), self._steps.blindest_ns)
        self._blind_until_ns = now + blind_ns
        for track in self._tracks.values():
            track.begin_anew()
        self._why = detail
        generation = self._tracks[slot].generation if slot >= 0 else 0
        return Verdict(online_ppm, cause, detail, slot, generation)

    def _told(self, track: Track) -> str:
        """Figures for people."""
        fare = track.fare()
        latency_ns = max(fare.tail.likely_ns, fare.recent_ratio * track.aim_ns)
        return f"p{track.fraction * 100:g} {latency_ns / 1e6:.3g}ms of {track.slo_ns / 1e6:g}ms"
