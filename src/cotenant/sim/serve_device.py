"""When do runs end on a device that is shared? Some hold units of it, some share the rest as they come.

A run that *holds* units goes at the speed that its model was measured to have with so many, whatever else runs: SMs of
its own by an MPS percentage, cores of its own by pinning. Memory bandwidth and caches are shared all the same, and that
is not in here.

Runs that hold none (`units` of 0: a GPU under MPS without percentages, threads that are not pinned) share what is not
held. Nobody waits: each gets an even part, those that cannot use theirs (past the units where they are no faster) leave
it to the others, and everybody is given anew whenever a run begins or ends. That is generous to such sharing: real runs
also queue for each other's blocks. Processes of one model, measured beside each other on an A100, took what this law
says (docs/lab-dstack.md).

How long one run takes differs from another by chance: a factor of mean 1, of the same normal law for all, cut at three
deviations.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from cotenant.domain.instant import Instant
from cotenant.domain.serving import Run
from cotenant.sim.loop import SimLoop
from cotenant.sim.physics.runs import RunSpeeds
from cotenant.sim.serve import RunEnds

_CUT: Final = 3.0


class _Going:
    """A run that has not ended."""

    __slots__ = ("ends", "left", "most_units", "run", "speed", "speeds", "units", "useful_units")

    def __init__(self, run: Run, speeds: RunSpeeds, work: float, ends: RunEnds) -> None:
        self.run = run
        self.speeds = speeds
        self.left = work
        self.ends = ends
        self.most_units = float(speeds.most_units(run.rows))
        self.useful_units = float(speeds.knee_units(run.rows))
        self.units = 0.0
        self.speed = 0.0


class SharedDevice:
    """One device; what was made of its units is counted."""

    def __init__(self, loop: SimLoop, models: Mapping[str, RunSpeeds], all_units: int, noise: float, seed: int) -> None:
        """Nothing runs. `noise` is the deviation of how long a run takes, of what it takes in the mean."""
        self._loop = loop
        self._models = models
        self._all_units = all_units
        self._noise = noise
        self._chance = random.Random(seed)
        self._holding = 0
        self._held: dict[int, _Going] = {}
        self._unshared: dict[int, _Going] = {}
        self._since: Instant = loop.now()
        self._round = 0
        self.had_ns = dict.fromkeys(models, 0.0)
        """Units that each model's runs had, over time."""
        self.useful_ns = 0.0
        """Of all these, what runs could put to use: up to the knee of their rows."""

    def begin(self, run: Run, ends: RunEnds) -> None:
        """From now on."""
        now = self._loop.now()
        factor = 1.0
        if self._noise:
            factor += self._noise * min(max(self._chance.gauss(0.0, 1.0), -_CUT), _CUT)
        going = _Going(run, self._models[run.model], factor, ends)
        if not run.units:
            self.settle(now)
            self._unshared[run.run] = going
            self._divide(now)
            return
        self.settle(now)
        going.units = float(run.units)
        took_ns = max(round(factor / going.speeds.speed(run.rows, run.units)), 1)
        self._held[run.run] = going
        self._holding += run.units
        self._divide(now)
        self._loop.at(now + took_ns, self._held_ends, going)

    def _held_ends(self, going: _Going, now: Instant) -> None:
        self.settle(now)
        del self._held[going.run.run]
        self._holding -= going.run.units
        self._divide(now)
        going.ends(going.run, now)

    def settle(self, now: Instant) -> None:
        """Count what was done since the last change."""
        for_ns = now - self._since
        self._since = now
        if not for_ns:
            return
        for one in self._held.values():
            self._count(one, for_ns)
        for one in self._unshared.values():
            one.left -= one.speed * for_ns
            self._count(one, for_ns)

    def _count(self, one: _Going, for_ns: int) -> None:
        self.had_ns[one.run.model] += one.units * for_ns
        self.useful_ns += min(one.units, one.useful_units) * for_ns

    def _divide(self, now: Instant) -> None:
        if not self._unshared:
            return
        runs = list(self._unshared.values())
        free = max(self._all_units - self._holding, 0)
        for one, units in zip(runs, even_parts([one.most_units for one in runs], free), strict=True):
            one.units = units
            one.speed = one.speeds.speed(one.run.rows, units)
        self._round += 1
        lasts_ns = min((max(one.left, 0.0) / one.speed for one in runs if one.speed), default=None)
        if lasts_ns is not None:
            self._loop.at(now + max(round(lasts_ns), 1), self._unshared_end, self._round)

    def _unshared_end(self, number: int, now: Instant) -> None:
        if number != self._round:
            return  # something changed meanwhile, and it was reckoned anew
        self.settle(now)
        over = [one for one in self._unshared.values() if one.left <= one.speed]  # less than a nanosecond of work
        for one in over:
            del self._unshared[one.run.run]
        self._divide(now)
        for one in over:
            one.ends(one.run, now)


def even_parts(most: Sequence[float], whole: float) -> list[float]:
    """An even part for each, but none more than its most; what some leave is for the others."""
    parts = [0.0] * len(most)
    left = float(whole)
    order = sorted(range(len(most)), key=lambda place: (most[place], place))
    for done, place in enumerate(order):
        parts[place] = min(most[place], left / (len(order) - done))
        left -= parts[place]
    return parts
