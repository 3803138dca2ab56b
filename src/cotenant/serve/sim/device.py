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
        for one in self._held.values():
            self._count(one, for_ns)
        for one in self._unshared.values():
            one.remaining -= one.speed * for_ns
            self._count(one, for_ns)

    def _count(self, one: _ActiveRun, for_ns: int) -> None:
        self.used_unit_ns[one.run.model] += one.units * for_ns
        self.useful_unit_ns += min(one.units, one.useful_units) * for_ns

    def _divide(self, now: Instant) -> None:
        if not self._unshared:
            return
        runs = list(self._unshared.values())
        free = max(self._all_units - self._held_units, 0)
        for one, units in zip(runs, even_shares([one.max_units for one in runs], free), strict=True):
            one.units = units
            one.speed = one.speeds.speed(one.run.rows, units)
        self._epoch += 1
        lasts_ns = min((max(one.remaining, 0.0) / one.speed for one in runs if one.speed), default=None)
        if lasts_ns is not None:
            self._loop.at(now + max(round(lasts_ns), 1), self._unshared_end, self._epoch)

    def _unshared_end(self, number: int, now: Instant) -> None:
        if number != self._epoch:
            return  # the parts were computed again after this event was scheduled
        self.settle(now)
        over = [
            one for one in self._unshared.values() if one.remaining <= one.speed
        ]  # less than a nanosecond of work remains
        for one in over:
            del self._unshared[one.run.run]
        self._divide(now)
        for one in over:
            one.ends(one.run, now)


def even_shares(most: Sequence[float], whole: float) -> list[float]:
    """Divide evenly with an upper limit for each; what some leave goes to the others."""
    parts = [0.0] * len(most)
    remaining = float(whole)
    order = sorted(range(len(most)), key=lambda place: (most[place], place))
    for done, place in enumerate(order):
        parts[place] = min(most[place], remaining / (len(order) - done))
        remaining -= parts[place]
    return parts
