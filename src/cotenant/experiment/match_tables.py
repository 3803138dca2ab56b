"""What is matched in the bench? Jobs and GPUs that are drawn, by kind or each for itself, and what pairs are worth.

`speeds`: a job that needs a part of the SMs runs at the part of it that is on offer, slowed down by how much both
sides lean on memory; where its memory does not fit, a pair is worth nothing. `independent`: every pair is drawn for
itself. The first is what predictions look like, and hard, since all jobs want the same GPUs; the second has no order
that could help.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

JOB_KINDS: Final = 500
GPU_KINDS: Final = 2_000
WORTHS: Final = ("speeds", "independent")
_IMPOSSIBLE: Final = 0.1
_SEED: Final = 20_000

Array: TypeAlias = Any
Rows: TypeAlias = Callable[[int, int], Array]


class Structured(NamedTuple):
    """Kinds, and how many there are of each."""

    worth: Array
    jobs: Array
    gpus: Array


def structured(worth: str, size: int) -> Structured:
    """So many jobs and GPUs, of 500 and 2,000 kinds; some kinds are far more common than others."""
    table = _rows(worth, JOB_KINDS, GPU_KINDS)(0, JOB_KINDS)
    return Structured(table, drawn_kinds(JOB_KINDS, size, 1), drawn_kinds(GPU_KINDS, size, 2))


def drawn_kinds(kinds: int, size: int, seed: int) -> Array:
    """How many of each kind, if so many are drawn; which kinds are common depends on the number of kinds alone."""
    common = np.random.default_rng([_SEED, kinds]).pareto(1.2, kinds) + 0.1
    drawn = np.random.default_rng([_SEED, kinds, seed]).choice(kinds, size, p=common / common.sum())
    return np.bincount(drawn, minlength=kinds)


def distinct(worth: str, size: int) -> Rows:
    """No two alike. Rows are made when they are asked for, and always the same."""
    return _rows(worth, size, size)


def _rows(worth: str, jobs: int, gpus: int) -> Rows:
    return _speeds(jobs, gpus) if worth == "speeds" else _independent(gpus)


def _speeds(jobs: int, gpus: int) -> Rows:
    dice = np.random.default_rng([_SEED, jobs, gpus])
    need, lean, memory = (dice.uniform(low, 1, (jobs, 1)).astype(np.float32) for low in (0.1, 0, 0))
    offer, load, free = (dice.uniform(low, 1, gpus).astype(np.float32) for low in (0.1, 0, 0.2))

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
