"""Adaptive rate control as in TGS (NSDI '23): the launch rate of offline work follows the rate of online work.

The idea is the paper's; the implementation and all constants are ours. Launches of online tenants are counted: launches
per time in which a request is in progress. That rate falls when other tenants interfere. Every period, offline tenants
may launch faster by a step while the rate is near the best one measured, and half as fast when it is not; until the
first decrease the rate doubles. When an online tenant launches for the first time, offline tenants restart at their
lowest rate, so that its best rate can be measured. Counting only within requests favours this baseline: by wall time, a
pause between requests would look like interference, and queued requests would not.
"""

from __future__ import annotations

from typing import Final

from cotenant.simulate.sharing import RunSpec, SharingOutcome, clients_of, simulate_run, simulation_of
from cotenant.softgpu.sim.host import LaunchGate, OpenGate
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS

PERIOD_NS: Final = 100 * MILLISECOND_NS
_NEAR: Final = 0.95
"""Fraction of the best rate; at a lower rate production work is slowed down."""
_BACK: Final = 0.5
_STEP: Final = 1 / 16
"""Increase per period, as a fraction of the rate at which production work was last slowed down."""
_FORGET: Final = 0.9995
"""Decay of the best rate per period, because a service's requests may change."""
_SMOOTH: Final = 0.3
"""Weight of the latest period in the smoothed rate."""
_FIRST_PER_S: Final = 100.0
_MOST_PER_S: Final = 1e6


class ProductionCounter(OpenGate):
    """Counts the launches of a tenant, and the time of its requests."""

    def __init__(self) -> None:
        """Start with empty counters."""
        self._launches = self._active_ns = 0
        self._since_ns = -1
        self._rate = self._best = 0.0
        self.is_new = False

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Admit."""
        del step, since_ns
        self._launches += 1
        if self._since_ns < 0:
            self._since_ns = now_ns
        return now_ns

    def drained(self, now_ns: int) -> bool:
        """Handle the end of a request."""
        self._active_ns += now_ns - self._since_ns
        self._since_ns = -1
        return False

    def health(self, now_ns: int) -> float:
        """Return the smoothed rate since the last call over the best rate; 1 without launches."""
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


class RateLimiter(OpenGate):
    """Admits the launches of a tenant at a limited rate."""

    sleeps = True

    def __init__(self) -> None:
        """Start at the lowest rate."""
        self._next_ns = 0
        self.slow_down()

    def slow_down(self) -> None:
        """Restart at the lowest rate."""
        self.rate_per_s = _FIRST_PER_S
        self._added = 0.0

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Admit if the last launch is long enough ago."""
        del step, since_ns
        if now_ns < self._next_ns:
            return self._next_ns
        gap_ns = round(SECOND_NS / self.rate_per_s)
        # A late launch may catch up a little: the wait before it was longer than intended.
        self._next_ns = max(self._next_ns, now_ns - PERIOD_NS // 10) + gap_ns
        return now_ns

    def adapt(self, health: float) -> None:
        """Apply additive increase or multiplicative decrease."""
        if health < _NEAR:
            self._added = self.rate_per_s * _STEP
            self.rate_per_s = max(self.rate_per_s * _BACK, 1.0)
        elif self._added:
            self.rate_per_s = min(self.rate_per_s + self._added, _MOST_PER_S)
        else:
            self.rate_per_s = min(self.rate_per_s * 2, _MOST_PER_S)


def tgs(run: RunSpec) -> SharingOutcome:
    """Control under time slices: the paper's containers do not need MPS."""
    return _controlled("tgs", run, sliced=True)


def tgs_mps(run: RunSpec) -> SharingOutcome:
    """Control under MPS."""
    return _controlled("tgs-mps", run, sliced=False)


def _controlled(mode: str, run: RunSpec, *, sliced: bool) -> SharingOutcome:
    gates: list[LaunchGate] = [ProductionCounter() if guest.online else RateLimiter() for guest in run.guests]
    production = [gate for gate in gates if isinstance(gate, ProductionCounter)]
    limiters = [gate for gate in gates if isinstance(gate, RateLimiter)]

    def adapt(now_ns: int) -> None:
        health = min((gate.health(now_ns) for gate in production), default=1.0)
        is_new = any(gate.is_new for gate in production)
        for gate in limiters:
            if is_new:
                gate.slow_down()
            else:
                gate.adapt(health)

    simulation = simulation_of(run, clients_of(run, sliced=sliced), gates)
    simulation.every(PERIOD_NS, adapt)
    return simulate_run(mode, run, simulation)
