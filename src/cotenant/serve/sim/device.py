"""Model of a shared device: when runs end if some hold units and others share the remaining ones.

A run that *holds* units (SMs by an MPS percentage, pinned cores) has the speed that was measured with that many units,
whatever else runs. Contention for memory bandwidth and caches is not modelled.

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
        self.units = 0.0
        self.speed = 0.0


class SharedDevice:
    """One device with accounting of its units."""

    def __init__(self, loop: SimLoop, models: Mapping[str, RunSpeeds], all_units: int, noise: float, seed: int) -> None:
        """Start idle. `noise` is the relative standard deviation of run times."""
        self._loop = loop
        self._models = models
        self._all_units = all_units
        self._noise = noise
        self._rng = random.Random(seed)
        self._held_units = 0
        self._held: dict[int, _ActiveRun] = {}
        self._unshared: dict[int, _ActiveRun] = {}
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
        active = _ActiveRun(run, self._models[run.model], factor, ends)
        if not run.units:
            self.settle(now)
            self._unshared[run.run] = active
            self._divide(now)
            return
        self.settle(now)
        active.units = float(run.units)
        took_ns = max(round(factor / active.speeds.speed(run.rows, run.units)), 1)
        self._held[run.run] = active
        self._held_units += run.units
        self._divide(now)
        self._loop.at(now + took_ns, self._held_ends, active)

    def _held_ends(self, active: _ActiveRun, now: Instant) -> None:
        self.settle(now)
        del self._held[active.run.run]
        self._held_units -= active.run.units
        self._divide(now)
        active.ends(active.run, now)

    def settle(self, now: Instant) -> None:
        """Account for the time since the last change."""
        for_ns = now - self._since
        self._since = now
        if not for_ns:
            return
        for active in self._held.values():
            self._count(active, for_ns)
        for active in self._unshared.values():
            active.remaining -= active.speed * for_ns
            self._count(active, for_ns)

    def _count(self, active: _ActiveRun, for_ns: int) -> None:
        self.used_unit_ns[active.run.model] += active.units * for_ns
        self.useful_unit_ns += min(active.units, active.useful_units) * for_ns

    def _divide(self, now: Instant) -> None:
        if not self._unshared:
            return
        runs = list(self._unshared.values())
        free = max(self._all_units - self._held_units, 0)
        for active, units in zip(runs, even_shares([active.max_units for active in runs], free), strict=True):
            active.units = units
            active.speed = active.speeds.speed(active.run.rows, units)
        self._epoch += 1
        lasts_ns = min((max(active.remaining, 0.0) / active.speed for active in runs if active.speed), default=None)
        if lasts_ns is not None:
            self._loop.at(now + max(round(lasts_ns), 1), self._unshared_end, self._epoch)

    def _unshared_end(self, number: int, now: Instant) -> None:
        if number != self._epoch:
            return  # the parts were computed again after this event was scheduled
        self.settle(now)
        ended = [
            active for active in self._unshared.values() if active.remaining <= active.speed
        ]  # less than a nanosecond of work remains
        for active in ended:
            del self._unshared[active.run.run]
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
