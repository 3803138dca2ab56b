"""Random instances for bench `match`: jobs and GPUs by kind or all distinct, and the weights of their pairs.

`speeds`: a job that needs a fraction of the SMs runs at the fraction of it that is available, slowed down by the memory
bandwidth that both sides use; the weight is 0 if its memory does not fit. `independent`: the weight of every pair is
drawn independently. The first resembles predictions and is hard, because all jobs prefer the same GPUs; the second has
no structure that a solver could use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

JOB_KINDS: Final = 500
GPU_KINDS: Final = 2_000
WEIGHTS: Final = ("speeds", "independent")
_IMPOSSIBLE: Final = 0.1
_SEED: Final = 20_000

Array: TypeAlias = Any
Rows: TypeAlias = Callable[[int, int], Array]


class StructuredInstance(NamedTuple):
    """A table of weights by kind, and the number of jobs and GPUs of each kind."""

    weight: Array
    jobs: Array
    gpus: Array


def structured(weight: str, size: int) -> StructuredInstance:
    """Return `size` jobs and GPUs of 500 and 2,000 kinds, some of which are far more common than others."""
    table = _rows(weight, JOB_KINDS, GPU_KINDS)(0, JOB_KINDS)
    return StructuredInstance(table, drawn_kinds(JOB_KINDS, size, 1), drawn_kinds(GPU_KINDS, size, 2))


def drawn_kinds(kinds: int, size: int, seed: int) -> Array:
    """Draw `size` items and count them by kind; which kinds are common depends on the number of kinds alone."""
    common = np.random.default_rng([_SEED, kinds]).pareto(1.2, kinds) + 0.1
    prepared = np.random.default_rng([_SEED, kinds, seed]).choice(kinds, size, p=common / common.sum())
    return np.bincount(prepared, minlength=kinds)


def distinct(weight: str, size: int) -> Rows:
    """Return a table without equal rows or columns, whose rows are computed on demand and deterministic."""
    return _rows(weight, size, size)


def _rows(weight: str, jobs: int, gpus: int) -> Rows:
    return _speeds(jobs, gpus) if weight == "speeds" else _independent(gpus)


def _speeds(jobs: int, gpus: int) -> Rows:
    rng = np.random.default_rng([_SEED, jobs, gpus])
    need, lean, memory = (rng.uniform(low, 1, (jobs, 1)).astype(np.float32) for low in (0.1, 0, 0))
    offer, load, free = (rng.uniform(low, 1, gpus).astype(np.float32) for low in (0.1, 0, 0.2))

    def rows(begin: int, end: int) -> Array:
        speed = np.minimum(np.float32(1), offer / need[begin:end])
        speed *= 1 - np.float32(0.6) * lean[begin:end] * load
        speed *= memory[begin:end] * np.float32(0.6) <= free
        return speed

    return rows


def _independent(gpus: int) -> Rows:
    def rows(begin: int, end: int) -> Array:
        table = np.empty((end - begin, gpus), np.float32)
        for row in range(begin, end):
            np.random.Generator(np.random.SFC64([_SEED, row])).random(dtype=np.float32, out=table[row - begin])
        return np.where(table < _IMPOSSIBLE, np.float32(0), table)

    return rows
