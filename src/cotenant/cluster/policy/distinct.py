"""Matching of jobs and GPUs that all differ, without holding the whole table of weights.

A coarse auction of a sample of the jobs gives initial prices. Each job keeps the GPUs that are best for it at these
prices, and some that are best within a part of all GPUs, another part for each job, so that similar jobs do not all bid
for the same GPUs. An auction on these edges gives better prices, at which edges are added, and so on. The bound is
computed over all pairs, a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from cotenant import _native
from cotenant.cluster.policy.match import GAP, Array, Edges, Matching, Problem, exact_dot, in_steps, match

_CANDIDATES: Final = 64
_PARTS: Final = 16
_SAMPLED: Final = 512
_SAMPLE_GAP: Final = 1 / 64
_BLOCK: Final = 256
_TURNS: Final = 24
_FULL_SEARCH: Final = 4
_MANY: Final = 200
"""If fewer than one job in this many got nothing, all jobs add edges."""
_TABLE_LIMIT: Final = 1 << 20
"""Number of pairs up to which the whole table is made: 4 MiB."""

Rows: TypeAlias = Callable[[int, int], Array]
"""Returns the weights of a range of jobs on every GPU, as float32."""


def match_distinct(rows: Rows, jobs: int, gpus: int, *, gap: float = GAP, table_limit: int = _TABLE_LIMIT) -> Matching:
    """Match each job and each GPU at most once; `rows` is called repeatedly and must always return the same."""
    supply, capacity = np.ones(jobs, np.int32), np.ones(gpus, np.int32)
    if jobs * gpus <= table_limit:
        return match(rows(0, jobs), supply, capacity, gap=gap)
    price = _coarse_prices(rows, jobs, gpus)
    all_jobs = np.arange(jobs)
    edges, profit = _search(rows, all_jobs, price, _no_edges(jobs))
    bound = _proved(price, profit)
    best: Matching | None = None
    for turn in range(_TURNS):
        problem = Problem(supply, capacity, edges.weight, edges)
        matching = in_steps(problem, lambda prices: np.inf if len(prices) else 0.0, gap, price, gap)
        price = matching.price
        # Jobs without a GPU add edges in every turn: with too few edges they only raise prices. All other jobs
        # add edges now and then, because that takes long; only then is a bound proved.
        unmatched = np.setdiff1d(all_jobs, matching.pairs[:, 0])
        is_full = turn % _FULL_SEARCH == _FULL_SEARCH - 1 or len(unmatched) * _MANY < jobs
        edges, profit = _search(rows, all_jobs if is_full else unmatched, price, edges)
        bound = min(bound, _proved(price, profit)) if is_full else bound
        chosen = matching if best is None or matching.value > best.value else best
        best = chosen._replace(bound=bound, price=price, bids=matching.bids + (0 if best is None else best.bids))
        if best.part >= 1 - 2 * gap:
            break
    assert best is not None
    return best


def _proved(price: Array, profit: Array) -> float:
    return exact_dot(price, np.ones(len(price))) + exact_dot(profit, np.ones(len(profit)))


def _no_edges(jobs: int) -> Edges:
    return Edges(np.zeros(jobs + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def _coarse_prices(rows: Rows, jobs: int, gpus: int) -> Array:
    """Return prices from a sample of the jobs, each of which stands for many."""
    chosen = np.unique(np.linspace(0, jobs - 1, min(_SAMPLED, jobs)).astype(int))
    table = np.concatenate([rows(int(job), int(job) + 1) for job in chosen])
    return match(table, np.diff(np.append(chosen, jobs)), np.ones(gpus, np.int32), gap=_SAMPLE_GAP).price


def _search(rows: Rows, chosen: Array, price: Array, edges: Edges) -> tuple[Edges, Array]:
    """Add the best edges of these jobs at these prices, and return the highest profit of each job over all GPUs."""
    jobs, gpus = len(edges.starts) - 1, len(price)
    profit: Array = np.empty(len(chosen), np.float32)
    keys = [np.repeat(np.arange(jobs), np.diff(edges.starts)) * gpus + edges.ends_at]
    weight = [edges.weight]
    for begin in range(0, len(chosen), _BLOCK):
        block_jobs = chosen[begin : begin + _BLOCK]
        block = _rows_of(rows, block_jobs)
        candidates: Array = np.empty((len(block), _CANDIDATES), np.int32)
        best = profit[begin : begin + len(block)]
        _native.match_best_places(gpus, _CANDIDATES, begin, _PARTS, block, price, candidates, best)
        row, column = np.nonzero(candidates >= 0)
        gpu_of_edge = candidates[row, column]
        keys.append(block_jobs[row] * gpus + gpu_of_edge)
        weight.append(block[row, gpu_of_edge])
    key, first = np.unique(np.concatenate(keys), return_index=True)
    starts = np.searchsorted(key, np.arange(jobs + 1) * gpus).astype(np.int64)
    return Edges(starts, (key % gpus).astype(np.int32), np.concatenate(weight)[first]), profit


def _rows_of(rows: Rows, jobs: Array) -> Array:
    ends = np.append(np.flatnonzero(np.diff(jobs) != 1) + 1, len(jobs))
    begins = np.append(0, ends[:-1])
    blocks = [rows(int(jobs[begin]), int(jobs[end - 1]) + 1) for begin, end in zip(begins, ends, strict=True)]
    return np.ascontiguousarray(np.concatenate(blocks) if len(blocks) > 1 else blocks[0], np.float32)
