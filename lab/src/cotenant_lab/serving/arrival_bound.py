"""Upper bound on how many of given requests can be in time under any schedule.

`cotenant_lab.serving.bound` allows a run of b rows the whole objective S. But all its rows must have arrived before it
starts, and the first of them is due S after its arrival: if they arrived within a span g, the run has S - g at most.
The rows of a run that holds row j span at least what the closest b requests of its model around j span, g(b, j): those
of any other choice lie further apart. So row j takes at least

    a(j) = min over b of [ the least area of a run of b rows within S - g(b, j) ] / b

of the device, and at most as many rows are in time as have areas that add up to what the device has. This is a bound
like the other (the remaining proof is the same), and never exceeds it. It assumes knowledge of the future as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cotenant.serve.sim.run_speed import RunSpeeds
from cotenant.units.instant import Instant
from cotenant_lab.serving.bound import concave_hull
from cotenant_lab.serving.simulated import Arrivals, ServedModel, Setting

_HALVINGS = 40

Areas: TypeAlias = npt.NDArray[np.float64]


def row_areas(model: ServedModel, arrivals: Sequence[Instant]) -> Areas:
    """Return the unit-nanoseconds that each request needs at least to be in time, in order; infinite if impossible."""
    speeds = RunSpeeds(model.truth or model.times)
    instants = np.asarray(arrivals, dtype=np.float64)
    least_areas = np.full(len(instants), np.inf)
    for rows in range(1, min(model.batch_limit, len(instants)) + 1):
        left_ns = model.slo_ns - _closest(instants, rows)
        corners = concave_hull([(0.0, 0.0), *zip(map(float, speeds.widths), speeds.speeds(rows), strict=True)])
        units, fast = np.array(corners).T
        needed_speed = np.divide(1.0, left_ns, out=np.full(len(left_ns), np.inf), where=left_ns > 0)
        areas = np.where(needed_speed <= fast[-1], left_ns * np.interp(needed_speed, fast, units), np.inf) / rows
        least_areas = np.minimum(least_areas, areas)
    return least_areas


def _closest(instants: Areas, rows: int) -> Areas:
    """Return, for each instant, the smallest span of `rows` consecutive instants that contain it."""
    spans = instants[rows - 1 :] - instants[: len(instants) - rows + 1]
    padded = np.concatenate([np.full(rows - 1, np.inf), spans, np.full(rows - 1, np.inf)])
    closest: Areas = np.lib.stride_tricks.sliding_window_view(padded, rows).min(axis=1)
    return closest


def most_in_time(models: Sequence[ServedModel], arrivals: Arrivals, setting: Setting) -> tuple[float, float]:
    """Return how many requests per second can be in time, and how many if each model must have the same fraction.

    The second bound takes the same fraction of every model's requests, of each model the cheapest ones.
    """
    areas_by_model = [_window_areas(model, arrivals, setting) for model in models]
    budget, for_s = float(setting.all_units * setting.for_ns), setting.for_ns / 1e9
    all_areas = np.sort(np.concatenate(areas_by_model)) if areas_by_model else np.array([])
    count = int(np.searchsorted(np.cumsum(all_areas), budget, side="right"))
    sums = [np.concatenate([[0.0], np.cumsum(areas)]) for areas in areas_by_model]
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        part = (low + high) / 2
        if sum(_up_to(model_sums, part) for model_sums in sums) <= budget:
            low = part
        else:
            high = part
    part = high if sum(_up_to(model_sums, 1.0) for model_sums in sums) <= budget else low
    return count / for_s, part * sum(len(areas) for areas in areas_by_model) / for_s


def _window_areas(model: ServedModel, arrivals: Arrivals, setting: Setting) -> Areas:
    """Return the areas of requests that arrive in the window, ascending."""
    instants = np.asarray(arrivals[model.name])
    areas = row_areas(model, arrivals[model.name])
    chosen = (instants >= setting.warm_ns) & (instants < setting.warm_ns + setting.for_ns)
    return np.sort(areas[chosen]) if len(instants) else areas


def _up_to(sums: Areas, part: float) -> float:
    """Return the sum of the cheapest fraction; the last one counts in part."""
    position = part * (len(sums) - 1)
    index = int(position)
    if index >= len(sums) - 1:
        return float(sums[-1])
    step = float(sums[index + 1] - sums[index])
    return float(sums[index]) + ((position - index) * step if position > index else 0.0)
