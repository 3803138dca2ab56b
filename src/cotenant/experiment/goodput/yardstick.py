"""How fast is this machine now, beside what it was when its models were profiled? The same few runs, again and again.

Cores that are lent out by others do not have the same speed all the time, and a bound that was measured once says
nothing about the minutes after. So before each load the models run a moment by themselves.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cotenant.domain.instant import Duration
from cotenant.live.clock import monotonic_ns
from cotenant.live.serve.measure import CpuBench, made_inputs
from cotenant.live.serve.model import Runnable
from cotenant.live.serve.repository import Repository

_MOMENT_NS: Final = 40_000_000
"""For each model. Our choice."""
_AT_FIRST: Final = 10
"""Moments by which the speed is known that others are compared with."""


class Yardstick:
    """All models of a folder, each on every core at once, one row at a time."""

    def __init__(self, folder: Path) -> None:
        """Load them; what they take now is what is compared with later."""
        cores = sorted(os.sched_getaffinity(0))
        repository = Repository([folder], cores)
        self._models: list[Runnable] = [repository.load(found) for found in repository.scan().values()]
        self._benches = {model.spec.name: CpuBench(model, cores) for model in self._models}
        self._inputs = {model.spec.name: made_inputs(model.spec, 1, {}) for model in self._models}
        self._first = self._took(_AT_FIRST)

    def slower(self) -> float:
        """How many times as long runs take as at first."""
        now = self._took(1)
        return round(statistics.geometric_mean(now[name] / first for name, first in self._first.items()), 3)

    def _took(self, moments: int) -> Mapping[str, float]:
        found: dict[str, list[Duration]] = {name: [] for name in self._benches}
        for _ in range(moments):
            for name, bench in self._benches.items():
                until = monotonic_ns() + _MOMENT_NS
                times = bench.in_company(self._inputs[name], 1, 1, until)
                found[name] += times or [bench.alone(self._inputs[name], 1, 1) for _ in range(3)]
        return {name: statistics.median(times) for name, times in found.items()}

    def close(self) -> None:
        """Let go of the models."""
        for bench in self._benches.values():
            bench.close()
        for model in self._models:
            model.close()
