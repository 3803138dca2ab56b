"""What does each in its turn get? The first GPU that will do, in an order that a policy gives."""

from __future__ import annotations

from typing import Final

import numpy as np

from cotenant.policy.place.round import Array, Pairing, Planned, Round

_NONE: Final = np.iinfo(np.int64).max


class Free:
    """GPUs that nobody has taken yet in this round, in an order."""

    def __init__(self, given: Round, allowed: Array, order: Array | None = None, cost: Array | None = None) -> None:
        """`allowed` is a table of kinds; `order` names all GPUs; before it, the lowest `cost` of a pair decides."""
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
        """GPUs for a job of this kind, which are free no more; none, if it finds none now."""
        chosen = self.peek(kind)
        for gpu in chosen:
            self.is_free[gpu] = False
            self.left -= 1
            self._advance(int(self._round.gpus.kind[gpu]))
        return chosen

    def peek(self, kind: int) -> tuple[int, ...]:
        """What it would take."""
        if not self.left or kind in self._exhausted:
            return ()
        wanted = int(self._round.job_kinds.gpus[kind])
        chosen = self._look(kind, wanted) if wanted > 1 or kind in self._round.barred else self._one(kind)
        if not chosen:
            self._exhausted.add(kind)  # what is free only becomes less
        return chosen

    def hold(self, gpus: Array) -> None:
        """Somebody else has these."""
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

    def _look(self, kind: int, wanted: int) -> tuple[int, ...]:
        """All at once: of the nodes with enough of them, the one with the first."""
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
    """Jobs that wait, in the order in which they go."""
    waiting = np.flatnonzero(given.jobs.now <= 0)
    return waiting[np.argsort(-given.jobs.priority[waiting], kind="stable")]


def in_turn(given: Round, free: Free) -> Planned:
    """Every job takes what it finds; nobody who came later is looked at before."""
    pairings = []
    for job in turns(given):
        if not free.left:
            break
        kind = int(given.jobs.kind[job])
        if gpus := free.take(kind):
            worth = given.worth[kind, given.gpus.kind[list(gpus)]].min()
            pairings.append(Pairing(int(job), gpus, float(worth)))
    return Planned(pairings)
