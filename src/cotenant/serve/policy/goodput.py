"""Estimate of the goodput of a plan: a queue whose customers have limited patience.

All runs together are treated as one queue with as many servers as runs fit concurrently. For a queue with one server,
exponential times and customers that leave after waiting x, the fraction that leaves is known (Barrer 1957; Gnedenko and
Kovalenko): with load r and service rate m, q = r,

    lost = (1 - r) q e / (1 - r q e),    e = exp(-m (1 - r) x).

It holds above r = 1 as well, where it tends to 1 - 1/r. Here m is the number of servers over the mean residual time of
a run, and q is the probability that all servers are busy (Sakasegawa's approximation for several servers). This is an
approximation, used only to compare plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt
from typing import Final, NamedTuple

from cotenant.serve.policy.right_size import RunSize
from cotenant.units.instant import SECOND_NS, Duration

_MAX_EXPONENT: Final = 60.0
"""Beyond this exponent the result is 0 or 1."""


class ModelTraffic(NamedTuple):
    """A model's request rate and run size."""

    rate: float
    slo_ns: Duration
    weight: float
    size: RunSize


def goodput(flows: Sequence[ModelTraffic], all_units: int) -> float:
    """Return the rows per second answered in time, weighted."""
    space = sum(flow.rate * flow.size.area_ns for flow in flows)
    if not space:
        return 0.0
    run_time = sum(flow.rate * flow.size.typical_ns / flow.size.rows for flow in flows)
    residual_ns = sum(flow.rate * flow.size.area_ns * flow.size.typical_ns for flow in flows) / (2 * space)
    servers = max(all_units * run_time / space, 1.0)
    load = space / (SECOND_NS * all_units)
    return sum(flow.weight * flow.rate * (1 - _lost(flow, load, servers, residual_ns)) for flow in flows)


def _lost(flow: ModelTraffic, load: float, servers: float, residual_ns: float) -> float:
    if not flow.slo_ns:
        return max(0.0, 1 - 1 / load) if load else 0.0
    patience_ns = flow.slo_ns - flow.size.high_ns
    if patience_ns < 0:
        return 1.0
    if abs(1 - load) < 1e-3:
        load = 0.999
    exponent = servers / residual_ns * (1 - load) * patience_ns
    if exponent > _MAX_EXPONENT:
        return 0.0
    busy = min(float(load ** (sqrt(2 * (servers + 1)) - 1)), load)
    if exponent < -_MAX_EXPONENT:
        return 1 - 1 / load
    survival = exp(-exponent)
    lost = (1 - load) * busy * survival / (1 - load * busy * survival)
    return min(max(lost, 0.0), 1.0)
