"""Fragmentation: the GPU whose allocation fragments its node least for the waiting jobs.

After "Beware of Fragmentation" (Weng et al., USENIX ATC 2023). The offer of a node is a fragment for a kind of job that
cannot use it, because a constraint excludes it or the job needs more GPUs than the node has free. Fragments are
weighted by the number of waiting jobs of each kind; a job goes where they grow least. In the paper a GPU is shared by
many jobs and nodes also have CPUs; here a GPU takes one job.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cotenant.cluster.policy.in_order import turns
from cotenant.cluster.policy.round import Array, Pairing, Round, RoundPlan

_LARGEST: Final = np.iinfo(np.int64).max // 128


def fragmentation(inputs: Round) -> RoundPlan:
    """Place jobs in order; sums are integers, so that ties are broken the same on every machine."""
    fragments = _Fragments(inputs)
    pairings, exhausted = [], set()
    for job in turns(inputs).tolist():
        kind = int(inputs.jobs.kind[job])
        if kind in exhausted:
            continue
        if gpus := fragments.take(kind):
            pairings.append(Pairing(job, gpus, float(inputs.weight[kind, inputs.gpus.kind[list(gpus)]].min())))
        elif not fragments.is_free.any():
            break
        else:
            exhausted.add(kind)
    return RoundPlan(pairings)


class _Fragments:
    def __init__(self, inputs: Round) -> None:
        self._round = inputs
        self._nodes = inputs.gpus.node
        self._offer = inputs.gpu_kinds.offer_ppm[inputs.gpus.kind].astype(np.int64)
        kinds = inputs.jobs.kind[inputs.jobs.now <= 0]
        waiting = np.bincount(kinds, minlength=len(inputs.job_kinds.gpus))
        singles = inputs.job_kinds.gpus == 1
        unusable = np.where(singles, waiting, 0) @ ~inputs.possible
        self._to_singles = unusable[inputs.gpus.kind] * self._offer
        self._gangs = np.flatnonzero(~singles & (waiting > 0))
        self._waiting = waiting[self._gangs][:, None]
        self._wanted = inputs.job_kinds.gpus[self._gangs][:, None]
        self.is_free = np.ones(len(self._nodes), bool)
        self._grows = -self._to_singles
        first = np.flatnonzero(np.diff(self._nodes, prepend=-1)) if len(self._gangs) else self._nodes[:0]
        for begin, end in zip(first, np.append(first[1:], len(self._nodes))[: len(first)], strict=True):
            self._weigh(int(begin), int(end))

    def take(self, kind: int) -> tuple[int, ...]:
        inputs, wanted = self._round, int(self._round.job_kinds.gpus[kind])
        fits = self.is_free & inputs.possible[kind][inputs.gpus.kind]
        if barred := inputs.barred.get(kind):
            fits &= ~np.isin(self._nodes, sorted(barred))
        if wanted == 1:
            gpu = int(np.where(fits, self._grows, _LARGEST).argmin()) if len(fits) else 0
            chosen: tuple[int, ...] = (gpu,) if len(fits) and fits[gpu] else ()
        else:
            chosen = self._take_gang(np.flatnonzero(fits), wanted)
        self.is_free[list(chosen)] = False
        if chosen and len(self._gangs):
            node = self._nodes[chosen[0]]
            self._weigh(int(np.searchsorted(self._nodes, node)), int(np.searchsorted(self._nodes, node, side="right")))
        return chosen

    def _take_gang(self, gpus: Array, wanted: int) -> tuple[int, ...]:
        """Return the GPUs of the node where the sum of the fragments grows least."""
        nodes = self._nodes[gpus]
        gpus = gpus[np.lexsort((gpus, self._grows[gpus], nodes))]
        rank = np.arange(len(gpus)) - np.searchsorted(nodes, nodes)
        last = np.flatnonzero(rank == wanted - 1)
        if not len(last):
            return ()
        sums = np.concatenate([[0], np.cumsum(self._grows[gpus])])
        best = last[np.argmin(sums[last + 1] - sums[last + 1 - wanted])]
        return tuple(sorted(int(gpu) for gpu in gpus[best + 1 - wanted : best + 1]))

    def _weigh(self, begin: int, end: int) -> None:
        """Compute by how much the fragments of a node grow with the allocation of each of its GPUs."""
        offer, is_free = self._offer[begin:end], self.is_free[begin:end]
        usable = self._round.possible[self._gangs][:, self._round.gpus.kind[begin:end]] & is_free
        count, sums = usable.sum(axis=1, keepdims=True), (usable * offer).sum(axis=1, keepdims=True)
        before = np.where(count >= self._wanted, sums, 0)
        after = np.where(count - usable >= self._wanted, sums - usable * offer, 0)
        grows = ((before - after - offer) * self._waiting).sum(axis=0)
        self._grows[begin:end] = grows - self._to_singles[begin:end]
