"""Greedy: of all pairs the best first, then the best of what is left, and so on."""

from __future__ import annotations

import heapq

import numpy as np

from cotenant.policy.place.gang import place_gangs
from cotenant.policy.place.in_turn import Free, turns
from cotenant.policy.place.round import Pairing, Planned, Round


def greedy(given: Round) -> Planned:
    """Higher priorities before lower ones, jobs that want several GPUs before others; nobody is moved."""
    is_free = np.ones(len(given.gpus.kind), bool)
    order = turns(given)
    gangs = given.job_kinds.gpus[given.jobs.kind[order]] > 1
    pairings: list[Pairing] = []
    free_prices = np.zeros(given.worth.shape[1], np.float32)
    for priority in np.unique(given.jobs.priority[order])[::-1]:
        here = given.jobs.priority[order] == priority
        pairings += place_gangs(given, order[here & gangs], is_free, free_prices)
        free = Free(given, given.worth > 0, cost=-given.worth)
        free.hold(np.flatnonzero(~is_free))
        pairings += _best_first(given, order[here & ~gangs].tolist(), free)
        is_free &= free.is_free
    return Planned(pairings)


def _best_first(given: Round, jobs: list[int], free: Free) -> list[Pairing]:
    lines: dict[int, list[int]] = {}
    for job in reversed(jobs):
        lines.setdefault(int(given.jobs.kind[job]), []).append(job)
    columns = np.unique(given.gpus.kind[free.is_free])
    if not len(columns):
        return []
    heap = [(-float(given.worth[kind, columns].max()), kind) for kind in lines]
    heapq.heapify(heap)
    pairings = []
    while heap and free.left:
        hoped, kind = heapq.heappop(heap)
        if not (gpu := free.peek(kind)):
            continue
        worth = float(given.worth[kind, given.gpus.kind[gpu[0]]])
        if -worth > hoped:  # what it hoped for is gone: it waits for its turn
            heapq.heappush(heap, (-worth, kind))
            continue
        pairings.append(Pairing(lines[kind].pop(), free.take(kind), worth))
        if lines[kind]:
            heapq.heappush(heap, (-worth, kind))
    return pairings
