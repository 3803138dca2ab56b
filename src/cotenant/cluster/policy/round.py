"""Input and output of a placement round: arrays of jobs and GPUs by kind, and a list of pairings.

Weights are a table with a row for each kind of job and a column for each kind of GPU. Jobs, GPUs, nodes and kinds are
identified by their indices in these arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from cotenant.units.share import WHOLE_PPM

Array: TypeAlias = Any
MIN_FACTOR: Final = 0.5
MAX_FACTOR: Final = 2.0
"""A user without any GPU time counts at most four times as much as one with all of it, so that the speed of a pair
still matters."""


class Jobs(NamedTuple):
    """Jobs that take part, in the order of submission; of two equal jobs the earlier one goes first."""

    kind: Array
    """int32: row of its kind."""
    priority: Array
    """int32: higher goes first, whatever the weights are."""
    waited_ns: Array
    """int64: long waiting increases the weight a little."""
    priority_factor: Array
    """float32: factor on the weight for fair sharing (`priority_factors`); 1: none."""
    now: Array
    """float32: weight where it runs, for a running job that may be moved; 0: it waits."""


class JobKinds(NamedTuple):
    """Requirements of each kind of job, by row."""

    gpus: Array
    """int32: GPUs of one node, allocated together."""
    memory_bytes: Array
    """int64: memory on each GPU."""
    need_ppm: Array
    """int32: part of the SMs that it would use alone; 0: unknown."""


class Gpus(NamedTuple):
    """Open GPUs, which have no offline job."""

    kind: Array
    """int32: column of its kind."""
    node: Array
    """int32: ascending, so that the GPUs of a node are adjacent."""


class GpuKinds(NamedTuple):
    """Resources of each kind of GPU, by column."""

    offer_ppm: Array
    """int32: part of the SMs on offer."""
    free_bytes: Array
    """int64: memory on offer."""
    online: Array
    """int32: number of online tenants."""


class Round(NamedTuple):
    """Input of a policy. Its arrays are not modified."""

    jobs: Jobs
    job_kinds: JobKinds
    gpus: Gpus
    gpu_kinds: GpuKinds
    possible: Array
    """bool [kinds of jobs, kinds of GPUs]: no hard constraint excludes the pair; `weight` tells whether it is safe."""
    weight: Array
    """float32 of the same shape: predicted speed relative to the speed alone on one GPU; 0: unsafe or impossible."""
    barred: Mapping[int, frozenset[int]]
    """Kinds of jobs, with the nodes that are excluded because of other jobs there."""
    price: Array | None = None
    """float32: price of each kind of GPU from the last round (`RoundPlan.price`), 0 for a new kind; None: unknown."""
    switch: float = 0.1
    """Gain in weight that a move must exceed."""
    moves: int = 0
    """Largest number of moves in this round."""
    seed: int = 0
    """Seed for policies that use random numbers."""
    sizes: Array | None = None
    """int32: total GPUs by node; None: unknown, so that no node is reserved for gangs."""


class Pairing(NamedTuple):
    """A job and the GPUs that it gets."""

    job: int
    gpus: tuple[int, ...]
    weight: float
    """Weight on its slowest GPU, without factors."""


class RoundPlan(NamedTuple):
    """Output of a policy. The hard constraints are checked again at the commit."""

    pairings: list[Pairing]
    price: Array | None = None
    """float32: price of each kind of GPU for the next round; None: the policy uses no prices."""
    value: float = 0.0
    """Total weight of its single-GPU jobs, with factors, at the priority with the most of them."""
    bound: float = 0.0
    """Upper bound of that total; 0: unknown."""


PlanFunction: TypeAlias = Callable[[Round], RoundPlan]


class RoundPolicy(NamedTuple):
    """A policy, and the sharing mode for which it is meant."""

    plan: PlanFunction
    mode: str = "space"
    """How offline work shares a GPU with online work: "space" (at the same time, online first), "time" (time slices,
    equal), "priority" (time slices, online first) or "none" (only GPUs without online work)."""
    is_safe: bool = False
    """Whether the policy never plans a pair with weight 0; jobs that are unsafe everywhere are then not passed to
    it."""


def round_of(
    weight: Array, kinds: Array, gpu_kinds: Array, *, node: Array | None = None, gpus: Array | None = None, **more: Any
) -> Round:
    """Return a round for tests and benches: jobs and GPUs of these kinds, by default each GPU on its own node."""
    weight = np.asarray(weight, np.float32)
    rows, columns = weight.shape
    jobs, devices = len(kinds), len(gpu_kinds)
    return Round(
        Jobs(
            np.asarray(kinds, np.int32),
            np.zeros(jobs, np.int32),
            np.zeros(jobs, np.int64),
            np.ones(jobs, np.float32),
            np.zeros(jobs, np.float32),
        ),
        JobKinds(
            np.ones(rows, np.int32) if gpus is None else np.asarray(gpus, np.int32),
            np.zeros(rows, np.int64),
            np.zeros(rows, np.int32),
        ),
        Gpus(
            np.asarray(gpu_kinds, np.int32),
            np.arange(devices, dtype=np.int32) if node is None else np.asarray(node, np.int32),
        ),
        GpuKinds(np.full(columns, WHOLE_PPM, np.int32), np.zeros(columns, np.int64), np.zeros(columns, np.int32)),
        weight > 0,
        weight,
        {},
    )._replace(**more)


def priority_factors(received: Array) -> Array:
    """Return the priority factor of each user by received GPU time; above 1: less than an equal share."""
    received = np.asarray(received, np.float64)
    due = received.sum() / max(1, len(received))
    if due <= 0:
        return np.ones(len(received), np.float32)
    return np.clip(2 * due / (due + received), MIN_FACTOR, MAX_FACTOR).astype(np.float32)
