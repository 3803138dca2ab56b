"""Maximum-weight matching of kinds of waiting jobs and open GPUs, with a bound on its optimum.

Jobs of one kind form a source and GPUs of one kind a sink, so that 20,000 of each become a table of some hundred rows
and some thousand columns. An auction (native/match) with decreasing steps finds the matching. Each auction leaves
prices, which prove an upper bound on the value of any matching; the search ends when the value is close to the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from cotenant import _native

GAP: Final = 5e-4
"""Part of the bound by which a matching may miss it before a finer step is tried."""
_FIRST_STEP: Final = 1 / 16
_WARM_STEP: Final = 1 / 1024
"""First step with the prices of another round, most of which are still right."""
_FINER: Final = 4
_TAKEN_BACK: Final = 4
"""Prices may end some steps too high, so the next auction starts this many steps lower. Chosen on random tables."""
_FINEST: Final = 1e-6
_PATIENCE: Final = 64
_WARM_PATIENCE: Final = 16
"""Bids per kind and unit (with old prices: per kind) before an auction is abandoned: prices that are all too high or
too low converge faster from the start."""
_BEYOND: Final = 1e30
_MOSTLY_THERE: Final = 0.8
_EXACT: Final = 1 << 36

Array: TypeAlias = Any
_LOT: Final = np.dtype([("source", "<i4"), ("sink", "<i4"), ("count", "<i4"), ("price", "<f4")])


class Matching(NamedTuple):
    """A matching of sources and sinks."""

    pairs: Array
    """Source, sink and count: three int32 columns."""
    value: float
    bound: float
    """Upper bound on the value of any matching."""
    price: Array
    """For each sink, the value of one more unit of it. A later matching may start from these prices."""
    bids: int

    @property
    def part(self) -> float:
        """Return the part of the bound that is reached."""
        return self.value / self.bound if self.bound > 0 else 1.0


class Edges(NamedTuple):
    """A sparse set of pairs, sorted by source and sink, without duplicates."""

    starts: Array
    """Index of the first edge of each source, and the number of edges."""
    ends_at: Array
    weight: Array


class Problem(NamedTuple):
    """Units of each source and sink, and the weights of all pairs or of the edges."""

    supply: Array
    capacity: Array
    weight: Array
    edges: Edges | None = None


Bound: TypeAlias = Callable[[Array], float]


def match(weight: Array, jobs: Array, gpus: Array, *, gap: float = GAP, price: Array | None = None) -> Matching:
    """Match kinds of jobs with kinds of GPUs: `weight[i, j]` for each pair, `jobs[i]` and `gpus[j]` units.

    A pair with a weight of 0 or less is never matched. With the prices of the last round, small changes are found
    fast.
    """
    some_jobs, some_gpus = np.flatnonzero(counts(jobs)), np.flatnonzero(counts(gpus))
    if len(some_jobs) + len(some_gpus) < _MOSTLY_THERE * (len(jobs) + len(gpus)):
        return _match_present_kinds(weight, (counts(jobs), counts(gpus)), (some_jobs, some_gpus), gap, price)
    problem = Problem(counts(jobs), counts(gpus), np.ascontiguousarray(weight, np.float32))
    nowhere = np.where(problem.capacity > 0, 0, _BEYOND).astype(np.float32)

    def bound(prices: Array) -> float:
        profit = (problem.weight - (prices + nowhere)).max(axis=1, initial=0.0)
        return exact_dot(prices, problem.capacity) + exact_dot(profit, problem.supply)

    return in_steps(problem, bound, gap, price)


def _match_present_kinds(
    weight: Array, units: tuple[Array, Array], present: tuple[Array, Array], gap: float, price: Any
) -> Matching:
    """Match without the kinds that have no units."""
    jobs, gpus = present
    fewer = np.asarray(weight)[np.ix_(jobs, gpus)]
    matching = match(fewer, units[0][jobs], units[1][gpus], gap=gap, price=None if price is None else price[gpus])
    pairs, prices = matching.pairs.copy(), np.zeros(len(units[1]), np.float32)
    pairs[:, 0], pairs[:, 1], prices[gpus] = jobs[pairs[:, 0]], gpus[pairs[:, 1]], matching.price
    return matching._replace(pairs=pairs, price=prices)


def in_steps(problem: Problem, bound: Bound, gap: float, price: Array | None = None, last: float = _FINEST) -> Matching:
    """Run auctions with decreasing steps until the value is close to the bound, or the last step is reached."""
    top = float(problem.weight.max(initial=0.0))
    if top <= 0:
        return Matching(np.zeros((0, 3), np.int32), 0.0, 0.0, np.zeros(len(problem.capacity), np.float32), 0)
    kinds = len(problem.supply) + len(problem.capacity)
    units = min(int(problem.supply.sum(dtype=np.int64)), int(problem.capacity.sum(dtype=np.int64)))
    prices, step, bid_limit = (
        np.zeros(len(problem.capacity), np.float32),
        top * _FIRST_STEP,
        _PATIENCE * (kinds + units),
    )
    is_anew = price is None
    if price is not None:
        prices, step, bid_limit = np.array(price, np.float32), top * _WARM_STEP, _WARM_PATIENCE * kinds
    best: Matching | None = None
    while True:
        matching, finished = _auction(problem, prices, step, bid_limit, bound)
        best = matching if best is None else _best_of(best, matching)
        if best.part >= 1 - gap or (finished and step <= top * last) or (is_anew and not finished):
            return best
        if finished:
            prices = np.maximum(prices - _TAKEN_BACK * step, 0).astype(np.float32)
            step /= _FINER
        else:
            is_anew = True
            prices, step, bid_limit = np.zeros_like(prices), top * _FIRST_STEP, _PATIENCE * (kinds + units)


def _best_of(first: Matching, second: Matching) -> Matching:
    """Return the better pairs with the lower bound and its prices."""
    chosen, tighter = second if second.value > first.value else first, second if second.bound <= first.bound else first
    return chosen._replace(bound=tighter.bound, price=tighter.price, bids=first.bids + second.bids)


def _auction(problem: Problem, prices: Array, step: float, bid_limit: int, bound: Bound) -> tuple[Matching, bool]:
    """Run one auction from `prices`, which is updated; return the matching and whether the auction finished."""
    supply, capacity, weight, edges = problem
    starts, ends_at = (None, None) if edges is None else (edges.starts, edges.ends_at)
    arguments = (len(supply), len(capacity), supply, capacity, weight, starts, ends_at, prices, step, bid_limit)
    result, bids, finished = _native.match_auction(*arguments)
    lots = np.frombuffer(result, _LOT)
    pairs = np.stack([lots["source"], lots["sink"], lots["count"]], axis=1)
    value = exact_dot(_weights_of(lots, weight, edges), lots["count"])
    return Matching(pairs, value, bound(prices), prices.copy(), bids), bool(finished)


def _weights_of(lots: Array, weight: Array, edges: Edges | None) -> Array:
    if edges is None:
        return weight[lots["source"], lots["sink"]]
    # Edges are sorted by source and sink, so one binary search finds them all.
    span = int(edges.ends_at.max(initial=0)) + 1
    sources = np.repeat(np.arange(len(edges.starts) - 1), np.diff(edges.starts))
    keys = sources * span + edges.ends_at
    return edges.weight[np.searchsorted(keys, lots["source"].astype(np.int64) * span + lots["sink"])]


def counts(values: Array) -> Array:
    """Return counts in the type that the auction takes."""
    return np.ascontiguousarray(values, np.int32)


def exact_dot(factors: Array, count: Array) -> float:
    """Return a dot product computed in integers: it decides when to stop, and must be the same on every machine."""
    scaled = np.rint(np.asarray(factors, np.float64) * _EXACT).astype(np.int64)
    return int(np.dot(scaled, np.asarray(count, np.int64))) / _EXACT
