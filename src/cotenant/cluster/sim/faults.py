"""Injected faults of a simulated cluster: node crashes and network cuts, GPU faults, controller kills."""

from __future__ import annotations

from typing import Any

import numpy as np

from cotenant.cluster.sim.cluster import SimCluster
from cotenant.cluster.sim.controller import SimController
from cotenant.cluster.sim.scenario import FailuresConfig
from cotenant.runner.sim_loop import SimLoop
from cotenant.units.instant import Instant


class ClusterFaults:
    """Random faults, each kind from its own random stream, all scheduled before the simulation starts."""

    def __init__(self, loop: SimLoop, world: SimCluster, controller: SimController) -> None:
        """Schedule nothing yet."""
        self._loop, self._world, self._controller = loop, world, controller
        self.counts = {"node_crashes": 0, "node_cuts": 0, "gpu_faults": 0, "controller_kills": 0}

    def schedule(self, config: FailuresConfig, seed: int, span_ns: int) -> None:
        """Schedule all faults within a span."""
        loop, world = self._loop, self._world
        nodes, gpus = len(world.down), world.fleet.count
        for when, node in _instants(seed, 11, int(config.node_crash), nodes, span_ns):
            loop.at(when, self._crash, (node, int(config.node_downtime)))
        for when, node in _instants(seed, 12, int(config.node_cut), nodes, span_ns):
            loop.at(when, self._cut, (node, int(config.cut_duration)))
        for when, gpu in _instants(seed, 13, int(config.gpu_fault), gpus, span_ns):
            loop.at(when, self._fault, (gpu, int(config.gpu_downtime)))
        downtime_ns = int(config.controller_downtime)
        rng = np.random.default_rng([seed, 14])
        free_ns = max(span_ns - int(config.controller_kills) * downtime_ns, 1)
        kills = np.sort(rng.integers(1, free_ns + 1, int(config.controller_kills))).tolist()
        for number, when in enumerate(kills):
            loop.at(when + number * downtime_ns, self._kill, downtime_ns)

    def _crash(self, fault: tuple[int, int], now: Instant) -> None:
        node, downtime_ns = fault
        if not self._world.down[node]:
            self.counts["node_crashes"] += 1
            self._world.crash(node, now)
            self._loop.at(now + downtime_ns, self._restart, node)

    def _restart(self, node: int, now: Instant) -> None:
        self._world.restart(node, now)

    def _cut(self, fault: tuple[int, int], now: Instant) -> None:
        node, lasts_ns = fault
        if self._world.cut[node]:
            return
        self.counts["node_cuts"] += 1
        self._world.cut[node] = True
        self._loop.at(now + lasts_ns, self._heal, node)

    def _heal(self, node: int, now: Instant) -> None:
        del now
        self._world.cut[node] = False

    def _fault(self, fault: tuple[int, int], now: Instant) -> None:
        gpu, downtime_ns = fault
        if not self._world.fleet.faulty[gpu]:
            self.counts["gpu_faults"] += 1
            self._world.fault(gpu, now, on=True)
            self._loop.at(now + downtime_ns, self._repair, gpu)

    def _repair(self, gpu: int, now: Instant) -> None:
        self._world.fault(gpu, now, on=False)

    def _kill(self, downtime_ns: int, now: Instant) -> None:
        self.counts["controller_kills"] += 1
        self._controller.kill(None, now)
        self._loop.at(now + downtime_ns, self._controller.start, None)


def _instants(seed: int, stream: int, mean_ns: int, targets: int, span_ns: int) -> list[tuple[Instant, Any]]:
    """Return instants and targets of a Poisson process with this mean interval per target; a mean of 0: none."""
    if not mean_ns:
        return []
    rng = np.random.default_rng([seed, stream])
    count = int(rng.poisson(targets * span_ns / mean_ns))
    instants = np.sort(rng.integers(1, span_ns + 1, count)).tolist()
    return list(zip(instants, rng.integers(0, targets, count).tolist(), strict=True))
