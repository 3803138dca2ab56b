"""Placement in queue order: each job takes the first suitable GPU in an order that the policy gives."""

from __future__ import annotations

from typing import Final

import numpy as np

from cotenant.cluster.policy.round import Array, Pairing, Round, RoundPlan
from cotenant.units.share import WHOLE_PPM

_NONE: Final = np.iinfo(np.int64).max


class Free:
    """GPUs that are free in this round, in an order."""

    def __init__(self, given: Round, allowed: Array, order: Array | None = None, cost: Array | None = None) -> None:
        """Bind to a round.

        `allowed` is a table of kinds. The lowest `cost` of a pair decides first, then the position in `order`,
        which names all GPUs.
        """
        self._round = given
        self._allowed = allowed
        self._cost = cost
        count = len(given.gpus.kind)
        self._order = np.arange(count) if order is None else np.asarray(order)
        self._rank = np.empty(count, np.int64)
        self._rank[self._order] = np.arange(count)
        self.is_free = np.ones(count, bool)
        self.left = count
        kinds = given.gpus.kind[self._order]
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
            self.left -= 1
            self._advance(int(self._round.gpus.kind[gpu]))
        return chosen

    def peek(self, kind: int) -> tuple[int, ...]:
        """Return the GPUs that `take` would take."""
        if not self.left or kind in self._exhausted:
            return ()
        wanted = int(self._round.job_kinds.gpus[kind])
        chosen = self._search(kind, wanted) if wanted > 1 or kind in self._round.barred else self._one(kind)
        if not chosen:
            self._exhausted.add(kind)  # the free GPUs only become fewer
        return chosen

    def hold(self, gpus: Array) -> None:
        """Mark GPUs as not free."""
        self.is_free[gpus] = False
        self.left = int(self.is_free.sum())
        for column in np.unique(self._round.gpus.kind[gpus]):
            self._advance(int(column))

    def _advance(self, column: int) -> None:
        place, end = int(self._next[column]), int(self._end[column])
        while place < end and not self.is_free[self._pool[place]]:
            place += 1
        self._next[column] = place
        self._head[column] = self._rank[self._pool[place]] if place < end else _NONE

    def _one(self, kind: int) -> tuple[int, ...]:
        heads = np.where(self._allowed[kind], self._head, _NONE)
        if self._cost is not None:
            there = heads < _NONE
            if not there.any():
                return ()
            least = self._cost[kind][there].min()
            heads = np.where(there & (self._cost[kind] <= least), heads, _NONE)
        first = int(heads.min(initial=_NONE))
        return () if first == _NONE else (int(self._order[first]),)

    def _search(self, kind: int, wanted: int) -> tuple[int, ...]:
        """Return GPUs of one node: of the nodes with enough suitable GPUs, the one with the first of them."""
        given = self._round
        kinds, nodes = given.gpus.kind, given.gpus.node
        fits = self.is_free & self._allowed[kind][kinds]
        if barred := given.barred.get(kind):
            fits &= ~np.isin(nodes, sorted(barred))
        there = np.flatnonzero(fits)
        if len(there) < wanted:
            return ()
        there = there[np.bincount(nodes[there])[nodes[there]] >= wanted]
        if not len(there):
            return ()
        cost = np.zeros(len(there)) if self._cost is None else self._cost[kind][kinds[there]]
        there = there[np.lexsort((self._rank[there], cost))]
        same = there[nodes[there] == nodes[there[0]]]
        return tuple(int(gpu) for gpu in same[:wanted])


def turns(given: Round) -> Array:
    """Return the waiting jobs in queue order."""
    waiting = np.flatnonzero(given.jobs.now <= 0)
    return waiting[np.argsort(-given.jobs.priority[waiting], kind="stable")]


def in_turn(given: Round, free: Free) -> RoundPlan:
    """Place every job in queue order."""
    pairings = []
    for job in turns(given):
        if not free.left:
            break
        kind = int(given.jobs.kind[job])
        if gpus := free.take(kind):
            weight = given.weight[kind, given.gpus.kind[list(gpus)]].min()
            pairings.append(Pairing(int(job), gpus, float(weight)))
    return RoundPlan(pairings)


def first_fit(given: Round) -> RoundPlan:
    """Take GPUs in their order."""
    return in_turn(given, Free(given, given.possible))


def best_fit(given: Round) -> RoundPlan:
    """Take the GPU with the least share and memory left over, each relative to the largest GPU.

    A share that is too small is as bad as one that is too large by as much; a job of unknown use takes the smallest
    offer.
    """
    offer, memory = given.gpu_kinds.offer_ppm, given.gpu_kinds.free_bytes
    share_left = np.abs(offer - given.job_kinds.need_ppm[:, None]) / WHOLE_PPM
    memory_left = (memory - given.job_kinds.memory_bytes[:, None]) / max(1, memory.max(initial=0))
    return in_turn(given, Free(given, given.possible, cost=share_left + memory_left))


def spread_round(given: Round) -> RoundPlan:
    """Take GPUs in the order that results if each job takes one of the emptiest node."""
    nodes = given.gpus.node
    places = np.arange(len(nodes))
    first = np.searchsorted(nodes, nodes)
    left = (
        np.searchsorted(nodes, nodes, side="right") - places
    )  # free GPUs of the node after those before this one are taken
    return in_turn(given, Free(given, given.possible, np.lexsort((first, -left))))


def random_round(given: Round) -> RoundPlan:
    """Take GPUs in an order that the seed determines."""
    order = np.random.default_rng(given.seed).permutation(len(given.gpus.kind))
    return in_turn(given, Free(given, given.possible, order))


def no_sharing(given: Round) -> RoundPlan:
    """Take GPUs without online work in their order."""
    return in_turn(given, Free(given, given.possible & (given.gpu_kinds.online == 0)))
