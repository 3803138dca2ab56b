"""On which node does a job go that wants several GPUs at once?

It moves as fast as its slowest GPU lets it. It takes the node where that, for all of its GPUs, less what single jobs
would pay for them (the prices of the last round) is highest; of nodes alike, the one with the fewest GPUs left, so
that others stay whole. For who has waited for hours, a node is kept until enough of it is free.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np

from cotenant.policy.place.round import Array, Pairing, Round

_PER_GPU_LEFT: Final = 1e-4
"""What a GPU that stays free on the node takes off, so that it decides between nodes that are alike only."""
PATIENCE_NS: Final = 6 * 3_600_000_000_000
_KEPT_NODES: Final = 50
"""At most one node in so many is kept, and in smaller clusters one, after longer. Our choice."""
_PER_PRICE: Final = 1e-3
"""Of GPUs of a node that are nearly alike for it, it takes those that others want less."""


def place_gangs(given: Round, jobs: Array, is_free: Array, price: Array) -> list[Pairing]:
    """In their order; `is_free` is changed."""
    if not len(jobs):
        return []
    nodes = _Nodes(given, is_free, price)
    patience_ns = patience_in(0 if given.sizes is None else len(given.sizes))
    pairings, without = [], []
    for job in jobs.tolist():
        kind = int(given.jobs.kind[job])
        if gpus := nodes.take(kind):
            worth = float(given.worth[kind, given.gpus.kind[list(gpus)]].min())
            pairings.append(Pairing(job, gpus, worth))
        elif given.jobs.waited_ns[job] >= patience_ns:
            without.append(kind)
    _keep_nodes(given, without, is_free)
    return pairings


def patience_in(nodes: int) -> float:
    """How long a job waits for several GPUs before a node is kept for it.

    In a small cluster a node is much of it, so that others have more time first: by the root of how much more it is,
    between all of their waiting and all of its own.
    """
    return PATIENCE_NS * sqrt(max(1.0, _KEPT_NODES / max(nodes, 1)))


def _keep_nodes(given: Round, kinds: list[int], is_free: Array) -> None:
    """What is free stays so, until enough of it is: of the nodes that could ever do, where most is free already."""
    if given.sizes is None or not kinds:
        return
    most = max(1, len(given.sizes) // _KEPT_NODES)
    for kind in kinds[:most]:
        fits = is_free & (given.worth[kind][given.gpus.kind] > 0)
        free = np.bincount(given.gpus.node[fits], minlength=len(given.sizes))
        free[given.sizes < given.job_kinds.gpus[kind]] = 0
        free[sorted(given.barred.get(kind, ()))] = 0
        if free.max(initial=0) > 0:
            is_free[given.gpus.node == free.argmax()] = False


class _Nodes:
    """GPUs by node; what each node is worth to a kind of job is kept until a GPU of it is taken."""

    def __init__(self, given: Round, is_free: Array, price: Array) -> None:
        self._round = given
        self._is_free = is_free
        names, first, count = np.unique(given.gpus.node, return_index=True, return_counts=True)
        self._names = names
        places = first[:, None] + np.arange(count.max(initial=0))
        self._there = np.arange(count.max(initial=0)) < count[:, None]
        self._gpus = np.where(self._there, places, 0)
        self._kinds = given.gpus.kind[self._gpus] if len(names) else self._gpus
        self._prices = price[self._kinds]
        self._values: dict[int, Array] = {}
        self._changed: dict[int, list[int]] = {}

    def take(self, kind: int) -> tuple[int, ...]:
        values = self._fresh(kind)
        node = int(values.argmax()) if len(values) else 0
        if not len(values) or values[node] == -np.inf:
            return ()
        order = self._weigh(kind, np.array([node]))[1][0]
        gpus = tuple(sorted(self._gpus[node][order].tolist()))
        self._is_free[list(gpus)] = False
        for changed in self._changed.values():
            changed.append(node)
        return gpus

    def _fresh(self, kind: int) -> Array:
        """What each node is worth to this kind; what was known before counts for nodes that nothing was taken from."""
        if kind not in self._values:
            wanted = int(self._round.job_kinds.gpus[kind])
            enough = np.flatnonzero((self._there & self._is_free[self._gpus]).sum(axis=1) >= wanted)
            self._values[kind] = np.full(len(self._names), -np.inf)
            self._changed[kind] = enough.tolist()
        if changed := self._changed[kind]:
            nodes = np.array(sorted(set(changed)))
            self._values[kind][nodes] = self._weigh(kind, nodes)[0]
            changed.clear()
        return self._values[kind]

    def _weigh(self, kind: int, nodes: Array) -> tuple[Array, Array]:
        """What these nodes are worth to a job of this kind, and which places on each it would have."""
        wanted = int(self._round.job_kinds.gpus[kind])
        width = self._gpus.shape[1]
        if width < wanted:
            return np.full(len(nodes), -np.inf), np.zeros((len(nodes), 0), np.int64)
        there = self._there[nodes] & self._is_free[self._gpus[nodes]]
        price = self._prices[nodes]
        worth = np.where(there, self._round.worth[kind][self._kinds[nodes]], np.float32(0))
        if barred := self._round.barred.get(kind):
            worth[np.isin(self._names[nodes], sorted(barred))] = 0
        key = np.where(worth > 0, price * np.float32(_PER_PRICE) - worth, np.float32(np.inf))
        order = np.argsort(key, axis=1, kind="stable")[:, :wanted]
        places = order + np.arange(0, len(nodes) * width, width)[:, None]
        slowest = worth.ravel()[places].min(axis=1)
        paid = price.ravel()[places].sum(axis=1)
        left = there.sum(axis=1) - wanted
        return np.where(slowest > 0, slowest * wanted - paid - left * _PER_GPU_LEFT, -np.inf), order
