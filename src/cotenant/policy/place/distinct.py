"""Who with whom, where no two are alike? The whole table is never held: a job bids for the GPUs that are best for it.

Prices of a first, coarse auction of a sample of the jobs say what GPUs are about worth. Every job keeps those that are
best for it at these prices, and some that are best of a part of all, another one from job to job, so that jobs that are
nearly alike do not all want the same few. An auction among them gives better prices; at those, GPUs that are better
still for somebody are added, and so on. The bound is taken over all pairs, a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from cotenant import _native
from cotenant.policy.place.match import GAP, Array, Edges, Matching, Problem, in_steps, match, weighed

_CANDIDATES: Final = 64
_PARTS: Final = 16
_SAMPLED: Final = 512
_SAMPLE_GAP: Final = 1 / 64
_BLOCK: Final = 256
_TURNS: Final = 24
_FULL_LOOK: Final = 4
_MANY: Final = 200
"""Where fewer than one in so many got nothing, all look again."""
_HELD_WHOLE: Final = 1 << 20
"""Pairs of which the table is simply made: 4 MiB."""

Rows: TypeAlias = Callable[[int, int], Array]
"""What jobs of these numbers are worth on every GPU, as float32."""


def match_distinct(rows: Rows, jobs: int, gpus: int, *, gap: float = GAP, held_whole: int = _HELD_WHOLE) -> Matching:
    """Each job and each GPU once; rows are asked for again and again, and must always be the same."""
    supply, room = np.ones(jobs, np.int32), np.ones(gpus, np.int32)
    if jobs * gpus <= held_whole:
        return match(rows(0, jobs), supply, room, gap=gap)
    price = _coarse_prices(rows, jobs, gpus)
    everybody = np.arange(jobs)
    edges, profit = _look(rows, everybody, price, _no_edges(jobs))
    bound = _proved(price, profit)
    best: Matching | None = None
    for turn in range(_TURNS):
        problem = Problem(supply, room, edges.worth, edges)
        found = in_steps(problem, lambda prices: np.inf if len(prices) else 0.0, gap, price, gap)
        price = found.price
        # Whoever got nothing looks again at once: without a place to go it only makes prices rise. All others look now
        # and then, since it takes long; only then something is proved.
        left = np.setdiff1d(everybody, found.pairs[:, 0])
        is_full = turn % _FULL_LOOK == _FULL_LOOK - 1 or len(left) * _MANY < jobs
        edges, profit = _look(rows, everybody if is_full else left, price, edges)
        bound = min(bound, _proved(price, profit)) if is_full else bound
        chosen = found if best is None or found.value > best.value else best
        best = chosen._replace(bound=bound, price=price, bids=found.bids + (0 if best is None else best.bids))
        if best.part >= 1 - 2 * gap:
            break
    assert best is not None
    return best


def _proved(price: Array, profit: Array) -> float:
    return weighed(price, np.ones(len(price))) + weighed(profit, np.ones(len(profit)))


def _no_edges(jobs: int) -> Edges:
    return Edges(np.zeros(jobs + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def _coarse_prices(rows: Rows, jobs: int, gpus: int) -> Array:
    """From a sample of the jobs, each standing for many."""
    chosen = np.unique(np.linspace(0, jobs - 1, min(_SAMPLED, jobs)).astype(int))
    table = np.concatenate([rows(int(one), int(one) + 1) for one in chosen])
    return match(table, np.diff(np.append(chosen, jobs)), np.ones(gpus, np.int32), gap=_SAMPLE_GAP).price


def _look(rows: Rows, who: Array, price: Array, known: Edges) -> tuple[Edges, Array]:
    """Edges with the best of these jobs at these prices; and the highest profit of each of them, over all GPUs."""
    jobs, gpus = len(known.starts) - 1, len(price)
    profit: Array = np.empty(len(who), np.float32)
    keys = [np.repeat(np.arange(jobs), np.diff(known.starts)) * gpus + known.ends_at]
    worth = [known.worth]
    for begin in range(0, len(who), _BLOCK):
        mine = who[begin : begin + _BLOCK]
        block = _rows_of(rows, mine)
        places: Array = np.empty((len(block), _CANDIDATES), np.int32)
        best = profit[begin : begin + len(block)]
        _native.match_best_places(gpus, _CANDIDATES, begin, _PARTS, block, price, places, best)
        row, column = np.nonzero(places >= 0)
        found = places[row, column]
        keys.append(mine[row] * gpus + found)
        worth.append(block[row, found])
    key, first = np.unique(np.concatenate(keys), return_index=True)
    starts = np.searchsorted(key, np.arange(jobs + 1) * gpus).astype(np.int64)
    return Edges(starts, (key % gpus).astype(np.int32), np.concatenate(worth)[first]), profit


def _rows_of(rows: Rows, who: Array) -> Array:
    ends = np.append(np.flatnonzero(np.diff(who) != 1) + 1, len(who))
    begins = np.append(0, ends[:-1])
    blocks = [rows(int(who[begin]), int(who[end - 1]) + 1) for begin, end in zip(begins, ends, strict=True)]
    return np.ascontiguousarray(np.concatenate(blocks) if len(blocks) > 1 else blocks[0], np.float32)
