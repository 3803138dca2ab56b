"""How many rows a second would be in time, were models run like this? A queue whose customers have limited patience.

All runs together are taken for one queue before as many servers as runs fit side by side. Of a queue with one server,
exponential times and customers that give up after waiting x, the part that gives up is known (Barrer 1957; Gnedenko and
Kovalenko): with load r and service rate m, q = r,

    lost = (1 - r) q e / (1 - r q e),    e = exp(-m (1 - r) x).

It holds above r = 1 as well, where it tends to 1 - 1/r. Here m is servers over the mean time that is left of a run
that is met, so that long runs weigh as they do, and q the chance that all servers are busy (Sakasegawa's
approximation for several). It is no more than an approximation, and used only to compare plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt
from typing import Final, NamedTuple

from cotenant.domain.instant import SECOND_NS, Duration
from cotenant.policy.schedule.right_size import Size

_STEEP: Final = 60.0
"""Beyond this an exponential is as good as nothing, or as everything."""


class Flow(NamedTuple):
    """A model's requests and the way to run them."""

    rate: float
    slo_ns: Duration
    weight: float
    size: Size


def goodput(flows: Sequence[Flow], all_units: int) -> float:
    """Rows a second in time, each counted by its weight."""
    space = sum(one.rate * one.size.area_ns for one in flows)
    if not space:
        return 0.0
    spent = sum(one.rate * one.size.typical_ns / one.size.rows for one in flows)
    residual_ns = sum(one.rate * one.size.area_ns * one.size.typical_ns for one in flows) / (2 * space)
    servers = max(all_units * spent / space, 1.0)
    load = space / (SECOND_NS * all_units)
    return sum(one.weight * one.rate * (1 - _lost(one, load, servers, residual_ns)) for one in flows)


def _lost(one: Flow, load: float, servers: float, residual_ns: float) -> float:
    if not one.slo_ns:
        return max(0.0, 1 - 1 / load) if load else 0.0
    patience_ns = one.slo_ns - one.size.high_ns
    if patience_ns < 0:
        return 1.0
    if abs(1 - load) < 1e-3:
        load = 0.999
    steep = servers / residual_ns * (1 - load) * patience_ns
    if steep > _STEEP:
        return 0.0
    busy = min(float(load ** (sqrt(2 * (servers + 1)) - 1)), load)
    if steep < -_STEEP:
        return 1 - 1 / load
    left = exp(-steep)
    lost = (1 - load) * busy * left / (1 - load * busy * left)
    return min(max(lost, 0.0), 1.0)
