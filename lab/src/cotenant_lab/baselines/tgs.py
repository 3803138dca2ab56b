"""Adaptive rate control as in TGS (NSDI '23): the launch rate of offline work follows the rate of online work.

The implementation is our own; the rules and constants are those of the paper's published implementation
(github.com/pkusys/TGS, hijack/src). What a program launches is counted in blocks. Online ("production") work is first
measured while offline ("opportunistic") work is held. Then offline work may launch a number of blocks per window of
50 ms. That number grows by half per period while the online rate is within 3 % of the measured one (slow start), and
after the first deviation by a small step, or shrinks by 8 %. At a deviation of 9 % it falls to a tenth. Without online
work, offline work is not limited.

Two things are ours. A period has 100 ms instead of 5 s, so that control settles within a simulated run. The online rate
is that of finished requests or steps, over their durations, instead of that over the clock. That makes no difference to
a training, for which TGS was built. For a service it favours this baseline: the number of arrivals would otherwise look
like interference. `cotenant-lab study baselines` compares the result with the paper's.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final

from cotenant.simulate.sharing import RunSpec, SharingOutcome, clients_of, simulate_run, simulation_of
from cotenant.softgpu.sim.host import LaunchGate, OpenGate
from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.load import Workload

PERIOD_NS: Final = 100 * MILLISECOND_NS
WINDOW_NS: Final = 50 * MILLISECOND_NS
"""The limit is a number of blocks per window."""
FIRST_BLOCKS: Final = 20_000
UNLIMITED_BLOCKS: Final = 2**40
_NEAR: Final = 0.03
"""At a greater deviation from the measured rate, online work counts as affected."""
_FAR: Final = 3 * _NEAR
_GROWTH: Final = 1.5
_STEP_OF_RATE: Final = 0.025
"""Additive increase per period, as a fraction of the online blocks per window."""
_STEP_LEAST: Final = 1000
_BACK: Final = 0.08
_RESTART: Final = 10
_PROFILED: Final = 5
"""Number of rates for which the online rate is measured, and that are kept."""
_CHANGED: Final = 0.2
"""When the recent rates differ by more than this from the measured one, it is measured again."""
_STALE: Final = (0.12, 20, 0.8)
"""After so many periods with this deviation, the measured rate is reduced by this factor."""
_IDLE: Final = 3
"""Periods without online work, of the last five, after which offline work is not limited."""
_REQUESTS_LEAST: Final = 4
_ACTIVE_LEAST_NS: Final = 300 * MILLISECOND_NS
"""A rate is that of at least this number of requests or steps, or of this duration of them: our choice."""


class ProductionCounter(OpenGate):
    """Counts the blocks that a tenant launches, and the time of its requests or steps."""

    def __init__(self, blocks: Sequence[int]) -> None:
        """Take the number of blocks of each launch."""
        self._blocks = blocks
        self._open_blocks = self._blocks_done = self._active_ns = self._requests = 0
        self._since_ns = -1
        self.was_active = False
        """Whether it has launched anything since the last call of `rate`."""

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Admit."""
        del since_ns
        if self._since_ns < 0:
            self._since_ns = now_ns
        self._open_blocks += self._blocks[step]
        self.was_active = True
        return now_ns

    def drained(self, now_ns: int) -> bool:
        """Handle the end of a request."""
        if self._since_ns >= 0:
            self._blocks_done += self._open_blocks
            self._active_ns += now_ns - self._since_ns
            self._requests += 1
        self._open_blocks, self._since_ns = 0, -1
        return False

    def rate(self) -> float:
        """Return blocks per window in the finished requests; 0 until there are enough of them."""
        self.was_active = self._since_ns >= 0
        is_enough = self._requests >= _REQUESTS_LEAST or self._active_ns >= _ACTIVE_LEAST_NS
        if not is_enough or not self._active_ns:
            return 0.0
        rate = self._blocks_done * WINDOW_NS / self._active_ns
        self._blocks_done = self._active_ns = self._requests = 0
        return rate


class RateControl:
    """Decides how many blocks offline work may launch per window, from the rates of one production tenant."""

    def __init__(self) -> None:
        """Hold offline work until the online rate is known."""
        self.limit = 0
        self._reference = 0.0
        self._recent: deque[float] = deque(maxlen=_PROFILED)
        self._active: deque[bool] = deque(maxlen=_PROFILED)
        self._to_profile = _PROFILED
        self._is_slow_start = True
        self._stale = 0

    def observe(self, rate: float, *, was_active: bool) -> None:
        """Handle the end of a period; `rate` is 0 if too little was measured."""
        self._active.append(was_active)
        if list(self._active).count(False) >= _IDLE:
            self.limit, self._is_slow_start = UNLIMITED_BLOCKS, True
            return
        if self.limit == UNLIMITED_BLOCKS:
            self._start()
        if not rate:
            return
        self._recent.append(rate)
        if self._to_profile:
            self._to_profile -= 1
            if not self._to_profile:
                self._reference = self._highest()
                self._start()
            return
        if self._has_changed():
            self._to_profile, self.limit = _PROFILED, 0
            self._recent.clear()
            return
        self._adapt(abs(rate - self._reference) / self._reference)

    def _start(self) -> None:
        self.limit, self._is_slow_start = (0 if self._to_profile else FIRST_BLOCKS), True

    def _highest(self) -> float:
        """Return the highest mean of two rates in succession."""
        rates = list(self._recent)
        pairs = [(first + second) / 2 for first, second in itertools.pairwise(rates)]
        return max(pairs or rates)

    def _has_changed(self) -> bool:
        """Return whether the online rate is another one now; follow it if it is slightly higher."""
        highest = self._highest()
        deviation = abs(highest / self._reference - 1)
        if deviation <= _CHANGED / 2:
            self._reference = max(self._reference, highest)
        return deviation > _CHANGED

    def _adapt(self, deviation: float) -> None:
        if self._is_slow_start:
            if deviation <= _NEAR:
                self.limit = min(round(self.limit * _GROWTH) + 1, UNLIMITED_BLOCKS - 1)
            else:
                self.limit, self._is_slow_start = round(self.limit / _GROWTH), False
        elif deviation <= _NEAR:
            step = max(round(self._reference * _STEP_OF_RATE), _STEP_LEAST)
            self.limit = min(self.limit + step, UNLIMITED_BLOCKS - 1)
        else:
            self.limit = max(self.limit - max(round(self.limit * _BACK), _STEP_LEAST), 0)
            if deviation >= _FAR:
                self.limit, self._is_slow_start = self.limit // _RESTART, True
        least, periods, factor = _STALE
        self._stale = self._stale + 1 if deviation >= least else 0
        if self._stale >= periods:
            self._reference *= factor
            self._stale, self.limit, self._is_slow_start = 0, self.limit // 2, True


class RateLimiter(OpenGate):
    """Admits the launches of a tenant until those of this window exceed a number of blocks."""

    sleeps = True

    def __init__(self, blocks: Sequence[int]) -> None:
        """Take the number of blocks of each launch."""
        self._blocks = blocks
        self._window = -1
        self._used = 0
        self.limit = 0

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Admit, or ask again in the next window. One launch per window always passes."""
        del since_ns
        window = now_ns // WINDOW_NS
        if window != self._window:
            self._window, self._used = window, 0
        if self._used > self.limit:
            return (window + 1) * WINDOW_NS
        self._used += self._blocks[step]
        return now_ns


def tgs(run: RunSpec) -> SharingOutcome:
    """Control under time slices: the paper's containers do not need MPS."""
    return _controlled("tgs", run, sliced=True)


def tgs_mps(run: RunSpec) -> SharingOutcome:
    """Control under MPS."""
    return _controlled("tgs-mps", run, sliced=False)


def _controlled(mode: str, run: RunSpec, *, sliced: bool) -> SharingOutcome:
    counters: list[ProductionCounter] = []
    limiters: list[RateLimiter] = []
    gates: list[LaunchGate] = []
    for guest in run.guests:
        blocks = _blocks(guest.load)
        if guest.online:
            counters.append(ProductionCounter(blocks))
            gates.append(counters[-1])
        else:
            limiters.append(RateLimiter(blocks))
            gates.append(limiters[-1])
    controls = [RateControl() for _ in counters]

    def adapt(now_ns: int) -> None:
        del now_ns
        for counter, control in zip(counters, controls, strict=True):
            was_active = counter.was_active
            control.observe(counter.rate(), was_active=was_active)
        limit = min((control.limit for control in controls), default=UNLIMITED_BLOCKS)
        for limiter in limiters:
            limiter.limit = limit

    simulation = simulation_of(run, clients_of(run, sliced=sliced), gates)
    simulation.every(PERIOD_NS, adapt)
    return simulate_run(mode, run, simulation)


def _blocks(load: Workload) -> list[int]:
    """Return the number of blocks of each launch; a graph is one launch with those of its kernels."""
    blocks = [max(launch.kernel.blocks, 1) for launch in load.launches]
    return [sum(blocks)] if load.graph else blocks
