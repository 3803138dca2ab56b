"""Placement of jobs that need several GPUs of one node.

Such a job is as fast as its slowest GPU. It takes the node with the highest sum of weights minus the prices of the GPUs
in the last round; among equal nodes, the one with the fewest free GPUs remaining, so that other nodes stay whole. After
hours of waiting, a node is reserved until enough of its GPUs are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final

import numpy as np

from cotenant.cluster.policy.round import Array, Pairing, Round

_PER_FREE_GPU: Final = 1e-4
"""Penalty for each GPU that remains free on the node; small, so that it only decides between equal nodes."""
PATIENCE_NS: Final = 6 * 3_600_000_000_000
_RESERVED_NODES: Final = 50
"""At most one node in this many is reserved; in smaller clusters one, after a longer wait. Our choice."""
_PER_PRICE: Final = 1e-3
"""Among nearly equal GPUs of a node, those with the lower price are taken."""


def place_gangs(inputs: Round, jobs: Array, is_free: Array, price: Array) -> list[Pairing]:
    """Place the jobs in order and update `is_free`."""
    if not len(jobs):
        return []
    nodes = _Nodes(inputs, is_free, price)
    patience_ns = patience_in(0 if inputs.sizes is None else len(inputs.sizes))
    pairings, unplaced = [], []
    for job in jobs.tolist():
        kind = int(inputs.jobs.kind[job])
        if gpus := nodes.take(kind):
            weight = float(inputs.weight[kind, inputs.gpus.kind[list(gpus)]].min())
            pairings.append(Pairing(job, gpus, weight))
        elif inputs.jobs.waited_ns[job] >= patience_ns:
            unplaced.append(kind)
    _keep_nodes(inputs, unplaced, is_free)
    return pairings


def place_together(inputs: Round, gangs: Sequence[Sequence[int]], is_free: Array) -> list[Pairing]:
    """Place each list of jobs as a whole, on any nodes, or not at all, and update `is_free`.

    For the first one that has waited beyond the patience without enough GPUs, the free GPUs that suit it are
    reserved: they stay free in this round.
    """
    if not gangs:
        return []
    nodes = _Nodes(inputs, is_free, np.zeros(inputs.weight.shape[1], np.float32))
    needed = inputs.job_kinds.gpus[inputs.jobs.kind]
    patience_ns = patience_in(0 if inputs.sizes is None else len(inputs.sizes))
    pairings: list[Pairing] = []
    unplaced: list[Sequence[int]] = []
    for jobs in gangs:
        taken: list[Pairing] = []
        for job in sorted(jobs, key=lambda job: -int(needed[job])):  # the largest first: the smallest fit anywhere
            kind = int(inputs.jobs.kind[job])
            gpus = nodes.take(kind)
            if not gpus:
                nodes.release([gpu for pairing in taken for gpu in pairing.gpus])
                if inputs.jobs.waited_ns[list(jobs)].max() >= patience_ns:
                    unplaced.append(jobs)
                taken = []
                break
            taken.append(Pairing(job, gpus, float(inputs.weight[kind, inputs.gpus.kind[list(gpus)]].min())))
        pairings += taken
    for jobs in unplaced[:1]:
        kinds = inputs.jobs.kind[list(jobs)]
        suits = (inputs.weight[kinds] > 0).any(axis=0)[inputs.gpus.kind] & is_free
        is_free[np.flatnonzero(suits)[: int(needed[list(jobs)].sum())]] = False
    return pairings


def patience_in(nodes: int) -> float:
    """Return how long a job waits before a node is reserved for it.

    In a small cluster a node is a large part of it, so the wait grows with the square root of that part: a
    compromise between the waiting of the other jobs and its own.
    """
    return PATIENCE_NS * sqrt(max(1.0, _RESERVED_NODES / max(nodes, 1)))


def _keep_nodes(inputs: Round, kinds: list[int], is_free: Array) -> None:
    """Keep the free GPUs of one node per kind free: the node that could hold the job and has the most free."""
    if inputs.sizes is None or not kinds:
        return
    limit = max(1, len(inputs.sizes) // _RESERVED_NODES)
    for kind in kinds[:limit]:
        fits = is_free & (inputs.weight[kind][inputs.gpus.kind] > 0)
        free = np.bincount(inputs.gpus.node[fits], minlength=len(inputs.sizes))
        free[inputs.sizes < inputs.job_kinds.gpus[kind]] = 0
        free[sorted(inputs.barred.get(kind, ()))] = 0
        if free.max(initial=0) > 0:
            is_free[inputs.gpus.node == free.argmax()] = False


class _Nodes:
    """GPUs by node; the value of a node for a kind of job is cached until one of its GPUs is taken."""

    def __init__(self, inputs: Round, is_free: Array, price: Array) -> None:
        self._round = inputs
        self._is_free = is_free
        names, first, count = np.unique(inputs.gpus.node, return_index=True, return_counts=True)
        self._names = names
        indices = first[:, None] + np.arange(count.max(initial=0))
        self._exists = np.arange(count.max(initial=0)) < count[:, None]
        self._gpus = np.where(self._exists, indices, 0)
        self._kinds = inputs.gpus.kind[self._gpus] if len(names) else self._gpus
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

    def release(self, gpus: Sequence[int]) -> None:
        """Make GPUs that were taken free again."""
        self._is_free[list(gpus)] = True
        changed_nodes = np.searchsorted(self._names, self._round.gpus.node[list(gpus)]).tolist()
        for changed in self._changed.values():
            changed.extend(changed_nodes)

    def _fresh(self, kind: int) -> Array:
        """Return the value of each node for this kind; only nodes from which GPUs were taken are computed anew."""
        if kind not in self._values:
            wanted = int(self._round.job_kinds.gpus[kind])
            candidates = np.flatnonzero((self._exists & self._is_free[self._gpus]).sum(axis=1) >= wanted)
            self._values[kind] = np.full(len(self._names), -np.inf)
            self._changed[kind] = candidates.tolist()
        if changed := self._changed[kind]:
            nodes = np.array(sorted(set(changed)))
            self._values[kind][nodes] = self._weigh(kind, nodes)[0]
            changed.clear()
        return self._values[kind]

    def _weigh(self, kind: int, nodes: Array) -> tuple[Array, Array]:
        """Return the value of these nodes for this kind of job, and which of their GPUs it would take."""
        wanted = int(self._round.job_kinds.gpus[kind])
        width = self._gpus.shape[1]
        if width < wanted:
            return np.full(len(nodes), -np.inf), np.zeros((len(nodes), 0), np.int64)
        is_available = self._exists[nodes] & self._is_free[self._gpus[nodes]]
        price = self._prices[nodes]
        weight = np.where(is_available, self._round.weight[kind][self._kinds[nodes]], np.float32(0))
        if barred := self._round.barred.get(kind):
            weight[np.isin(self._names[nodes], sorted(barred))] = 0
        key = np.where(weight > 0, price * np.float32(_PER_PRICE) - weight, np.float32(np.inf))
        order = np.argsort(key, axis=1, kind="stable")[:, :wanted]
        indices = order + np.arange(0, len(nodes) * width, width)[:, None]
        slowest = weight.ravel()[indices].min(axis=1)
        paid = price.ravel()[indices].sum(axis=1)
        remaining = is_available.sum(axis=1) - wanted
        return np.where(slowest > 0, slowest * wanted - paid - remaining * _PER_FREE_GPU, -np.inf), order
