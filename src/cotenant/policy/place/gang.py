"""On which node does a job go that wants several GPUs at once?

It moves as fast as its slowest GPU lets it. It takes the node where that, for all of its GPUs, less what single jobs
would pay for them (the prices of the last round) is highest; of nodes alike, the one with the fewest GPUs left, so
that others stay whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cotenant.policy.place.round import Array, Pairing, Round

_PER_GPU_LEFT: Final = 1e-4
"""What a GPU that stays free on the node takes off, so that it decides between nodes that are alike only."""


def place_gangs(given: Round, jobs: Array, is_free: Array, price: Array) -> list[Pairing]:
    """In their order; `is_free` is changed."""
    nodes = _Nodes(given, is_free, price) if len(jobs) else None
    pairings = []
    for job in jobs.tolist():
        assert nodes is not None
        kind = int(given.jobs.kind[job])
        if gpus := nodes.take(kind):
            worth = float(given.worth[kind, given.gpus.kind[list(gpus)]].min())
            pairings.append(Pairing(job, gpus, worth))
    return pairings


class _Nodes:
    """GPUs by node; what each node is worth to a kind of job is kept until a GPU of it is taken."""

    def __init__(self, given: Round, is_free: Array, price: Array) -> None:
        self._round = given
        self._is_free = is_free
        self._price = price
        names, first, count = np.unique(given.gpus.node, return_index=True, return_counts=True)
        self._names = names
        places = first[:, None] + np.arange(count.max(initial=0))
        self._there = np.arange(count.max(initial=0)) < count[:, None]
        self._gpus = np.where(self._there, places, 0)
        self._values: dict[int, Array] = {}

    def take(self, kind: int) -> tuple[int, ...]:
        if not len(self._names):
            return ()
        if kind not in self._values:
            self._values[kind] = self._value(kind, np.arange(len(self._names)))[0]
        values = self._values[kind]
        node = int(values.argmax())
        if values[node] == -np.inf:
            return ()
        chosen = self._value(kind, np.array([node]))[1][0]
        gpus = tuple(sorted(int(gpu) for gpu in chosen))
        self._is_free[list(gpus)] = False
        for other, kept in self._values.items():
            kept[node] = self._value(other, np.array([node]))[0][0]
        return gpus

    def _value(self, kind: int, nodes: Array) -> tuple[Array, Array]:
        """What these nodes are worth to a job of this kind, and which GPUs it would have there."""
        wanted = int(self._round.job_kinds.gpus[kind])
        gpus, there = self._gpus[nodes], self._there[nodes] & self._is_free[self._gpus[nodes]]
        if gpus.shape[1] < wanted:
            return np.full(len(nodes), -np.inf), gpus
        kinds = self._round.gpus.kind[gpus]
        worth = np.where(there, self._round.worth[kind][kinds], 0)
        if barred := self._round.barred.get(kind):
            worth[np.isin(self._names[nodes], sorted(barred))] = 0
        order = np.lexsort((self._price[kinds], -worth), axis=1)[:, :wanted]
        slowest = np.take_along_axis(worth, order[:, -1:], axis=1)[:, 0]
        paid = np.take_along_axis(self._price[kinds], order, axis=1).sum(axis=1)
        left = there.sum(axis=1) - wanted
        value = np.where(slowest > 0, slowest * wanted - paid - left * _PER_GPU_LEFT, -np.inf)
        return value, np.take_along_axis(gpus, order, axis=1)
