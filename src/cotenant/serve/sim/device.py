"""Model of a shared device: when runs end if some hold units and others share the remaining ones.

A run that *holds* units (SMs by an MPS percentage, pinned cores) has the speed that was measured with that many units,
divided by `contention` while another run is active: what caches, memory bandwidth and clocks cost.

Runs that hold none (`units` of 0: a GPU under MPS without percentages, threads that are not pinned) share the remaining
units evenly. A run that cannot use its part (beyond the units where it gets no faster) leaves it to the others, and the
parts are computed again whenever a run starts or ends. This favours such sharing: real runs also queue for each other's
blocks. Concurrent processes of one model, measured on an A100, took the times that this model predicts.

The time of each run has a random factor of mean 1, normally distributed, cut at three standard deviations.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from cotenant.runner.sim_loop import SimLoop
from cotenant.serve.model.event import Run
from cotenant.serve.sim.run_speed import RunSpeeds
from cotenant.serve.sim.server import RunEnded
from cotenant.units.instant import Instant

_NOISE_LIMIT: Final = 3.0


class _ActiveRun:
    """An active run."""

    __slots__ = ("ends", "max_units", "remaining", "run", "speed", "speeds", "units", "useful_units")

    def __init__(self, run: Run, speeds: RunSpeeds, work: float, ends: RunEnded) -> None:
        self.run = run
        self.speeds = speeds
        self.remaining = work
        self.ends = ends
        self.max_units = float(speeds.max_units(run.rows))
        self.useful_units = float(speeds.knee_units(run.rows))
        self.units = float(run.units)
        self.speed = 0.0


class SharedDevice:
    """One device with accounting of its units."""

    def __init__(
        self,
        loop: SimLoop,
        models: Mapping[str, RunSpeeds],
        all_units: int,
        noise: float,
        seed: int,
        contention: float = 1.0,
    ) -> None:
        """Start idle. `noise` is the relative standard deviation of run times."""
        self._contention = contention
        self._loop = loop
        self._models = models
        self._all_units = all_units
        self._noise = noise
        self._rng = random.Random(seed)
        self._held_units = 0
        self._active: dict[int, _ActiveRun] = {}
        self._since: Instant = loop.now()
        self._epoch = 0
        self.used_unit_ns = dict.fromkeys(models, 0.0)
        """Units times time that each model's runs had."""
        self.useful_unit_ns = 0.0
        """The part of that time that runs could use: up to the knee for their rows."""

    def begin(self, run: Run, ends: RunEnded) -> None:
        """Start a run now."""
        now = self._loop.now()
        factor = 1.0
        if self._noise:
            factor += self._noise * min(max(self._rng.gauss(0.0, 1.0), -_NOISE_LIMIT), _NOISE_LIMIT)
        self.settle(now)
        self._active[run.run] = _ActiveRun(run, self._models[run.model], factor, ends)
        self._held_units += run.units
        self._divide(now)

    def settle(self, now: Instant) -> None:
        """Account for the time since the last change."""
        for_ns = now - self._since
        self._since = now
        if not for_ns:
            return
        for active in self._active.values():
            active.remaining -= active.speed * for_ns
            self.used_unit_ns[active.run.model] += active.units * for_ns
            self.useful_unit_ns += min(active.units, active.useful_units) * for_ns

    def _divide(self, now: Instant) -> None:
        """Compute the units and speeds of all runs, and when the first of them ends."""
        unshared = [active for active in self._active.values() if not active.run.units]
        free = max(self._all_units - self._held_units, 0)
        shares = even_shares([active.max_units for active in unshared], free)
        for active, units in zip(unshared, shares, strict=True):
            active.units = units
        slower = self._contention if len(self._active) > 1 else 1.0
        lasts_ns = float("inf")
        for active in self._active.values():
            active.speed = active.speeds.speed(active.run.rows, active.units) / slower
            if active.speed:
                lasts_ns = min(lasts_ns, max(active.remaining, 0.0) / active.speed)
        self._epoch += 1
        if lasts_ns != float("inf"):
            self._loop.at(now + max(round(lasts_ns), 1), self._run_ends, self._epoch)

    def _run_ends(self, number: int, now: Instant) -> None:
        if number != self._epoch:
            return  # the parts were computed again after this event was scheduled
        self.settle(now)
        ended = [
            active for active in self._active.values() if active.remaining <= active.speed
        ]  # less than a nanosecond of work remains
        for active in ended:
            del self._active[active.run.run]
            self._held_units -= active.run.units
        self._divide(now)
        for active in ended:
            active.ends(active.run, now)


def even_shares(limits: Sequence[float], total: float) -> list[float]:
    """Divide `total` evenly with an upper limit for each share; units that some cannot use go to the others."""
    shares = [0.0] * len(limits)
    remaining = float(total)
    order = sorted(range(len(limits)), key=lambda index: (limits[index], index))
    for done, index in enumerate(order):
        shares[index] = min(limits[index], remaining / (len(order) - done))
        remaining -= shares[index]
    return shares
