"""How loaded is the online work of each GPU, through days? A swing, noise that keeps for a while, and bursts."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.format.scenario_cluster import OnlineConfig

DAY_NS: Final = 86_400 * SECOND_NS
_PEAK_HOUR: Final = 20.0
"""Services of people are busiest in the evening; each service somewhat before or after."""
_HOURS_APART: Final = 2.0
_KEEPS_NS: Final = 1_800 * SECOND_NS
"""After so long noise has forgotten two thirds of what it was."""
_BURST_NS: Final = 900 * SECOND_NS
"""A burst lasts so long, in the mean."""
_LEAST_PEAK: Final = 0.02


class OnlineLoad:
    """The part of the time in which a request is under way on each GPU, alone; 0 where there is no service."""

    def __init__(self, chance: np.random.Generator, config: OnlineConfig, service: Any, peak: Any) -> None:
        """For GPUs with these services (-1: none) and these peaks (NaN: by chance, around the scenario's)."""
        count = len(service)
        self._chance = chance
        self._served = service >= 0
        mean, low = config.peak / WHOLE_PPM, config.trough / WHOLE_PPM
        drawn = mean * np.exp(config.spread / WHOLE_PPM * chance.standard_normal(count))
        self._peak = np.clip(np.where(np.isnan(peak), drawn, peak), _LEAST_PEAK, 1.0)
        self._trough = self._peak * (low / mean if mean else 1.0)
        by_service = chance.normal(_PEAK_HOUR, _HOURS_APART, max(int(service.max(initial=0)) + 1, 1))
        self._peak_hour = by_service[np.maximum(service, 0)] + chance.normal(0.0, 0.5, count)
        self._sigma = config.noise / WHOLE_PPM
        self._burst = config.burst / WHOLE_PPM
        self._noise = self._sigma * chance.standard_normal(count)
        self._bursts = np.zeros(count, dtype=bool)

    def next(self, now: Instant, step_ns: int) -> Any:
        """The loads at an instant, a step after those before."""
        chance, count = self._chance, len(self._peak)
        keeps = math.exp(-step_ns / _KEEPS_NS)
        self._noise = keeps * self._noise + math.sqrt(1 - keeps * keeps) * self._sigma * chance.standard_normal(count)
        if self._burst:
            drawn = chance.random(count)
            goes_on = drawn < math.exp(-step_ns / _BURST_NS)
            self._bursts = np.where(self._bursts, goes_on, drawn < self._burst)
        hours = now / (3_600 * SECOND_NS)
        swing = 0.5 + 0.5 * np.cos((hours - self._peak_hour) * (math.pi / 12))
        load = self._trough + (self._peak - self._trough) * swing + self._noise
        load = np.where(self._bursts, np.maximum(load, 0.5 + 0.5 * self._peak), load)
        return np.where(self._served, np.clip(load, 0.0, 1.0), 0.0)
