"""Online load of each GPU over time: a diurnal cycle, correlated noise, and bursts."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from cotenant.cluster.sim.scenario import OnlineConfig
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM

DAY_NS: Final = 86_400 * SECOND_NS
_PEAK_HOUR: Final = 20.0
"""Services used by people peak in the evening; each service is shifted a little."""
_HOURS_APART: Final = 2.0
_KEEPS_NS: Final = 1_800 * SECOND_NS
"""Time constant of the noise."""
_BURST_NS: Final = 900 * SECOND_NS
"""Mean duration of a burst."""
_MIN_PEAK: Final = 0.02


class OnlineLoad:
    """Part of the time in which a request is active on each GPU when alone; 0 without a service."""

    def __init__(self, rng: np.random.Generator, config: OnlineConfig, service: Any, peak: Any) -> None:
        """Begin for GPUs with these services (-1: none) and peaks (NaN: random, around the scenario's mean)."""
        count = len(service)
        self._rng = rng
        self._served = service >= 0
        mean, low = config.peak / WHOLE_PPM, config.trough / WHOLE_PPM
        prepared = mean * np.exp(config.spread / WHOLE_PPM * rng.standard_normal(count))
        self._peak = np.clip(np.where(np.isnan(peak), prepared, peak), _MIN_PEAK, 1.0)
        self._trough = self._peak * (low / mean if mean else 1.0)
        by_service = rng.normal(_PEAK_HOUR, _HOURS_APART, max(int(service.max(initial=0)) + 1, 1))
        self._peak_hour = by_service[np.maximum(service, 0)] + rng.normal(0.0, 0.5, count)
        self._sigma = config.noise / WHOLE_PPM
        self._burst = config.burst / WHOLE_PPM
        self._noise = self._sigma * rng.standard_normal(count)
        self._bursts = np.zeros(count, dtype=bool)

    def next(self, now: Instant, step_ns: int) -> Any:
        """Return the loads one step after the last ones."""
        rng, count = self._rng, len(self._peak)
        keeps = math.exp(-step_ns / _KEEPS_NS)
        self._noise = keeps * self._noise + math.sqrt(1 - keeps * keeps) * self._sigma * rng.standard_normal(count)
        if self._burst:
            prepared = rng.random(count)
            goes_on = prepared < math.exp(-step_ns / _BURST_NS)
            self._bursts = np.where(self._bursts, goes_on, prepared < self._burst)
        hours = now / (3_600 * SECOND_NS)
        swing = 0.5 + 0.5 * np.cos((hours - self._peak_hour) * (math.pi / 12))
        load = self._trough + (self._peak - self._trough) * swing + self._noise
        load = np.where(self._bursts, np.maximum(load, 0.5 + 0.5 * self._peak), load)
        return np.where(self._served, np.clip(load, 0.0, 1.0), 0.0)
