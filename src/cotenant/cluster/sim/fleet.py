"""Nodes and GPUs of a simulated cluster as arrays, and what nodes would report of them.

Loads are exact here; reports round them to steps, so that GPUs of one type and state share one report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.cluster.model.cluster import GpuCondition, GpuReport, OnlineUse
from cotenant.cluster.sim.online_load import OnlineLoad
from cotenant.cluster.sim.physics.colocated import ColocationModel, Service
from cotenant.cluster.sim.scenario import OnlineConfig
from cotenant.cluster.sim.table import TraceNode
from cotenant.predict.queueing import queued_slowdown
from cotenant.predict.speed import SpeedPredictor
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import MILLISECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM

SPACE: Final = "space"
"""The only mode in which nodes protect online work, by SM shares and evictions."""
ALONE: Final = "none"
LEVELS: Final = 20
"""Steps in which a node reports the load of its online work."""
_OFFERS: Final = 20
"""Steps in which a node offers SMs."""
_STICKS: Final = 0.75
"""Part of a step by which a load must leave its level before another level is reported."""
_RELIEF: Final = 0.1
"""An overlimit GPU becomes healthy when its load is this far below the limit."""
_CONDITIONS: Final = (GpuCondition.HEALTHY, GpuCondition.OVERLIMIT, GpuCondition.DISABLED)
HEALTHY, OVERLIMIT, DISABLED = range(3)
USUAL_JOB: Final = TaskUse(
    duty_ppm=690_000,
    widths=((WHOLE_PPM, WHOLE_PPM),),
    memory_ppm=370_000,
    kernel_ns=100_000,
    longest_ns=MILLISECOND_NS,
    round_ns=100 * MILLISECOND_NS,
    round_device_ns=69 * MILLISECOND_NS,
    active_ppm=WHOLE_PPM,
)
"""The job that a node expects when it makes an offer: the mean of the trainings that MISO measured alone."""


class Fleet:
    """True state of all GPUs, in the order of their nodes."""

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        physics: ColocationModel,
        config: OnlineConfig,
        mode: str,
        rng: np.random.Generator,
    ) -> None:
        """Begin with all GPUs up and healthy, without load."""
        self._physics = physics
        self._mode = mode
        self._overlimit = config.overlimit / WHOLE_PPM
        self._slower = config.slower / WHOLE_PPM
        counts = np.array([node.gpus for node in nodes])
        self.first = np.concatenate(([0], np.cumsum(counts))).tolist()
        self.count = int(counts.sum())
        self.node = np.repeat(np.arange(len(nodes)), counts)
        self.memory_bytes = np.repeat([float(node.memory_bytes) for node in nodes], counts)
        peak = np.concatenate([_peaks(node) for node in nodes])
        served = np.where(np.isnan(peak), rng.random(self.count) < config.gpus / WHOLE_PPM, peak > 0)
        self.service = self._services(served, rng)
        self._load = OnlineLoad(rng, config, self.service, peak)
        sorts = {sort: index for index, sort in enumerate(dict.fromkeys((n.type, n.memory_bytes) for n in nodes))}
        self._sorts = list(sorts)
        sort = np.repeat([sorts[node.type, node.memory_bytes] for node in nodes], counts)
        self._base = (sort * (len(physics.services) + 1) + self.service + 1) * LEVELS_AND_CONDITIONS
        self.online_bytes = np.array([0.0, *(float(service.memory_bytes) for service in physics.services)])[
            self.service + 1
        ]
        self.load = np.zeros(self.count)
        self.level = np.zeros(self.count, dtype=np.int64)
        self.condition = np.zeros(self.count, dtype=np.int64)
        self.faulty = np.zeros(self.count, dtype=bool)
        self.up = np.ones(self.count, dtype=bool)
        """Whether the node runs."""
        self.share = np.zeros(self.count)
        """Part of the SMs that offline work may use now; 0: it runs while no request is active."""
        self.parts = self._allowed_parts(physics.services)
        self._reports: dict[int, GpuReport] = {}
        self._codes = np.full(self.count, -1)

    def _services(self, served: Any, rng: np.random.Generator) -> Any:
        """Choose a service for each GPU that has one, among those that fit into half of its memory."""
        sizes = np.array([service.memory_bytes for service in self._physics.services], dtype=float)
        prepared = rng.random(self.count)
        service = np.full(self.count, -1)
        for memory_bytes in np.unique(self.memory_bytes):
            fitting = np.flatnonzero(sizes <= memory_bytes / 2)
            if len(fitting):
                members = served & (self.memory_bytes == memory_bytes)
                service[members] = fitting[(prepared[members] * len(fitting)).astype(int)]
        return service

    def _allowed_parts(self, services: Sequence[Service]) -> Any:
        """Return the part of the SMs for offline work by service (first row: none) and load level.

        A kernel that holds a part of the SMs takes longer in proportion when it has fewer, and a neighbour slows it
        through caches and memory whatever its part is. A node allows the largest part with which the latency of
        requests, with their queue, is predicted to grow by no more than `slower`. Where even the smallest is too much,
        offline work runs while no request is active. Modes other than `space` have no parts: a GPU is shared whole, or
        not at all.
        """
        if self._mode != SPACE:
            shared = 0.0 if self._mode == ALONE else 1.0
            return np.vstack([np.ones(LEVELS + 1), np.full((len(services), LEVELS + 1), shared)])
        levels = np.arange(LEVELS + 1) / LEVELS
        kept_parts = np.arange(1, _OFFERS + 1) / _OFFERS  # the last one: none is left for offline work
        predictor, rows = SpeedPredictor(), [np.ones(LEVELS + 1)]
        for service in services:
            duty = service.use.duty_ppm / WHOLE_PPM
            total = sum(part for _, part in service.use.widths) or 1
            longer = np.ones(_OFFERS)
            for width, part in service.use.widths or ((WHOLE_PPM, 1),):
                longer += duty * part / total * np.maximum(width / WHOLE_PPM / kept_parts - 1, 0.0)
            slower = longer * predictor.interferences([service.use, USUAL_JOB])[0]
            is_enough = queued_slowdown(slower[None, :], levels[:, None]) <= 1 + self._slower
            is_enough[:, -1] = True
            rows.append(1 - kept_parts[is_enough.argmax(axis=1)])
        return np.array(rows)

    def advance(self, now: Instant, step_ns: int) -> None:
        """Advance the loads by one step, and update conditions and offers."""
        self.load = self._load.next(now, step_ns)
        scaled = self.load * LEVELS
        has_left = np.abs(scaled - self.level) > _STICKS
        self.level = np.where(has_left, np.rint(scaled).astype(np.int64), self.level)
        self.update_conditions()

    def update_conditions(self) -> None:
        """Update conditions and shares, as nodes observe them."""
        limit = np.where(self.condition == OVERLIMIT, self._overlimit - _RELIEF, self._overlimit)
        over = (self.service >= 0) & (self.load >= limit) & (self._mode == SPACE)
        self.condition = np.where(self.faulty, DISABLED, np.where(over, OVERLIMIT, HEALTHY))
        self.share = self.parts[self.service + 1, self.level]

    def changed(self) -> tuple[list[int], Any]:
        """Return the report code of each GPU, and the nodes of which a code changed."""
        codes = self._base + self.level * len(_CONDITIONS) + self.condition
        nodes = np.unique(self.node[codes != self._codes])
        self._codes = codes
        return codes.tolist(), nodes

    def report(self, code: int) -> GpuReport:
        """Return the report for a code."""
        if (cached := self._reports.get(code)) is not None:
            return cached
        combined, rest = divmod(code, LEVELS_AND_CONDITIONS)
        level, condition = divmod(rest, len(_CONDITIONS))
        sort, service = divmod(combined, len(self._physics.services) + 1)
        kind, memory_bytes = self._sorts[sort]
        online = self._physics.services[service - 1] if service else None
        online_uses = () if online is None else (self._gpu_report(online, level),)
        report = GpuReport(
            type=kind,
            memory_bytes=memory_bytes,
            free_bytes=memory_bytes - (online.memory_bytes if online else 0),
            offer_ppm=self._offer_ppm(service, level) if condition == HEALTHY else 0,
            condition=_CONDITIONS[condition],
            online=online_uses,
        )
        self._reports[code] = report
        return report

    def _offer_ppm(self, service: int, level: int) -> int:
        """Return the offered part of the SMs; the smallest step stands for the time without requests."""
        part = float(self.parts[service, level])
        return round((max(part, 1 / _OFFERS) if self._mode == SPACE else part) * WHOLE_PPM)

    def _gpu_report(self, online: Service, level: int) -> OnlineUse:
        use = msgspec.structs.replace(online.use, active_ppm=level * WHOLE_PPM // LEVELS)
        return OnlineUse(online.name, use, online.slo_ns)


LEVELS_AND_CONDITIONS: Final = (LEVELS + 1) * len(_CONDITIONS)


def _peaks(node: TraceNode) -> Any:
    if node.peaks_ppm is None:
        return np.full(node.gpus, np.nan)
    return np.array(node.peaks_ppm) / WHOLE_PPM
