"""Who with whom, for the most in sum? A matching of waiting jobs and offering GPUs, and how near the best it is.

Jobs that are alike make one source, GPUs that are alike one sink, so that 20,000 of each are a table of some hundred
rows and some thousand columns. The matching is found by an auction (native/match) of falling steps; each of them leaves
prices, and prices prove a bound on what any matching is worth: it is done when the two are near enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from cotenant import _native

GAP: Final = 5e-4
"""By how much of the bound a matching may miss it before it is looked at with finer steps."""
_FIRST_STEP: Final = 1 / 16
_KEPT_STEP: Final = 1 / 1024
"""With the prices of another round, the first step is a fine one: most of them are still right."""
_FINER: Final = 4
_TAKEN_BACK: Final = 4
"""Prices of a step were up to some steps too high: the next begins so many of them lower. By trial on random tables."""
_FINEST: Final = 1e-6
_PATIENCE: Final = 64
_KEPT_PATIENCE: Final = 16
"""Bids for each kind and unit, and with kept prices for each kind, before an auction is given up: prices that are all
too high or too low are mended faster by beginning anew."""
_BEYOND: Final = 1e30
_MOSTLY_THERE: Final = 0.8
_EXACT: Final = 1 << 36

Array: TypeAlias = Any
_LOT: Final = np.dtype([("source", "<i4"), ("sink", "<i4"), ("count", "<i4"), ("price", "<f4")])


class Matching(NamedTuple):
    """Who goes with whom."""

    pairs: Array
    """Source, sink, count: three columns of int32."""
    value: float
    bound: float
    """What no matching is worth more than."""
    price: Array
    """Of each sink: what one more of it would be worth. A later matching may begin here."""
    bids: int

    @property
    def part(self) -> float:
        """Of the bound, at least so much is reached."""
        return self.value / self.bound if self.bound > 0 else 1.0


class Edges(NamedTuple):
    """Pairs that are looked at, where not all are: by source and sink, none twice."""

    starts: Array
    """Where those of each source begin, and where all end."""
    ends_at: Array
    worth: Array


class Problem(NamedTuple):
    """So many of each source and sink, and what pairs are worth: all of them, or along the edges."""

    supply: Array
    room: Array
    worth: Array
    edges: Edges | None = None


Bound: TypeAlias = Callable[[Array], float]


def match(worth: Array, jobs: Array, gpus: Array, *, gap: float = GAP, price: Array | None = None) -> Matching:
    """Jobs by kind against GPUs by kind: `worth[i, j]` for each pair of them, so many `jobs[i]` and `gpus[j]`.

    What is worth 0 or less is never paired. With the prices of the last round, what changed little is found quickly.
    """
    some_jobs, some_gpus = np.flatnonzero(counts(jobs)), np.flatnonzero(counts(gpus))
    if len(some_jobs) + len(some_gpus) < _MOSTLY_THERE * (len(jobs) + len(gpus)):
        return _of_those_there(worth, (counts(jobs), counts(gpus)), (some_jobs, some_gpus), gap, price)
    problem = Problem(counts(jobs), counts(gpus), np.ascontiguousarray(worth, np.float32))
    nowhere = np.where(problem.room > 0, 0, _BEYOND).astype(np.float32)

    def bound(prices: Array) -> float:
        profit = (problem.worth - (prices + nowhere)).max(axis=1, initial=0.0)
        return weighed(prices, problem.room) + weighed(profit, problem.supply)

    return in_steps(problem, bound, gap, price)


def _of_those_there(
    worth: Array, many: tuple[Array, Array], there: tuple[Array, Array], gap: float, price: Any
) -> Matching:
    """The table without what there is none of."""
    jobs, gpus = there
    fewer = np.asarray(worth)[np.ix_(jobs, gpus)]
    found = match(fewer, many[0][jobs], many[1][gpus], gap=gap, price=None if price is None else price[gpus])
    pairs, prices = found.pairs.copy(), np.zeros(len(many[1]), np.float32)
    pairs[:, 0], pairs[:, 1], prices[gpus] = jobs[pairs[:, 0]], gpus[pairs[:, 1]], found.price
    return found._replace(pairs=pairs, price=prices)


def in_steps(problem: Problem, bound: Bound, gap: float, price: Array | None = None, last: float = _FINEST) -> Matching:
    """Auctions of ever finer steps, until what is found is near what is proved, or the last step is made."""
    top = float(problem.worth.max(initial=0.0))
    if top <= 0:
        return Matching(np.zeros((0, 3), np.int32), 0.0, 0.0, np.zeros(len(problem.room), np.float32), 0)
    kinds = len(problem.supply) + len(problem.room)
    units = min(int(problem.supply.sum(dtype=np.int64)), int(problem.room.sum(dtype=np.int64)))
    prices, step, most = np.zeros(len(problem.room), np.float32), top * _FIRST_STEP, _PATIENCE * (kinds + units)
    is_anew = price is None
    if price is not None:
        prices, step, most = np.array(price, np.float32), top * _KEPT_STEP, _KEPT_PATIENCE * kinds
    best: Matching | None = None
    while True:
        found, finished = _auction(problem, prices, step, most, bound)
        best = found if best is None else _better(best, found)
        if best.part >= 1 - gap or (finished and step <= top * last) or (is_anew and not finished):
            return best
        if finished:
            prices = np.maximum(prices - _TAKEN_BACK * step, 0).astype(np.float32)
            step /= _FINER
        else:
            is_anew = True
            prices, step, most = np.zeros_like(prices), top * _FIRST_STEP, _PATIENCE * (kinds + units)


def _better(one: Matching, other: Matching) -> Matching:
    """The pairs of the better one; the bound and the prices of whichever proves more."""
    chosen, surer = other if other.value > one.value else one, other if other.bound <= one.bound else one
    return chosen._replace(bound=surer.bound, price=surer.price, bids=one.bids + other.bids)


def _auction(problem: Problem, prices: Array, step: float, most: int, bound: Bound) -> tuple[Matching, bool]:
    """What is found and proved with one step; `prices` are where it begins, and are changed."""
    supply, room, worth, edges = problem
    starts, ends_at = (None, None) if edges is None else (edges.starts, edges.ends_at)
    given = (len(supply), len(room), supply, room, worth, starts, ends_at, prices, step, most)
    said, bids, finished = _native.match_auction(*given)
    lots = np.frombuffer(said, _LOT)
    pairs = np.stack([lots["source"], lots["sink"], lots["count"]], axis=1)
    value = weighed(_worth_of(lots, worth, edges), lots["count"])
    return Matching(pairs, value, bound(prices), prices.copy(), bids), bool(finished)


def _worth_of(lots: Array, worth: Array, edges: Edges | None) -> Array:
    if edges is None:
        return worth[lots["source"], lots["sink"]]
    # Edges are in the order of source and sink, so one search finds them all.
    span = int(edges.ends_at.max(initial=0)) + 1
    sources = np.repeat(np.arange(len(edges.starts) - 1), np.diff(edges.starts))
    keys = sources * span + edges.ends_at
    return edges.worth[np.searchsorted(keys, lots["source"].astype(np.int64) * span + lots["sink"])]


def counts(given: Array) -> Array:
    """As the auction wants them."""
    return np.ascontiguousarray(given, np.int32)


def weighed(each: Array, count: Array) -> float:
    """The sum of so many of each, by whole numbers: it decides when to stop, and must be the same on any machine."""
    whole = np.rint(np.asarray(each, np.float64) * _EXACT).astype(np.int64)
    return int(np.dot(whole, np.asarray(count, np.int64))) / _EXACT
