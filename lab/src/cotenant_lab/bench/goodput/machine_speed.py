"""Measure the current speed of this machine relative to its speed when the models were profiled.

The speed of virtual cores varies over time, so a bound that was measured once does not hold minutes later. Therefore
the models run alone for a moment before each load.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cotenant.runner.clock import monotonic_ns
from cotenant.serve.runtime.measure import CpuRunTimer, synthetic_inputs
from cotenant.serve.runtime.model import LoadedModel
from cotenant.serve.runtime.repository import Repository
from cotenant.units.instant import Duration

_MOMENT_NS: Final = 40_000_000
"""Time to run each model. Our choice."""
_AT_FIRST: Final = 10
"""Repetitions by which the reference speed is measured."""


class SpeedReference:
    """Times all models of a folder, each on every core at once, with one row per run."""

    def __init__(self, folder: Path) -> None:
        """Load the models and measure the reference speed."""
        cores = sorted(os.sched_getaffinity(0))
        repository = Repository([folder], cores)
        self._models: list[LoadedModel] = [repository.load(entry) for entry in repository.scan(run_code=True).values()]
        self._benches = {model.spec.name: CpuRunTimer(model, cores) for model in self._models}
        self._inputs = {model.spec.name: synthetic_inputs(model.spec, 1, {}) for model in self._models}
        self._first = self._median_times(_AT_FIRST)

    def slower(self) -> float:
        """Return how many times as long runs take as at first."""
        now = self._median_times(1)
        return round(statistics.geometric_mean(now[name] / first for name, first in self._first.items()), 3)

    def _median_times(self, moments: int) -> Mapping[str, float]:
        times_by_model: dict[str, list[Duration]] = {name: [] for name in self._benches}
        for _ in range(moments):
            for name, bench in self._benches.items():
                until = monotonic_ns() + _MOMENT_NS
                times = bench.loaded(self._inputs[name], 1, 1, until)
                times_by_model[name] += times or [bench.alone(self._inputs[name], 1, 1) for _ in range(3)]
        return {name: statistics.median(times) for name, times in times_by_model.items()}

    def close(self) -> None:
        """Close the models."""
        for bench in self._benches.values():
            bench.close()
        for model in self._models:
            model.close()
