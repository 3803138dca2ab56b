"""Who with whom, where no two are alike? The whole table is never held: a job bids for the GPUs that are best for it.

Prices of a first, coarse auction of a sample of the jobs say what GPUs are about worth. Every job keeps those that are
best for it at these prices, and some that are best of a part of all, another one from job to job, so that jobs that are
nearly alike do not all want the same few. An auction among them gives better prices; at those, GPUs that are better
still for somebody are added, and so on. The bound is taken over all pairs, a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from cotenant import _native
from cotenant.policy.place.match import GAP, Array, Edges, Matching, Problem, in_steps, match, weighed

_CANDIDATES: Final = 32
_PARTS: Final = 16
_SAMPLED: Final = 512
_SAMPLE_GAP: Final = 1 / 64
_BLOCK: Final = 256
_ROUNDS: Final = 12
_HELD_WHOLE: Final = 1 << 20
"""Pairs of which the table is simply made: 4 MiB."""

Rows: TypeAlias = Callable[[int, int], Array]
"""What jobs of these numbers are worth on every GPU, as float32."""


class _Looked(NamedTuple):
    edges: Edges
    bound: float
    """By the prices that were looked at."""


def match_distinct(rows: Rows, jobs: int, gpus: int, *, gap: float = GAP, held_whole: int = _HELD_WHOLE) -> Matching:
    """Each job and each GPU once; rows are asked for again and again, and must always be the same."""
    supply, room = np.ones(jobs, np.int32), np.ones(gpus, np.int32)
    if jobs * gpus <= held_whole:
        return match(rows(0, jobs), supply, room, gap=gap)
    price = _coarse_prices(rows, jobs, gpus)
    looked = _look(rows, supply, price, None)
    best: Matching | None = None
    for _ in range(_ROUNDS):
        problem = Problem(supply, room, looked.edges.worth, looked.edges)
        found = in_steps(problem, lambda prices: np.inf if len(prices) else 0.0, gap, price, gap)
        price = found.price
        looked = _look(rows, supply, price, looked.edges)
        bound = looked.bound if best is None else min(looked.bound, best.bound)
        chosen = found if best is None or found.value > best.value else best
        bids = found.bids + (0 if best is None else best.bids)
        best = chosen._replace(bound=bound, price=price, bids=bids)
        if best.part >= 1 - 2 * gap:
            break
    assert best is not None
    return best


def _coarse_prices(rows: Rows, jobs: int, gpus: int) -> Array:
    """From a sample of the jobs, each standing for many."""
    chosen = np.unique(np.linspace(0, jobs - 1, min(_SAMPLED, jobs)).astype(int))
    table = np.concatenate([rows(int(one), int(one) + 1) for one in chosen])
    return match(table, np.diff(np.append(chosen, jobs)), np.ones(gpus, np.int32), gap=_SAMPLE_GAP).price


def _look(rows: Rows, supply: Array, price: Array, known: Edges | None) -> _Looked:
    """The best of each job at these prices, with those it had; and what the prices prove."""
    jobs, gpus = len(supply), len(price)
    profit: Array = np.empty(jobs, np.float32)
    keys, worth = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    if known is not None:
        sources = np.repeat(np.arange(jobs), np.diff(known.starts))
        keys, worth = [sources * gpus + known.ends_at], [known.worth]
    for begin in range(0, jobs, _BLOCK):
        block: Array = np.ascontiguousarray(rows(begin, min(begin + _BLOCK, jobs)), np.float32)
        places: Array = np.empty((len(block), _CANDIDATES), np.int32)
        best = profit[begin : begin + len(block)]
        _native.match_best_places(gpus, _CANDIDATES, begin, _PARTS, block, price, places, best)
        row, column = np.nonzero(places >= 0)
        found = places[row, column]
        keys.append((row + begin) * gpus + found)
        worth.append(block[row, found])
    key, first = np.unique(np.concatenate(keys), return_index=True)
    starts = np.searchsorted(key, np.arange(jobs + 1) * gpus).astype(np.int64)
    edges = Edges(starts, (key % gpus).astype(np.int32), np.concatenate(worth)[first])
    return _Looked(edges, weighed(price, np.ones(gpus)) + weighed(profit, supply))
