"""Upper bound on the rows per second that can be answered in time under any schedule, by their space-time.

Proof. Take any schedule, including one that preempts, changes a run's units, and knows the future. A run of b rows that
is answered within its objective S is done within S. Let it have u(t) units at t: it does its work at speed s(u(t)), and
its work adds up to 1. Let h be the smallest concave function with h(0) = 0 and h >= s. With T <= S the time it takes
and U the mean of u over it, Jensen's inequality gives 1 = sum of s(u) dt <= T h(U), so U >= h^-1(1/T), and its area is
T U >= T h^-1(1/T). Since h is concave and h(0) = 0, h(U)/U does not rise with U, so this does not rise with T, and the
area is at least S h^-1(1/S). Over all numbers of rows that a run may have, the least area per row is a(model). In a
second the device has `all_units` of area, so for what is answered in time,

    sum of rows(model) x a(model) <= all_units,    rows(model) <= offered(model),

and the maximum of rows under both constraints takes the cheapest first (a fractional knapsack). Assumptions: concurrent
runs do not speed each other up, a run is of one model, and its rows count only if all its time lies after their
arrival, so the rows of one run have the whole objective for it at most.

The bound holds for runs that take the tabulated time. If they vary randomly (by a factor of mean 1), it holds for the
mean area, because the least area for a factor f of the work is convex in f.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from cotenant.serve.model.run_times import RunTimes
from cotenant.serve.sim.run_speed import RunSpeeds
from cotenant.units.instant import SECOND_NS, Duration


def least_area(times: RunTimes, slo_ns: Duration, max_batch: int) -> float:
    """Return the unit-nanoseconds that a row needs at least to be in time; infinite if impossible."""
    speeds = RunSpeeds(times)
    return min(_area(speeds, rows, slo_ns) / rows for rows in range(1, max_batch + 1))


def _area(speeds: RunSpeeds, rows: int, slo_ns: Duration) -> float:
    """Return the least area of a run of `rows` rows."""
    hull = concave_hull([(0.0, 0.0), *zip(map(float, speeds.widths), speeds.speeds(rows), strict=True)])
    needed = 1 / slo_ns
    for (left, low), (right, high) in pairwise(hull):
        if low <= needed <= high:
            units = left + (right - left) * (needed - low) / (high - low)
            return slo_ns * units
    return math.inf


def concave_hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of the upper concave hull of these points, up to its maximum; ascending in both."""
    hull: list[tuple[float, float]] = []
    for point in sorted(points):
        if hull and point[1] <= hull[-1][1]:
            continue
        while len(hull) > 1 and _is_below(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _is_below(left: tuple[float, float], middle: tuple[float, float], right: tuple[float, float]) -> bool:
    """Return whether the middle point is on or under the line between the others."""
    rise = (middle[1] - left[1]) * (right[0] - left[0])
    return rise <= (right[1] - left[1]) * (middle[0] - left[0])


def bound(areas: Mapping[str, float], offered: Mapping[str, float], all_units: float) -> dict[str, float]:
    """Return the rows per second of each model that maximize their sum; `areas` are those of `least_area`."""
    remaining = float(all_units)
    rows_per_s = dict.fromkeys(offered, 0.0)
    for name in sorted(offered, key=lambda model: (areas[model], model)):
        per_row = areas[name] / SECOND_NS
        if math.isinf(per_row):
            continue
        rows_per_s[name] = min(offered[name], remaining / per_row)
        remaining -= rows_per_s[name] * per_row
    return rows_per_s


def fair_bound(areas: Mapping[str, float], offered: Mapping[str, float], all_units: float) -> dict[str, float]:
    """Return the same if every model must have the same fraction of its rows answered.

    The unconstrained maximum serves the cheapest models alone.
    """
    needed_units = sum(rows * areas[name] / SECOND_NS for name, rows in offered.items() if not math.isinf(areas[name]))
    part = min(1.0, all_units / needed_units) if needed_units else 1.0
    return {name: 0.0 if math.isinf(areas[name]) else rows * part for name, rows in offered.items()}


def capacity(areas: Mapping[str, float], mix: Mapping[str, float], all_units: int) -> float:
    """Return the rows per second in this mix (fractions that add up to 1) at which the device is full."""
    return all_units / sum(part * areas[name] / SECOND_NS for name, part in mix.items())
