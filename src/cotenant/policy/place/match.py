"""Who with whom, for the most in sum? A matching of waiting jobs and offering GPUs, and how near the best it is.

Jobs that are alike make one source, GPUs that are alike one sink, so that 20,000 of each are a table of some hundred
rows and some thousand columns. The matching is found by an auction (native/match) of falling steps; each of them leaves
prices, and prices prove a bound on what any matching is worth: it is done when the two are near enough. Where no two
are alike the table is not held at all: each job keeps the GPUs that are best for it at the prices of a first, coarse
auction, and the bound is taken over all pairs, a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from cotenant import _native

GAP: Final = 5e-4
"""By how much of the bound a matching may miss it before it is looked at with finer steps."""
_FIRST_STEP: Final = 1 / 64
_FINER: Final = 4
_TAKEN_BACK: Final = 4
"""Prices of a step were up to some steps too high: the next begins so many of them lower. By trial on random tables."""
_FINEST: Final = 1e-6
_MOST_BIDS: Final = 200_000_000
_CANDIDATES: Final = 32
_SAMPLED: Final = 512
_BLOCK: Final = 512
_ROUNDS: Final = 4
_HELD_WHOLE: Final = 1 << 22
"""Pairs of which the table is simply made: 16 MiB."""

Array: TypeAlias = Any
Rows: TypeAlias = Callable[[int, int], Array]
"""What jobs of these numbers are worth on every GPU, as float32."""
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


class _Edges(NamedTuple):
    starts: Array
    ends_at: Array
    worth: Array


def match(worth: Array, jobs: Array, gpus: Array, *, gap: float = GAP, price: Array | None = None) -> Matching:
    """Jobs by kind against GPUs by kind: `worth[i, j]` for each pair of them, so many `jobs[i]` and `gpus[j]`.

    What is worth 0 or less is never paired. With the prices of the last round, what changed little is found quickly.
    """
    worth = np.ascontiguousarray(worth, np.float32)
    supply, room = _counts(jobs), _counts(gpus)

    def bound(prices: Array) -> float:
        profit = np.where(room > 0, worth - prices, 0).max(axis=1, initial=0.0)
        return _sum(prices, room) + _sum(profit, supply)

    return _in_steps(supply, room, worth, None, bound, gap, price)


def match_distinct(rows: Rows, jobs: int, gpus: int, *, gap: float = GAP) -> Matching:
    """Each job and each GPU once, no two alike; the whole table is never held."""
    supply, room = np.ones(jobs, np.int32), np.ones(gpus, np.int32)
    if jobs * gpus <= _HELD_WHOLE:
        return match(rows(0, jobs), supply, room, gap=gap)
    prices = _coarse_prices(rows, jobs, gpus)
    edges, profit = _candidates(rows, jobs, prices, None)
    best = None
    for _ in range(_ROUNDS):

        def bound(prices: Array) -> float:
            return np.inf if len(prices) else 0.0

        found = _in_steps(supply, room, edges.worth, edges, bound, gap, prices)
        edges, profit = _candidates(rows, jobs, found.price, edges)
        proved = _sum(found.price, room) + _sum(profit, supply)
        if best is None:
            best = found._replace(bound=proved)
        else:
            better = found if found.value > best.value else best
            best = better._replace(bound=min(proved, best.bound))
        if best.part >= 1 - gap:
            break
        prices = found.price
    assert best is not None
    return best


def _in_steps(
    supply: Array,
    room: Array,
    worth: Array,
    edges: _Edges | None,
    bound: Callable[[Array], float],
    gap: float,
    price: Array | None,
) -> Matching:
    """Auctions of ever finer steps, until what is found is near what is proved."""
    top = float(worth.max(initial=0.0))
    prices = np.zeros(len(room), np.float32) if price is None else np.array(price, np.float32)
    step = top * (_FIRST_STEP if price is None else _FIRST_STEP / _FINER)
    best, proved, bids = None, np.inf, 0
    while top > 0:
        lots, made, finished = _auction(supply, room, worth, edges, prices, step)
        bids += made
        value = _sum(_worth_of(lots, worth, edges), lots["count"])
        proved = min(proved, bound(prices))
        if best is None or value > best[0]:
            best = (value, lots)
        if not finished or value >= (1 - gap) * proved or step <= top * _FINEST or (edges and step <= top * gap):
            break
        prices = np.maximum(prices - _TAKEN_BACK * step, 0).astype(np.float32)
        step /= _FINER
    if best is None:
        return Matching(np.zeros((0, 3), np.int32), 0.0, 0.0, prices, 0)
    lots = best[1]
    pairs = np.stack([lots["source"], lots["sink"], lots["count"]], axis=1)
    return Matching(pairs, best[0], proved, prices, bids)


def _auction(supply: Array, room: Array, worth: Array, edges: _Edges | None, prices: Array, step: float) -> Any:
    starts, ends_at = (None, None) if edges is None else (edges.starts, edges.ends_at)
    given = (len(supply), len(room), supply, room, worth, starts, ends_at, prices, step, _MOST_BIDS)
    lots, bids, finished = _native.match_auction(*given)
    return np.frombuffer(lots, _LOT), bids, finished


def _worth_of(lots: Array, worth: Array, edges: _Edges | None) -> Array:
    if edges is None:
        return worth[lots["source"], lots["sink"]]
    # Edges are in the order of source and sink, so one search finds them all.
    span = int(edges.ends_at.max(initial=0)) + 1
    sources = np.repeat(np.arange(len(edges.starts) - 1), np.diff(edges.starts))
    keys = sources * span + edges.ends_at
    return edges.worth[np.searchsorted(keys, lots["source"].astype(np.int64) * span + lots["sink"])]


def _coarse_prices(rows: Rows, jobs: int, gpus: int) -> Array:
    """From a sample of the jobs, each standing for many."""
    chosen = np.unique(np.linspace(0, jobs - 1, min(_SAMPLED, jobs)).astype(int))
    table = np.concatenate([rows(int(one), int(one) + 1) for one in chosen])
    counts = np.diff(np.append(chosen, jobs))
    return match(table, counts, np.ones(gpus, np.int32), gap=_FIRST_STEP).price


def _candidates(rows: Rows, jobs: int, prices: Array, known: _Edges | None) -> tuple[_Edges, Array]:
    """The best of each job at these prices, with those it had; and the highest profit of each, over all GPUs."""
    kept = min(_CANDIDATES, len(prices))
    profits, columns, values, starts = [], [], [], [0]
    for begin in range(0, jobs, _BLOCK):
        block = rows(begin, min(begin + _BLOCK, jobs))
        gain = block - prices
        profits.append(gain.max(axis=1, initial=0.0))
        tops = np.argpartition(-gain, kept - 1, axis=1)[:, :kept]
        for place, top in enumerate(tops):
            row = begin + place
            mine = top
            if known is not None:
                mine = np.union1d(top, known.ends_at[known.starts[row] : known.starts[row + 1]])
            mine = np.sort(mine[block[place, mine] > 0])
            columns.append(mine.astype(np.int32))
            values.append(block[place, mine])
            starts.append(starts[-1] + len(mine))
    edges = _Edges(np.array(starts, np.int64), np.concatenate(columns), np.concatenate(values).astype(np.float32))
    return edges, np.concatenate(profits)


def _counts(given: Array) -> Array:
    return np.ascontiguousarray(given, np.int32)


def _sum(each: Array, count: Array) -> float:
    return float(np.dot(np.asarray(each, np.float64), np.asarray(count, np.float64)))
