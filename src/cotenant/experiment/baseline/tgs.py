"""Adaptive rate control as in TGS (NSDI '23): how fast opportunistic work launches follows what production work shows.

The idea is the paper's, the words and all constants are ours. The launches of online tenants are only counted: how many
there are per time in which a request is under way. That rate falls when others are in the way. Every period, offline
tenants may launch faster by a step while the rate is near the best one seen, and half as fast when it is not; until the
first time that it is not, twice as fast. Who launches for the first time finds offline tenants at their slowest again,
so that its best rate can be seen. Counting within requests alone is to its advantage: by the clock, a pause between
requests would look like harm done, and requests that queue up like none.
"""

from __future__ import annotations

from typing import Final

from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS
from cotenant.experiment.together import Outcome, Run, clients_of, live_through, world_of
from cotenant.sim.kernels_host import Door, Open

PERIOD_NS: Final = 100 * MILLISECOND_NS
_NEAR: Final = 0.95
"""Of the best rate seen: below it, production is held up."""
_BACK: Final = 0.5
_STEP: Final = 1 / 16
"""Of the rate at which production was last held up: what is added per period."""
_FORGET: Final = 0.9995
"""Of the best rate, what is left of it after a period: a service may come to have other requests."""
_SMOOTH: Final = 0.3
"""How much of the latest period's rate is new in the rate."""
_FIRST_PER_S: Final = 100.0
_MOST_PER_S: Final = 1e6


class ProductionDoor(Open):
    """Counts the launches of a tenant, and the time of its requests."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._launches = self._active_ns = 0
        self._since_ns = -1
        self._rate = self._best = 0.0
        self.is_new = False

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Yes."""
        del step, since_ns
        self._launches += 1
        if self._since_ns < 0:
            self._since_ns = now_ns
        return now_ns

    def drained(self, now_ns: int) -> bool:
        """A request is over."""
        self._active_ns += now_ns - self._since_ns
        self._since_ns = -1
        return False

    def health(self, now_ns: int) -> float:
        """The rate since the last look, smoothed, over the best there was; 1 where nothing was launched."""
        self.is_new = False
        if self._since_ns >= 0:
            self._active_ns += now_ns - self._since_ns
            self._since_ns = now_ns
        if self._active_ns <= 0:
            return 1.0
        rate = self._launches / self._active_ns
        self._launches = self._active_ns = 0
        self.is_new = not self._best
        self._rate = rate if not self._rate else self._rate + _SMOOTH * (rate - self._rate)
        self._best = max(self._best * _FORGET, self._rate)
        return self._rate / self._best if self._best else 0.0


class RateDoor(Open):
    """Lets the launches of a tenant pass at a rate."""

    sleeps = True

    def __init__(self) -> None:
        """Slowly at first."""
        self._next_ns = 0
        self.slow_down()

    def slow_down(self) -> None:
        """Begin anew."""
        self.rate_per_s = _FIRST_PER_S
        self._added = 0.0

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Yes if the last one is long enough ago."""
        del step, since_ns
        if now_ns < self._next_ns:
            return self._next_ns
        gap_ns = round(SECOND_NS / self.rate_per_s)
        # One that comes late may catch up a little: the nap before it was longer than it was meant to be.
        self._next_ns = max(self._next_ns, now_ns - PERIOD_NS // 10) + gap_ns
        return now_ns

    def adapt(self, health: float) -> None:
        """Additive increase, multiplicative decrease."""
        if health < _NEAR:
            self._added = self.rate_per_s * _STEP
            self.rate_per_s = max(self.rate_per_s * _BACK, 1.0)
        elif self._added:
            self.rate_per_s = min(self.rate_per_s + self._added, _MOST_PER_S)
        else:
            self.rate_per_s = min(self.rate_per_s * 2, _MOST_PER_S)


def tgs(run: Run) -> Outcome:
    """Where processes take turns by time slice: the paper's containers do not need MPS."""
    return _controlled("tgs", run, sliced=True)


def tgs_mps(run: Run) -> Outcome:
    """The same control under MPS."""
    return _controlled("tgs-mps", run, sliced=False)


def _controlled(way: str, run: Run, *, sliced: bool) -> Outcome:
    doors: list[Door] = [ProductionDoor() if guest.online else RateDoor() for guest in run.guests]
    production = [door for door in doors if isinstance(door, ProductionDoor)]
    held = [door for door in doors if isinstance(door, RateDoor)]

    def adapt(now_ns: int) -> None:
        health = min((door.health(now_ns) for door in production), default=1.0)
        is_new = any(door.is_new for door in production)
        for door in held:
            if is_new:
                door.slow_down()
            else:
                door.adapt(health)

    world = world_of(run, clients_of(run, sliced=sliced), doors)
    world.every(PERIOD_NS, adapt)
    return live_through(way, run, world)
