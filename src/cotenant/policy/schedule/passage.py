"""How does one tenant come through the gate? Binds the gate's C code, driven as the hook drives it inside a process.

For each history of the last three pieces of work (a call that waits is one) a forecast of the host's next launch; a
wish for each launch; naps until the gate says yes. Nothing here knows a clock: instants are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant import _native
from cotenant.domain.instant import MICROSECOND_NS
from cotenant.domain.profile import VARIES
from cotenant.domain.value import Value
from cotenant.policy.schedule.roster import WritableBuffer

SHORT_NS: Final = 100 * MICROSECOND_NS
"""What may be submitted at once into a gap, CT_GATE_DEPTH_NS in native/gate/gate.h: no kernel is too risky below it."""


class Work(Value, frozen=True):
    """What is known of a piece of work before it is launched."""

    expect_ns: int
    sure_ns: int
    """It hardly takes longer."""
    may_fill: bool = True
    """Whether its time is certain enough to be put into a gap."""
    grain_ns: int = 0
    """A kernel above that comes waits no longer than this, because blocks give way one by one; 0: until it is over."""
    pieces: int = 1
    """Kernels in it."""


def grain_of(mean_ns: float, blocks: int, slots: int) -> int:
    """How long a block runs, as far as such blocks fill the device: it has slots for so many of them at once."""
    waves = max(-(-blocks // slots), 1) if slots else 1
    return max(round(mean_ns / waves * min(1.0, blocks / slots)), 1) if slots else 0


def work_of(mean_ns: float, p90_ns: float, p99_ns: float, grain_ns: int = 0) -> Work:
    """What a profile's quantiles make of it.

    A kernel that varies wildly goes only where twice its longest runs would fit, or these themselves if they are short:
    many kernels of a few microseconds vary so.
    """
    expect_ns = max(round(mean_ns), 1)  # none means that nobody knows
    hardly_ns = p90_ns if p99_ns <= VARIES * mean_ns else p99_ns if p99_ns <= SHORT_NS else 2 * p99_ns
    return Work(expect_ns, max(round(hardly_ns), expect_ns), grain_ns=grain_ns)


class Passage:
    """A tenant's process before the gate. `steps` says which work each of its launches is.

    Whether it must ask, and then confirm, may change with every roster.
    """

    confirms = True

    def __init__(
        self,
        file: WritableBuffer,
        seat: tuple[int, int],
        works: Sequence[Work],
        steps: Sequence[int],
        slo_ns: int = 0,
    ) -> None:
        """Take the seat, a slot and its generation; the file is the device's. Requests have an objective, or 0."""
        self._gate = _native.Gate(file, *seat)
        self._slo_ns = slo_ns
        self._works = [
            (work.expect_ns, work.sure_ns, (int(work.may_fill), work.grain_ns, work.pieces)) for work in works
        ]
        self._steps = steps
        self._base = len(works) + 2
        self._wait = len(works) + 1
        self._forecasts: dict[int, _native.Forecast] = {}
        self._key = 0
        self._last_ns = 0
        self._since_ns = -1
        self._asked_ns = 0
        self._wish = (0, 0, 0, 0, 0, 0, 1)
        self._passing = self._wish
        self._must_ask = True
        self.sleeps = self.looks = False
        self.confirms = self._gate.must_ask()

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """`now_ns`: it passes; later: ask again then, having slept (`sleeps`) or spun (`looks`)."""
        gate = self._gate
        if since_ns != self._since_ns:
            self._arrive(step, since_ns)
        elif self.looks:
            gate.spun(now_ns - self._asked_ns, now_ns)
        elif self.sleeps:
            gate.slept(now_ns - self._asked_ns)
        wish = self._wish
        self._must_ask = self.confirms = gate.must_ask()
        if not self._must_ask:
            gate.announce(wish, now_ns)
            return self._pass(now_ns)
        passes, reason, until_ns = gate.ask(wish, since_ns, now_ns)
        if passes:
            if now_ns > since_ns:
                gate.waited(since_ns, now_ns)
            return self._pass(now_ns)
        sleep_ns, spin_ns = gate.nap(reason, until_ns, now_ns)
        self._asked_ns = now_ns
        self.sleeps = sleep_ns > 0
        self.looks = not self.sleeps
        return max(sleep_ns or spin_ns, now_ns + 1)

    def submitted(self, now_ns: int) -> None:
        """The driver has taken what passed last."""
        if self._must_ask:
            self._gate.submitted(self._passing, True, now_ns)

    def ended(self, step: int, now_ns: int) -> None:
        """An event has shown the end of a launch that asked."""
        self._gate.confirmed(self._works[self._steps[step]][0], now_ns)

    def waits(self, now_ns: int) -> None:
        """Into a call that waits for all work."""
        self._key = self._after(self._wait)
        self._gate.rest(*self._foreseen(), False, now_ns)

    def drained(self, now_ns: int) -> bool:
        """Out of it; true when somebody sleeps, who is woken."""
        self._last_ns = now_ns
        self._gate.rest(*self._foreseen(), True, now_ns)
        return self._gate.has_sleepers(now_ns)

    def began(self, due_ns: int, now_ns: int) -> None:
        """A request is taken up, as `cotenant.request()` tells it: it is as old as its arrival."""
        self._gate.oldest(0, max(due_ns, 1), now_ns)

    def served(self, due_ns: int, now_ns: int) -> None:
        """It is over."""
        self._gate.oldest(max(due_ns, 1), 0, now_ns)
        self._gate.requested(now_ns - due_ns, self._slo_ns)

    def _arrive(self, step: int, now_ns: int) -> None:
        """A launch that has not asked before: learn how long the host took, and foresee its next one."""
        if self._last_ns:
            forecast = self._forecasts.get(self._key)
            if forecast is None:
                forecast = self._forecasts[self._key] = _native.Forecast()
            forecast.learn(max(now_ns - self._last_ns, 0))
        work = self._steps[step]
        self._key = self._after(work)
        expect_ns, sure_ns, how = self._works[work]
        self._wish = (expect_ns, sure_ns, *self._foreseen(), *how)
        self._since_ns = now_ns
        self.sleeps = self.looks = False

    def _pass(self, now_ns: int) -> int:
        self._passing = self._wish
        self._last_ns = now_ns
        self.sleeps = self.looks = False
        return now_ns

    def _after(self, work: int) -> int:
        """The history of three with this one as the latest."""
        return (self._key * self._base + work + 1) % self._base**3

    def _foreseen(self) -> tuple[int, int]:
        forecast = self._forecasts.get(self._key)
        return (0, 0) if forecast is None else (forecast.low_ns, forecast.high_ns)
