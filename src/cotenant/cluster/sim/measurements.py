"""Measurements of a simulated cluster: sums over GPU time, and time series."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cotenant.units.instant import Instant

MEANS: Final = (
    *("utilization", "utilization_before", "sm_activity", "sm_activity_before", "memory", "memory_before"),
    *("offline_speed", "online_load"),
)
"""Means over all GPUs; `_before`: the same GPUs and loads without offline work."""
SERIES: Final = (*MEANS, "slowdown", "service", "slowdown_p99", "running", "waiting")
"""Quantities of which a time series is kept."""
_PARTS: Final = 288
_FINEST: Final = 1_000
"""Resolution of slowdowns; they are counted up to `_WORST`."""
_WORST: Final = 10.0
_HOUR_NS: Final = 3.6e12
_ROWS: Final = 60
_COLUMNS: Final = 96


class ClusterMeasurements:
    """Accumulated measurements of one simulation."""

    def __init__(self, gpus: int, span_ns: int) -> None:
        """Begin with no measurements."""
        self.gpus = gpus
        self._course = np.zeros((len(SERIES), _PARTS))
        self._course_ns = np.zeros(_PARTS)
        self.shared_gpu_ns = 0.0
        """GPU time with an offline job; the remaining time of all GPUs is free or down."""
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
        """Add a span in which every GPU's state was constant.

        `ran_ns`: how long an offline job ran there; `up`: whether the GPU was up.
        """
        self.span_ns += ns
        shared = float(ran_ns.sum())
        down = float((~up).sum()) * ns
        self.shared_gpu_ns += shared
        self.down_gpu_ns += down
        self.free_gpu_ns += self.gpus * ns - shared - down
        served = now["served"]
        slowdowns, weights = now["slowdowns"][served], now["load"][served]
        slowdown = slowdown_p99 = service = 1.0
        if len(slowdowns):
            service = _weighted(now["service"][served], weights)
            slowdown, slowdown_p99 = _weighted(slowdowns, weights), float(np.quantile(slowdowns, 0.99))
            buckets = np.minimum(((slowdowns - 1) * _FINEST).astype(np.int64), len(self._slowdowns) - 1)
            self._slowdowns += np.bincount(buckets, weights=weights * ns, minlength=len(self._slowdowns))
        means = [float(now[name].mean()) for name in MEANS]
        values = [*means, slowdown, service, slowdown_p99, now["running"], now["waiting"]]
        part = min(begin * _PARTS // self._whole_ns, _PARTS - 1)
        self._course[:, part] += np.array(values) * ns
        self._course_ns[part] += ns
        column = min(begin * _COLUMNS // self._whole_ns, _COLUMNS - 1)
        self._heat[:, column] += np.bincount(self._row, weights=now["utilization"], minlength=self._rows) * ns
        self._heat_gpu_ns[:, column] += np.bincount(self._row, minlength=self._rows) * float(ns)

    def mean(self, name: str) -> float:
        """Return the mean over the whole time."""
        return float(self._course[SERIES.index(name)].sum()) / self.span_ns if self.span_ns else 0.0

    def series(self) -> tuple[list[float], dict[str, list[float]]]:
        """Return the start of each part of the time in hours, and the time series; parts without data are omitted."""
        filled = np.flatnonzero(self._course_ns > 0)
        at_h = (filled * (self._whole_ns / _PARTS / _HOUR_NS)).tolist()
        means = self._course[:, filled] / self._course_ns[filled]
        return at_h, {name: means[row].tolist() for row, name in enumerate(SERIES)}

    def slowdown(self, quantile: float) -> float:
        """Return this quantile of the slowdown of online work, weighted by load."""
        total = self._slowdowns.sum()
        if not total:
            return 1.0
        bucket = int(np.searchsorted(np.cumsum(self._slowdowns), quantile * total))
        return 1 + min(bucket, len(self._slowdowns) - 1) / _FINEST

    def slowdown_curve(self) -> list[tuple[float, float]]:
        """Return the cumulative distribution of the slowdown of online work."""
        total = self._slowdowns.sum()
        if not total:
            return []
        sums = np.cumsum(self._slowdowns) / total
        return [(1 + int(bucket) / _FINEST, float(sums[bucket])) for bucket in np.flatnonzero(self._slowdowns)]

    def heatmap(self) -> list[list[float]]:
        """Return utilization by groups of adjacent GPUs and by parts of the time."""
        filled = np.flatnonzero(self._heat_gpu_ns[0] > 0) if self._rows else np.array([], dtype=int)
        means = self._heat[:, filled] / self._heat_gpu_ns[:, filled]
        return [[float(cell) for cell in row] for row in means]


def _weighted(values: Any, weights: Any) -> float:
    total = float(weights.sum())
    return float((values * weights).sum() / total) if total else float(values.mean())
