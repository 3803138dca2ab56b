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


def row_areas(model: ServedModel, came: Sequence[Instant]) -> Areas:
    """Return the unit-nanoseconds that each request needs at least to be in time, in order; infinite if impossible."""
    speeds = RunSpeeds(model.truth or model.times)
    instants = np.asarray(came, dtype=np.float64)
    least = np.full(len(instants), np.inf)
    for rows in range(1, min(model.batch_limit, len(instants)) + 1):
        left_ns = model.slo_ns - _closest(instants, rows)
        corners = concave_hull([(0.0, 0.0), *zip(map(float, speeds.widths), speeds.speeds(rows), strict=True)])
        units, fast = np.array(corners).T
        wanted = np.divide(1.0, left_ns, out=np.full(len(left_ns), np.inf), where=left_ns > 0)
        areas = np.where(wanted <= fast[-1], left_ns * np.interp(wanted, fast, units), np.inf) / rows
        least = np.minimum(least, areas)
    return least


def _closest(instants: Areas, rows: int) -> Areas:
    """Return, for each instant, the smallest span of `rows` consecutive instants that contain it."""
    spans = instants[rows - 1 :] - instants[: len(instants) - rows + 1]
    padded = np.concatenate([np.full(rows - 1, np.inf), spans, np.full(rows - 1, np.inf)])
    found: Areas = np.lib.stride_tricks.sliding_window_view(padded, rows).min(axis=1)
    return found


def most_in_time(models: Sequence[ServedModel], arrivals: Arrivals, setting: Setting) -> tuple[float, float]:
    """Return how many requests per second can be in time, and how many if each model must have the same fraction.

    The second bound takes the same fraction of every model's requests, of each model the cheapest ones.
    """
    counted = [_counted(model, arrivals, setting) for model in models]
    budget, for_s = float(setting.all_units * setting.for_ns), setting.for_ns / 1e9
    together = np.sort(np.concatenate(counted)) if counted else np.array([])
    most = int(np.searchsorted(np.cumsum(together), budget, side="right"))
    sums = [np.concatenate([[0.0], np.cumsum(areas)]) for areas in counted]
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        part = (low + high) / 2
        if sum(_up_to(one, part) for one in sums) <= budget:
            low = part
        else:
            high = part
    part = high if sum(_up_to(one, 1.0) for one in sums) <= budget else low
    return most / for_s, part * sum(len(areas) for areas in counted) / for_s


def _counted(model: ServedModel, arrivals: Arrivals, setting: Setting) -> Areas:
    """Return the areas of requests that arrive in the window, ascending."""
    came = np.asarray(arrivals[model.name])
    areas = row_areas(model, arrivals[model.name])
    chosen = (came >= setting.warm_ns) & (came < setting.warm_ns + setting.for_ns)
    return np.sort(areas[chosen]) if len(came) else areas


def _up_to(sums: Areas, part: float) -> float:
    """Return the sum of the cheapest fraction; the last one counts in part."""
    at = part * (len(sums) - 1)
    whole = int(at)
    if whole >= len(sums) - 1:
        return float(sums[-1])
    step = float(sums[whole + 1] - sums[whole])
    return float(sums[whole]) + ((at - whole) * step if at > whole else 0.0)
