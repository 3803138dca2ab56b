"""What goes wrong in a cluster, and when? Nodes die and return or are cut off, GPUs fail, the brain is killed."""

from __future__ import annotations

from typing import Any

import numpy as np

from cotenant.domain.instant import Instant
from cotenant.format.scenario_cluster import FailuresConfig
from cotenant.sim.cluster import ClusterWorld
from cotenant.sim.cluster_brain import SimBrain
from cotenant.sim.loop import SimLoop


class ClusterFaults:
    """Instants of chance, each kind from a stream of its own; all of it is scheduled before the world begins."""

    def __init__(self, loop: SimLoop, world: ClusterWorld, brain: SimBrain) -> None:
        """Nothing is scheduled yet."""
        self._loop, self._world, self._brain = loop, world, brain
        self.counts = {"node_crashes": 0, "node_cuts": 0, "gpu_faults": 0, "brain_kills": 0}

    def schedule(self, config: FailuresConfig, seed: int, span_ns: int) -> None:
        """All that goes wrong within a span."""
        loop, world = self._loop, self._world
        nodes, gpus = len(world.down), world.fleet.count
        for when, place in _instants(seed, 11, int(config.node_crash), nodes, span_ns):
            loop.at(when, self._crash, (place, int(config.node_away)))
        for when, place in _instants(seed, 12, int(config.node_cut), nodes, span_ns):
            loop.at(when, self._cut, (place, int(config.cut_lasts)))
        for when, gpu in _instants(seed, 13, int(config.gpu_fault), gpus, span_ns):
            loop.at(when, self._fault, (gpu, int(config.gpu_away)))
        away_ns = int(config.brain_away)
        chance = np.random.default_rng([seed, 14])
        free_ns = max(span_ns - int(config.brain_kills) * away_ns, 1)
        kills = np.sort(chance.integers(1, free_ns + 1, int(config.brain_kills))).tolist()
        for number, when in enumerate(kills):
            loop.at(when + number * away_ns, self._kill, away_ns)

    def _crash(self, what: tuple[int, int], now: Instant) -> None:
        place, away_ns = what
        if not self._world.down[place]:
            self.counts["node_crashes"] += 1
            self._world.crash(place, now)
            self._loop.at(now + away_ns, self._back, place)

    def _back(self, place: int, now: Instant) -> None:
        self._world.come_back(place, now)

    def _cut(self, what: tuple[int, int], now: Instant) -> None:
        place, lasts_ns = what
        if self._world.cut[place]:
            return
        self.counts["node_cuts"] += 1
        self._world.cut[place] = True
        self._loop.at(now + lasts_ns, self._heal, place)

    def _heal(self, place: int, now: Instant) -> None:
        del now
        self._world.cut[place] = False

    def _fault(self, what: tuple[int, int], now: Instant) -> None:
        gpu, away_ns = what
        if not self._world.fleet.faulty[gpu]:
            self.counts["gpu_faults"] += 1
            self._world.fault(gpu, now, on=True)
            self._loop.at(now + away_ns, self._mend, gpu)

    def _mend(self, gpu: int, now: Instant) -> None:
        self._world.fault(gpu, now, on=False)

    def _kill(self, away_ns: int, now: Instant) -> None:
        self.counts["brain_kills"] += 1
        self._brain.kill(None, now)
        self._loop.at(now + away_ns, self._brain.start, None)


def _instants(seed: int, stream: int, mean_ns: int, count: int, span_ns: int) -> list[tuple[Instant, Any]]:
    """When it happens to which of so many, each of them so often in the mean; a mean of 0: never."""
    if not mean_ns:
        return []
    chance = np.random.default_rng([seed, stream])
    happens = int(chance.poisson(count * span_ns / mean_ns))
    whens = np.sort(chance.integers(1, span_ns + 1, happens)).tolist()
    return list(zip(whens, chance.integers(0, count, happens).tolist(), strict=True))
