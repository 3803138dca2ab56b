"""What are the nodes and GPUs of a cluster that is only numbers, and what would they report? An array for each fact.

Loads are true to the last digit; reports say them in steps, so that GPUs of one type in one state share one report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.domain.cluster import GpuCondition, GpuReport, OnlineUse
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import Instant
from cotenant.format.cluster_csv import TraceNode
from cotenant.format.scenario_cluster import OnlineConfig
from cotenant.sim.cluster_load import OnlineLoad
from cotenant.sim.physics.colocated import Colocated, Service

SPACE: Final = "space"
"""The one way to share in which nodes protect online work, by parts of the SMs and by evictions."""
ALONE: Final = "none"
LEVELS: Final = 20
"""Steps in which a node tells the load of its online work."""
_OFFERS: Final = 20
"""Steps in which it offers SMs."""
_STICKS: Final = 0.75
"""Of a step: a load must leave its level by so much to be told as another one."""
_RELIEF: Final = 0.1
"""An overlimit GPU is healthy again once its load is so far below the limit."""
_CONDITIONS: Final = (GpuCondition.HEALTHY, GpuCondition.OVERLIMIT, GpuCondition.DISABLED)
HEALTHY, OVERLIMIT, DISABLED = range(3)


class Fleet:
    """The truth about all GPUs, by place: those of the first node first."""

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        physics: Colocated,
        config: OnlineConfig,
        way: str,
        chance: np.random.Generator,
    ) -> None:
        """All up and healthy; no load yet."""
        self._physics = physics
        self._way = way
        self._overlimit = config.overlimit / WHOLE_PPM
        self._slower = config.slower / WHOLE_PPM
        counts = np.array([node.gpus for node in nodes])
        self.first = np.concatenate(([0], np.cumsum(counts))).tolist()
        self.count = int(counts.sum())
        self.node = np.repeat(np.arange(len(nodes)), counts)
        self.memory_bytes = np.repeat([float(node.memory_bytes) for node in nodes], counts)
        peak = np.concatenate([_peaks(node) for node in nodes])
        served = np.where(np.isnan(peak), chance.random(self.count) < config.gpus / WHOLE_PPM, peak > 0)
        self.service = self._services(served, chance)
        self._load = OnlineLoad(chance, config, self.service, peak)
        sorts = {sort: place for place, sort in enumerate(dict.fromkeys((n.type, n.memory_bytes) for n in nodes))}
        self._sorts = list(sorts)
        sort = np.repeat([sorts[node.type, node.memory_bytes] for node in nodes], counts)
        self._base = (sort * (len(physics.services) + 1) + self.service + 1) * LEVELS_AND_CONDITIONS
        self.online_bytes = np.array([0.0, *(float(one.memory_bytes) for one in physics.services)])[self.service + 1]
        self.load = np.zeros(self.count)
        self.level = np.zeros(self.count, dtype=np.int64)
        self.condition = np.zeros(self.count, dtype=np.int64)
        self.faulty = np.zeros(self.count, dtype=bool)
        self.up = np.ones(self.count, dtype=bool)
        """Whether its node runs."""
        self.share = np.zeros(self.count)
        """Of the SMs, what offline work may have now."""
        self._offers = self._offered(physics.services)
        self._reports: dict[int, GpuReport] = {}
        self._codes = np.full(self.count, -1)

    def _services(self, served: Any, chance: np.random.Generator) -> Any:
        """A service for each GPU that has one, of those that its memory holds: half of it is left to others."""
        sizes = np.array([one.memory_bytes for one in self._physics.services], dtype=float)
        drawn = chance.random(self.count)
        service = np.full(self.count, -1)
        for memory_bytes in np.unique(self.memory_bytes):
            fitting = np.flatnonzero(sizes <= memory_bytes / 2)
            if len(fitting):
                here = served & (self.memory_bytes == memory_bytes)
                service[here] = fitting[(drawn[here] * len(fitting)).astype(int)]
        return service

    def _offered(self, services: Sequence[Service]) -> Any:
        """By service (the first row: none) and level: the part of the SMs that a node offers.

        A kernel that holds a part of the SMs takes as much longer as it has fewer of them. A node keeps the least part
        with which requests take no more than so much longer; the more loaded it is, the less, for they queue. Other
        ways to share know no parts: all or, where GPUs of services are not shared, nothing.
        """
        if self._way != SPACE:
            shared = 0.0 if self._way == ALONE else 1.0
            return np.vstack([np.ones(LEVELS + 1), np.full((len(services), LEVELS + 1), shared)])
        levels = np.arange(LEVELS + 1) / LEVELS
        kept = np.arange(1, _OFFERS + 1) / _OFFERS
        rows = [np.ones(LEVELS + 1)]
        for service in services:
            duty = service.use.duty_ppm / WHOLE_PPM
            whole = sum(part for _, part in service.use.widths) or 1
            longer = np.zeros(_OFFERS)
            for width, part in service.use.widths or ((WHOLE_PPM, 1),):
                longer += duty * part / whole * np.maximum(width / WHOLE_PPM / kept - 1, 0.0)
            enough = longer[None, :] <= self._slower * (1 - levels)[:, None]
            rows.append(1 - kept[np.where(enough.any(axis=1), enough.argmax(axis=1), _OFFERS - 1)])
        return np.array(rows)

    def breathe(self, now: Instant, step_ns: int) -> None:
        """Loads move on, and with them what nodes see and offer."""
        self.load = self._load.next(now, step_ns)
        scaled = self.load * LEVELS
        moved = np.abs(scaled - self.level) > _STICKS
        self.level = np.where(moved, np.rint(scaled).astype(np.int64), self.level)
        self.judge()

    def judge(self) -> None:
        """Conditions and shares, as nodes see them."""
        limit = np.where(self.condition == OVERLIMIT, self._overlimit - _RELIEF, self._overlimit)
        over = (self.service >= 0) & (self.load >= limit) & (self._way == SPACE)
        self.condition = np.where(self.faulty, DISABLED, np.where(over, OVERLIMIT, HEALTHY))
        self.share = self._offers[self.service + 1, self.level]

    def changed(self) -> tuple[list[int], Any]:
        """The code of each GPU's report, and the nodes that have one that is not the last one's."""
        codes = self._base + self.level * len(_CONDITIONS) + self.condition
        nodes = np.unique(self.node[codes != self._codes])
        self._codes = codes
        return codes.tolist(), nodes

    def report(self, code: int) -> GpuReport:
        """The one report of a state."""
        if (known := self._reports.get(code)) is not None:
            return known
        place, rest = divmod(code, LEVELS_AND_CONDITIONS)
        level, condition = divmod(rest, len(_CONDITIONS))
        sort, service = divmod(place, len(self._physics.services) + 1)
        kind, memory_bytes = self._sorts[sort]
        online = self._physics.services[service - 1] if service else None
        told = () if online is None else (self._told(online, level),)
        made = GpuReport(
            type=kind,
            memory_bytes=memory_bytes,
            free_bytes=memory_bytes - (online.memory_bytes if online else 0),
            offer_ppm=round(self._offers[service, level] * WHOLE_PPM) if condition == HEALTHY else 0,
            condition=_CONDITIONS[condition],
            online=told,
        )
        self._reports[code] = made
        return made

    def _told(self, online: Service, level: int) -> OnlineUse:
        use = msgspec.structs.replace(online.use, active_ppm=level * WHOLE_PPM // LEVELS)
        return OnlineUse(online.name, use, online.slo_ns)


LEVELS_AND_CONDITIONS: Final = (LEVELS + 1) * len(_CONDITIONS)


def _peaks(node: TraceNode) -> Any:
    if node.peaks_ppm is None:
        return np.full(node.gpus, np.nan)
    return np.array(node.peaks_ppm) / WHOLE_PPM
