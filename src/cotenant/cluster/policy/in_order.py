"""Placement in queue order: each job takes the first suitable GPU in an order that the policy gives."""

from __future__ import annotations

from typing import Final

import numpy as np

from cotenant.cluster.policy.round import Array, Pairing, Round, RoundPlan
from cotenant.units.share import WHOLE_PPM

_NONE: Final = np.iinfo(np.int64).max


class Free:
    """GPUs that are free in this round, in an order."""

    def __init__(self, inputs: Round, allowed: Array, order: Array | None = None, cost: Array | None = None) -> None:
        """Bind to a round.

        `allowed` is a table of kinds. The lowest `cost` of a pair decides first, then the position in `order`,
        which names all GPUs.
        """
        self._round = inputs
        self._allowed = allowed
        self._cost = cost
        count = len(inputs.gpus.kind)
        self._order = np.arange(count) if order is None else np.asarray(order)
        self._rank = np.empty(count, np.int64)
        self._rank[self._order] = np.arange(count)
        self.is_free = np.ones(count, bool)
        self.free_count = count
        kinds = inputs.gpus.kind[self._order]
        columns = allowed.shape[1]
        self._pool = self._order[np.argsort(kinds, kind="stable")]
        ends = np.cumsum(np.bincount(kinds, minlength=columns)) if count else np.zeros(columns, np.int64)
        self._next = np.concatenate([[0], ends[:-1]]).astype(np.int64) if columns else ends
        self._end = ends
        self._head = np.full(columns, _NONE, np.int64)
        for column in range(columns):
            self._advance(column)
        self._exhausted: set[int] = set()

    def take(self, kind: int) -> tuple[int, ...]:
        """Take and return the GPUs for a job of this kind; empty: there are none."""
        chosen = self.peek(kind)
        for gpu in chosen:
            self.is_free[gpu] = False
            self.free_count -= 1
            self._advance(int(self._round.gpus.kind[gpu]))
        return chosen

    def peek(self, kind: int) -> tuple[int, ...]:
        """Return the GPUs that `take` would take."""
        if not self.free_count or kind in self._exhausted:
            return ()
        wanted = int(self._round.job_kinds.gpus[kind])
        chosen = self._search(kind, wanted) if wanted > 1 or kind in self._round.barred else self._take_single(kind)
        if not chosen:
            self._exhausted.add(kind)  # the free GPUs only become fewer
        return chosen

    def hold(self, gpus: Array) -> None:
        """Mark GPUs as not free."""
        self.is_free[gpus] = False
        self.free_count = int(self.is_free.sum())
        for column in np.unique(self._round.gpus.kind[gpus]):
            self._advance(int(column))

    def _advance(self, column: int) -> None:
        index, end = int(self._next[column]), int(self._end[column])
        while index < end and not self.is_free[self._pool[index]]:
            index += 1
        self._next[column] = index
        self._head[column] = self._rank[self._pool[index]] if index < end else _NONE

    def _take_single(self, kind: int) -> tuple[int, ...]:
        heads = np.where(self._allowed[kind], self._head, _NONE)
        if self._cost is not None:
            is_available = heads < _NONE
            if not is_available.any():
                return ()
            lowest = self._cost[kind][is_available].min()
            heads = np.where(is_available & (self._cost[kind] <= lowest), heads, _NONE)
        first = int(heads.min(initial=_NONE))
        return () if first == _NONE else (int(self._order[first]),)

    def _search(self, kind: int, wanted: int) -> tuple[int, ...]:
        """Return GPUs of one node: of the nodes with enough suitable GPUs, the one with the first of them."""
        inputs = self._round
        kinds, nodes = inputs.gpus.kind, inputs.gpus.node
        fits = self.is_free & self._allowed[kind][kinds]
        if barred := inputs.barred.get(kind):
            fits &= ~np.isin(nodes, sorted(barred))
        suitable = np.flatnonzero(fits)
        if len(suitable) < wanted:
            return ()
        suitable = suitable[np.bincount(nodes[suitable])[nodes[suitable]] >= wanted]
        if not len(suitable):
            return ()
        cost = np.zeros(len(suitable)) if self._cost is None else self._cost[kind][kinds[suitable]]
        suitable = suitable[np.lexsort((self._rank[suitable], cost))]
        on_node = suitable[nodes[suitable] == nodes[suitable[0]]]
        return tuple(int(gpu) for gpu in on_node[:wanted])


def turns(inputs: Round) -> Array:
    """Return the waiting jobs in queue order."""
    waiting = np.flatnonzero(inputs.jobs.now <= 0)
    return waiting[np.argsort(-inputs.jobs.priority[waiting], kind="stable")]


def in_turn(inputs: Round, free: Free) -> RoundPlan:
    """Place every job in queue order."""
    pairings = []
    for job in turns(inputs):
        if not free.free_count:
            break
        kind = int(inputs.jobs.kind[job])
        if gpus := free.take(kind):
            weight = inputs.weight[kind, inputs.gpus.kind[list(gpus)]].min()
            pairings.append(Pairing(int(job), gpus, float(weight)))
    return RoundPlan(pairings)


def first_fit(inputs: Round) -> RoundPlan:
    """Take GPUs in their order."""
    return in_turn(inputs, Free(inputs, inputs.possible))


def best_fit(inputs: Round) -> RoundPlan:
    """Take the GPU with the least share and memory left over, each relative to the largest GPU.

    A share that is too small is as bad as one that is too large by as much; a job of unknown use takes the smallest
    offer.
    """
    offer, memory = inputs.gpu_kinds.offer_ppm, inputs.gpu_kinds.free_bytes
    share_left = np.abs(offer - inputs.job_kinds.need_ppm[:, None]) / WHOLE_PPM
    memory_left = (memory - inputs.job_kinds.memory_bytes[:, None]) / max(1, memory.max(initial=0))
    return in_turn(inputs, Free(inputs, inputs.possible, cost=share_left + memory_left))


def spread_round(inputs: Round) -> RoundPlan:
    """Take GPUs in the order that results if each job takes one of the emptiest node."""
    nodes = inputs.gpus.node
    indices = np.arange(len(nodes))
    first = np.searchsorted(nodes, nodes)
    remaining = (
        np.searchsorted(nodes, nodes, side="right") - indices
    )  # free GPUs of the node after those before this one are taken
    return in_turn(inputs, Free(inputs, inputs.possible, np.lexsort((first, -remaining))))


def random_round(inputs: Round) -> RoundPlan:
    """Take GPUs in an order that the seed determines."""
    order = np.random.default_rng(inputs.seed).permutation(len(inputs.gpus.kind))
    return in_turn(inputs, Free(inputs, inputs.possible, order))


def no_sharing(inputs: Round) -> RoundPlan:
    """Take GPUs without online work in their order."""
    return in_turn(inputs, Free(inputs, inputs.possible & (inputs.gpu_kinds.online == 0)))
