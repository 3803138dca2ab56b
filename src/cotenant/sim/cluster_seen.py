"""What was seen of a cluster? Sums over GPU time and courses through it, added up as the world goes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cotenant.domain.instant import Instant

MEANS: Final = (
    *("utilization", "utilization_before", "sm_activity", "sm_activity_before", "memory", "memory_before"),
    *("offline_speed", "online_load"),
)
"""Means over all GPUs; `before`: the same GPUs and loads, had nobody shared."""
COURSES: Final = (*MEANS, "slowdown", "slowdown_p99", "running", "waiting")
"""What is kept of every part of the time."""
_PARTS: Final = 288
_FINEST: Final = 1_000
"""Slowdowns are counted in thousandths, up to `_WORST`."""
_WORST: Final = 10.0
_HOUR_NS: Final = 3.6e12
_ROWS: Final = 60
_COLUMNS: Final = 96


class Seen:
    """The figures of a world."""

    def __init__(self, gpus: int, span_ns: int) -> None:
        """Nothing yet."""
        self.gpus = gpus
        self._course = np.zeros((len(COURSES), _PARTS))
        self._course_ns = np.zeros(_PARTS)
        self.shared_gpu_ns = 0.0
        """GPU time with an offline job on it; the other times of all GPUs are `free` and `down`."""
        self.free_gpu_ns = 0.0
        self.down_gpu_ns = 0.0
        self.span_ns = 0
        self._slowdowns = np.zeros(int((_WORST - 1) * _FINEST) + 2)
        self._whole_ns = max(span_ns, 1)
        self._rows = min(gpus, _ROWS)
        self._row = np.arange(gpus) * self._rows // max(gpus, 1)
        self._heat = np.zeros((self._rows, _COLUMNS))
        self._heat_gpu_ns = np.zeros((self._rows, _COLUMNS))

    def span(self, begin: Instant, ns: int, now: dict[str, Any], ran_ns: Any, up: Any) -> None:
        """A while in which every GPU did the same: its figures, for how long an offline job was there, if it was up."""
        self.span_ns += ns
        shared = float(ran_ns.sum())
        down = float((~up).sum()) * ns
        self.shared_gpu_ns += shared
        self.down_gpu_ns += down
        self.free_gpu_ns += self.gpus * ns - shared - down
        served = now["served"]
        slowdowns, weights = now["slowdowns"][served], now["load"][served]
        slowdown = slowdown_p99 = 1.0
        if len(slowdowns):
            slowdown, slowdown_p99 = _weighted(slowdowns, weights), float(np.quantile(slowdowns, 0.99))
            places = np.minimum(((slowdowns - 1) * _FINEST).astype(np.int64), len(self._slowdowns) - 1)
            self._slowdowns += np.bincount(places, weights=weights * ns, minlength=len(self._slowdowns))
        figures = [*(float(now[name].mean()) for name in MEANS), slowdown, slowdown_p99, now["running"], now["waiting"]]
        part = min(begin * _PARTS // self._whole_ns, _PARTS - 1)
        self._course[:, part] += np.array(figures) * ns
        self._course_ns[part] += ns
        column = min(begin * _COLUMNS // self._whole_ns, _COLUMNS - 1)
        self._heat[:, column] += np.bincount(self._row, weights=now["utilization"], minlength=self._rows) * ns
        self._heat_gpu_ns[:, column] += np.bincount(self._row, minlength=self._rows) * float(ns)

    def mean(self, name: str) -> float:
        """Over all of the time."""
        return float(self._course[COURSES.index(name)].sum()) / self.span_ns if self.span_ns else 0.0

    def courses(self) -> tuple[list[float], dict[str, list[float]]]:
        """When each part of the time began, in hours, and what was seen of it; parts that did not come are left out."""
        there = np.flatnonzero(self._course_ns > 0)
        at_h = (there * (self._whole_ns / _PARTS / _HOUR_NS)).tolist()
        means = self._course[:, there] / self._course_ns[there]
        return at_h, {name: means[row].tolist() for row, name in enumerate(COURSES)}

    def slowdown(self, quantile: float) -> float:
        """Of the online time, weighed by its load: no more than this is slowed by more."""
        total = self._slowdowns.sum()
        if not total:
            return 1.0
        place = int(np.searchsorted(np.cumsum(self._slowdowns), quantile * total))
        return 1 + min(place, len(self._slowdowns) - 1) / _FINEST

    def slowdown_curve(self) -> list[tuple[float, float]]:
        """The part of the online time that is slowed by no more than so much, at every thousandth that is there."""
        total = self._slowdowns.sum()
        if not total:
            return []
        sums = np.cumsum(self._slowdowns) / total
        return [(1 + int(place) / _FINEST, float(sums[place])) for place in np.flatnonzero(self._slowdowns)]

    def heat(self) -> list[list[float]]:
        """Utilization by groups of GPUs, in their order, and by parts of the time that came."""
        there = np.flatnonzero(self._heat_gpu_ns[0] > 0) if self._rows else np.array([], dtype=int)
        means = self._heat[:, there] / self._heat_gpu_ns[:, there]
        return [[float(cell) for cell in row] for row in means]


def _weighted(values: Any, weights: Any) -> float:
    total = float(weights.sum())
    return float((values * weights).sum() / total) if total else float(values.mean())
