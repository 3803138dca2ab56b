"""Feedback: give back to online at once when it misses its objective, take slowly, and remember where it failed.

After each change it waits for evidence at the new share. A share that failed is not gone below again before a while,
twice as long each time (as CUBIC flattens around the window of its last loss): so in steady load it comes to rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cotenant.domain.control import Cause, ControlLimits, DeviceWindow
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import MILLISECOND_NS, NEVER, SECOND_NS, Duration, Instant
from cotenant.domain.value import Value
from cotenant.format.quantity import round_duration
from cotenant.policy.adjust.floor import Caution, Floors
from cotenant.policy.adjust.track import Sense, Track
from cotenant.policy.adjust.verdict import Foreseen, Verdict

_STABLE: Final = 0.85
"""Of what it keeps, what online work may ask of the device in the long run."""
_PERCENT: Final = 10_000
_UNSEEN: Final = "nobody knows yet what it needs"


class Steps(Value, frozen=True):
    """How far and how soon it goes. Our choices; docs/control.md says why these."""

    blind_ns: Duration = 200 * MILLISECOND_NS
    """What ended so soon after a change mostly began before it; longer where requests last longer."""
    blindest_ns: Duration = 5 * SECOND_NS
    dwell_ns: Duration = 500 * MILLISECOND_NS
    """So long it looks at least before it takes from online."""
    enough: int = 20
    """So many requests of each tenant it must have seen for that."""
    least_ppm: int = 2 * _PERCENT
    """A smaller change is none."""
    plainly: float = 0.6
    """A tail below this part of what is aimed at leaves so much room that what is foreseen may be believed."""
    most_down: float = 0.6
    """What is left of online's share at least, in one step down."""
    up_ppm: int = 5 * _PERCENT
    """What online gets back at least, the first time; twice as much each time in a row."""
    most_up: float = 2.0
    near_up: float = 1.08
    beyond_ns: Duration = 3 * SECOND_NS
    """With all that it may have online work misses its objective for so long, until it is said to be beyond reach."""
    met_ns: Duration = 2 * SECOND_NS
    """What a tenant uses of the device is known once it has been looked at for so long."""
    pressed_ns: Duration = 2 * SECOND_NS
    """Offline work this long ago may be what harms online work now."""


class Feedback:
    """One device's."""

    def __init__(
        self,
        limits: ControlLimits,
        online_ppm: int,
        sense: Sense | None = None,
        steps: Steps | None = None,
        caution: Caution | None = None,
    ) -> None:
        """Begin where it stands."""
        self.online_ppm = online_ppm
        self._limits = limits
        self._sense = sense or Sense()
        self._steps = steps or Steps()
        self._tracks: dict[int, Track] = {}
        self._offline: dict[int, int] = {}
        self._growth: dict[int, float] = {}
        self._foreseen: Mapping[int, Foreseen] = {}
        self._changed_ns: Instant = NEVER
        self._blind_until_ns: Instant = NEVER
        self._pressed_ns: Instant = NEVER
        self._late_ns: Instant = NEVER
        self._late_since_ns: Instant = NEVER
        self._floors = Floors(caution or Caution())
        self._in_a_row = 0
        self._is_beyond = False
        self._has_left = False
        self._why = "nothing was seen yet"

    # -- what is seen ----------------------------------------------------------------------------------------------

    def step(self, window: DeviceWindow, foreseen: Mapping[int, Foreseen], now: Instant) -> Verdict | None:
        """The first of these that holds: somebody came, less is allowed, harm, load, near harm, somebody left, room."""
        self._forget(window)
        is_first, newcomer, began = self._changed_ns == NEVER, self._meet(window, now), self._began(window, now)
        stricter = self._reaim(window, now)
        self._take(window, foreseen, now)
        if is_first:  # they were all here before us, and so was the share
            self._changed_ns = now
        elif newcomer is not None:
            return self._to(self._unseen_ppm(newcomer), Cause.JOINED, _UNSEEN, now, newcomer)
        elif began:
            self._floors.forgive()
            return self._to(self._limits.most_ppm, Cause.JOINED, "offline work began", now)
        elif stricter is not None and (more := self._stricter(stricter, now)):
            return more
        return self._up(now) or self._down(now)

    def needs(self) -> dict[int, int]:
        """What each uses of the device, more the nearer it is to missing its objective.

        Only where nothing can be taken from offline any more, or nothing runs of it: then it is each other that they
        harm, and dividing the device helps. Elsewhere it would only hold them back.
        """
        if not self._is_beyond or len(self._tracks) < 2:
            return {}
        return {slot: self._need_of(track) for slot, track in self._tracks.items()}

    def _need_of(self, track: Track) -> int:
        """In proportion to those of the others; 0 of one that has not been here for long enough to tell."""
        if track.age_ns < self._steps.met_ns or track.ended < self._steps.enough:
            return 0
        return max(round(1e6 * track.demand * (0.5 + min(track.fare().ratio, 1.5))), 1)

    def why(self) -> str:
        """The last change, or why there is none."""
        return self._why

    def _forget(self, window: DeviceWindow) -> None:
        """Whoever left has no say any more."""
        here = {tenant.slot: tenant.generation for tenant in window.tenants if tenant.promised}
        gone = [slot for slot, track in self._tracks.items() if here.get(slot) != track.generation]
        for slot in gone:
            del self._tracks[slot]
        if len(self._tracks) < 2 and self.online_ppm < self._limits.most_ppm:  # its equals harmed it: they are gone
            self._is_beyond = False
        self._has_left = self._has_left or bool(gone)

    def _meet(self, window: DeviceWindow, now: Instant) -> int | None:
        """The slot of somebody who came, of whom nobody knows yet what it needs."""
        newcomer = None
        for tenant in window.tenants:
            if tenant.promised and tenant.slot not in self._tracks:
                self._tracks[tenant.slot] = Track(tenant, self._limits, self._sense, now)
                newcomer = tenant.slot
                self._late_ns = NEVER  # who was late before it came was not harmed by it
        return newcomer

    def _reaim(self, window: DeviceWindow, now: Instant) -> Track | None:
        """Whoever is promised another latency is judged by it from now on; the answer is one to whom less is allowed.

        A share that failed still does if less is allowed; if more is, it may do. Equals that divide a device go on so.
        """
        stricter = None
        for tenant in window.tenants:
            track = self._tracks.get(tenant.slot) if tenant.promised else None
            if track is None or track.slo_ns == tenant.slo_ns:
                continue
            if tenant.slo_ns > track.slo_ns:
                self._floors.forgive()
            else:
                stricter = track
            track.aim_at(tenant.slo_ns)
            self._changed_ns, self._late_ns, self._in_a_row = now, NEVER, 0
            self._is_beyond = self._is_beyond and len(self._tracks) > 1
        return stricter

    def _began(self, window: DeviceWindow, now: Instant) -> bool:
        """Whether offline work began of which nobody knows yet what it does to others.

        A share that stands below the most when we begin was found beside those who are here.
        """
        began, is_resumed = False, self._changed_ns == NEVER and self.online_ppm < self._limits.most_ppm
        for tenant in window.tenants:
            if tenant.online:
                continue
            if tenant.device_ns or tenant.waited_ns:
                self._pressed_ns = now
            if (tenant.device_ns or is_resumed) and self._offline.get(tenant.slot) != tenant.generation:
                self._offline[tenant.slot] = tenant.generation
                began = not is_resumed
        return began

    def _take(self, window: DeviceWindow, foreseen: Mapping[int, Foreseen], now: Instant) -> None:
        self._foreseen = foreseen
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
        up_ppm = max(round(self.online_ppm * self._steps.near_up), self.online_ppm + self._steps.least_ppm)
        up_ppm = min(up_ppm, self._mild_ppm())
        if up_ppm < self.online_ppm + self._steps.least_ppm:
            return None
        self._fail(now)
        return self._to(up_ppm, Cause.NEAR, self._told(near), now, near.slot)

    def _stricter(self, track: Track, now: Instant) -> Verdict | None:
        """What its requests took beside offline work says what it needs now; before there are enough, it is as new."""
        online_ppm, told = self._unseen_ppm(track.slot), _UNSEEN
        if track.requests >= self._steps.enough and self._is_pressed(now):
            fare, told = track.fare(), self._told(track)
            online_ppm = round(track.need(self.online_ppm, fare.ratio))
            if fare.tail.likely_ns <= track.slo_ns:
                online_ppm = min(online_ppm, self._mild_ppm())
        if online_ppm < self.online_ppm + self._steps.least_ppm:
            return None
        return self._to(online_ppm, Cause.OBJECTIVE, told, now, track.slot)

    def _unseen_ppm(self, slot: int) -> int:
        """What somebody of whom nothing was seen is foreseen to need, never less than now; else all that there is."""
        need = self._foreseen[slot].need_ppm if slot in self._foreseen else None
        return self._limits.most_ppm if need is None else max(round(need.high), self.online_ppm)

    def _harmed(self, track: Track, now: Instant) -> Verdict | None:
        """Not blamed on offline work that did not run; at the most there is nothing left to give."""
        told, steps = self._told(track), self._steps
        if not self._is_pressed(now):
            return self._unpressed(track, told, now)
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

    def _unpressed(self, track: Track, told: str, now: Instant) -> Verdict | None:
        """Giving more to online would not help: equals that are harmed for so long harm each other."""
        track.evidence = 0.0
        if self._late_ns == NEVER or now - self._late_ns > self._steps.pressed_ns:
            self._late_since_ns = now
        self._late_ns = now
        self._why = f"{told}, though no offline work ran"
        has_equal = any(one.priority == track.priority for one in self._tracks.values() if one is not track)
        if self._is_beyond or not has_equal or now - self._late_since_ns < self._steps.beyond_ns:
            return None
        self._is_beyond = True
        self._why += ": equals harm each other"
        return Verdict(self.online_ppm, Cause.BEYOND_REACH, self._why, track.slot, track.generation)

    def _loaded(self, track: Track, now: Instant) -> Verdict | None:
        """More requests than those it was judged by come or are foreseen, and they would need more."""
        growth = self._growth.get(track.slot, 1.0)
        if growth <= 1 or not self._is_pressed(now):
            return None
        ratio = track.fare().ratio if track.requests >= self._steps.enough else 1.0
        need_ppm = min(round(track.need(self.online_ppm, min(ratio, 1.0), growth)), self._mild_ppm())
        if track.is_flooded() or track.active_with(growth) >= _STABLE:  # its queue would grow for as long as this lasts
            need_ppm = self._limits.most_ppm
        track.load *= growth
        if need_ppm < self.online_ppm + self._steps.least_ppm:
            return None
        return self._to(need_ppm, Cause.LOAD_UP, f"{growth:.1f} times the requests", now, track.slot)

    def _full(self, track: Track, now: Instant) -> Verdict | None:
        """What waits grows though it works all the time: nobody need be late to know what comes."""
        if not track.is_saturated() or not self._is_pressed(now) or self.online_ppm >= self._limits.most_ppm:
            return None
        online_ppm = max(round(self.online_ppm * self._steps.most_up), round(track.peak / _STABLE * WHOLE_PPM))
        told = f"it is active all the time, and a request waits for {round_duration(track.oldest_ns)} already"
        return self._to(online_ppm, Cause.SATURATED, told, now, track.slot)

    def _fail(self, now: Instant) -> None:
        """This share failed: nothing below it is tried before a while, twice as long each time."""
        if not any(track.is_surging() for track in self._tracks.values()):
            self._floors.fail(self.online_ppm, self._loads(), now)

    def _loads(self) -> dict[int, float]:
        return {slot: track.load for slot, track in self._tracks.items()}

    # -- taking ----------------------------------------------------------------------------------------------------

    def _down(self, now: Instant) -> Verdict | None:
        """Only after a while at this share, if offline wants it, and if everybody has shown that it may be."""
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
        mild_ppm = self._mild_ppm()
        if all(track.fare().tail.likely_ns <= track.slo_ns * mild_ppm / WHOLE_PPM for track in tracks):
            need_ppm = min(need_ppm, mild_ppm)
        online_ppm = max(need_ppm, round(self.online_ppm * steps.most_down))
        ratio = max(track.fare().ratio for track in tracks)
        if ratio < steps.plainly and not self._floors.is_known(self._loads()):
            online_ppm = min(online_ppm, max(self._foreseen_ppm(), round(self.online_ppm * ratio)))
        online_ppm = max(online_ppm, min(self._peak_ppm(tracks), self.online_ppm), self._limits.least_ppm)
        cause = Cause.LEFT if self._has_left else Cause.ROOM
        seen = min(track.requests for track in tracks)
        online_ppm, is_try = self._floors.reached(online_ppm, self.online_ppm, self._loads(), seen, now)
        cause = Cause.PROBE if is_try else cause
        if self.online_ppm - online_ppm < steps.least_ppm and online_ppm > self._limits.least_ppm:
            return None
        if cause is Cause.ROOM and strictest.is_eased:
            cause = Cause.LOAD_DOWN
        strictest.is_eased = False
        return self._to(online_ppm, cause, _said(strictest, strictest.fare().tail.likely_ns), now, strictest.slot)

    def _peak_ppm(self, tracks: Sequence[Track]) -> int:
        """What the peaks of late need: they come again, and sooner than anybody could give back what they take.

        As it is foreseen, or at least as much of the device as they asked for.
        """
        asked_ppm = round(WHOLE_PPM * sum(track.peak for track in tracks))
        foreseen = [self._foreseen[track.slot].peak_ppm for track in tracks if track.slot in self._foreseen]
        return max([asked_ppm, *(min(ppm, self._mild_ppm()) for ppm in foreseen if ppm is not None)])

    def _mild_ppm(self) -> int:
        """More than this only harm that was seen asks for, or a queue that grows: it helps hardly, and costs much."""
        milds = [self._foreseen[slot].mild_ppm if slot in self._foreseen else None for slot in self._tracks]
        most_ppm = self._limits.most_ppm
        return max((most_ppm if mild is None else mild for mild in milds), default=most_ppm)

    def _foreseen_ppm(self) -> int:
        """What everybody is foreseen to need at the most, in one step as long as nothing below is known to fail."""
        needs = [self._foreseen[slot].need_ppm if slot in self._foreseen else None for slot in self._tracks]
        known = [round(need.high) for need in needs if need is not None]
        return max(known) if len(known) == len(needs) else WHOLE_PPM

    # -- saying ----------------------------------------------------------------------------------------------------

    def _to(self, online_ppm: int, cause: Cause, detail: str, now: Instant, slot: int = -1) -> Verdict | None:
        online_ppm = min(max(online_ppm, self._limits.least_ppm), self._limits.most_ppm)
        if online_ppm == self.online_ppm:
            return None
        self._is_beyond = self._is_beyond and online_ppm >= self._limits.most_ppm
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
        return Verdict(online_ppm, cause, detail, slot, generation)

    def _told(self, track: Track) -> str:
        """How late it is, by all that was seen at this share or by the latest, whichever is worse."""
        fare = track.fare()
        return _said(track, max(fare.tail.likely_ns, fare.recent_ratio * track.aim_ns))


def _said(track: Track, latency_ns: float) -> str:
    """Figures for people."""
    return f"p{track.fraction * 100:g} {round_duration(round(latency_ns))} of {round_duration(track.slo_ns)}"
