"""What is a round of placement told, and what does it say? Arrays by kind and by one, in; a short list, out.

Jobs that are alike are of one kind, GPUs that are alike of another, so that what is foretold is a small table: a row
for each kind of job, a column for each kind of GPU. Numbers of jobs, GPUs, nodes and kinds are places in these
arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cotenant.domain.gpu import WHOLE_PPM

Array: TypeAlias = Any


class Jobs(NamedTuple):
    """Whoever wants a GPU, in the order in which they came: of two alike the earlier goes first."""

    kind: Array
    """int32: its row."""
    priority: Array
    """int32: higher goes first, whatever is foretold."""
    waited_ns: Array
    """int64: who waits long is lifted a little."""
    lift: Array
    """float32: by how much its worth is multiplied for fairness (fair.lifts); 1: not at all."""
    now: Array
    """float32: what it is worth where it runs, if it is one that runs and may be moved; 0: it waits."""


class JobKinds(NamedTuple):
    """What jobs of a kind need; a row of the table each."""

    gpus: Array
    """int32: so many at once, of one node."""
    memory_bytes: Array
    """int64: on each of them."""
    need_ppm: Array
    """int32: the part of the SMs that it would use alone; 0: not known."""


class Gpus(NamedTuple):
    """GPUs that take a job now: no other offline job is there."""

    kind: Array
    """int32: its column."""
    node: Array
    """int32: never falling, so that those of a node are together."""


class GpuKinds(NamedTuple):
    """What GPUs of a kind have; a column of the table each."""

    offer_ppm: Array
    """int32: the part of the SMs that is on offer."""
    free_bytes: Array
    """int64: memory that is on offer."""
    online: Array
    """int32: online tenants there."""


class Round(NamedTuple):
    """A snapshot. Nobody changes its arrays."""

    jobs: Jobs
    job_kinds: JobKinds
    gpus: Gpus
    gpu_kinds: GpuKinds
    possible: Array
    """bool [kinds of jobs, kinds of GPUs]: no hard constraint is against it; whether it is safe, only `worth` says."""
    worth: Array
    """float32 of the same shape: the predicted speed over the speed alone on one GPU; 0: unsafe or impossible."""
    barred: Mapping[int, frozenset[int]]
    """Kinds of jobs, with nodes that they must not be on for who else is there."""
    price: Array | None = None
    """float32: of each kind of GPU, what the last round said (`Planned.price`), 0 for a new one; None: not known."""
    switch: float = 0.1
    """By how much of worth a move must gain."""
    moves: int = 0
    """The most of them in this round."""
    seed: int = 0
    """For those who draw lots."""
    sizes: Array | None = None
    """int32: by number of node, GPUs that it has in all; None: not known, so that none is kept for who needs many."""


class Pairing(NamedTuple):
    """A job, and the GPUs that it shall have."""

    job: int
    gpus: tuple[int, ...]
    worth: float
    """Of one of its GPUs, the slowest; without any lift."""


class Planned(NamedTuple):
    """What a round would do. Whoever commits it looks at hard constraints once more."""

    pairings: list[Pairing]
    price: Array | None = None
    """float32: of each kind of GPU, for the next round; None: this policy keeps none."""
    value: float = 0.0
    """What its single jobs are worth together, with their lifts, at the priority with the most of them."""
    bound: float = 0.0
    """What any choice for them would be worth at most; 0: not known."""


RoundPlan: TypeAlias = Callable[[Round], Planned]


class RoundPolicy(NamedTuple):
    """A way to choose, and the way of sharing that it goes with."""

    plan: RoundPlan
    way: str = "space"
    """How offline work shares a GPU with online work: "space" (at once, online first), "time" (by turns, alike),
    "priority" (by turns, online first) or "none" (GPUs without online work only)."""
    is_safe: bool = False
    """It plans no pair whose worth is 0: who would be unsafe everywhere need not be shown to it."""


def round_of(
    worth: Array, kinds: Array, gpu_kinds: Array, *, node: Array | None = None, gpus: Array | None = None, **more: Any
) -> Round:
    """A round in which little else matters: jobs and GPUs of these kinds, by default each GPU on a node of its own."""
    worth = np.asarray(worth, np.float32)
    rows, columns = worth.shape
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
        worth > 0,
        worth,
        {},
    )._replace(**more)
