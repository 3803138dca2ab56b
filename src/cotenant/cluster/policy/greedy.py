"""Greedy: repeatedly take the pair with the highest weight."""

from __future__ import annotations

import heapq

import numpy as np

from cotenant.cluster.policy.gang import place_gangs
from cotenant.cluster.policy.in_order import Free, turns
from cotenant.cluster.policy.round import Pairing, Round, RoundPlan


def greedy(given: Round) -> RoundPlan:
    """Place by priority, gangs before single-GPU jobs; no job is moved."""
    is_free = np.ones(len(given.gpus.kind), bool)
    order = turns(given)
    gangs = given.job_kinds.gpus[given.jobs.kind[order]] > 1
    pairings: list[Pairing] = []
    free_prices = np.zeros(given.weight.shape[1], np.float32)
    for priority in np.unique(given.jobs.priority[order])[::-1]:
        here = given.jobs.priority[order] == priority
        pairings += place_gangs(given, order[here & gangs], is_free, free_prices)
        free = Free(given, given.weight > 0, cost=-given.weight)
        free.hold(np.flatnonzero(~is_free))
        pairings += _best_first(given, order[here & ~gangs].tolist(), free)
        is_free &= free.is_free
    return RoundPlan(pairings)


def _best_first(given: Round, jobs: list[int], free: Free) -> list[Pairing]:
    lines: dict[int, list[int]] = {}
    for job in reversed(jobs):
        lines.setdefault(int(given.jobs.kind[job]), []).append(job)
    columns = np.unique(given.gpus.kind[free.is_free])
    if not len(columns):
        return []
    heap = [(-float(given.weight[kind, columns].max()), kind) for kind in lines]
    heapq.heapify(heap)
    pairings = []
    while heap and free.left:
        hoped, kind = heapq.heappop(heap)
        if not (gpu := free.peek(kind)):
            continue
        weight = float(given.weight[kind, given.gpus.kind[gpu[0]]])
        if -weight > hoped:  # the best GPU was taken meanwhile
            heapq.heappush(heap, (-weight, kind))
            continue
        pairings.append(Pairing(lines[kind].pop(), free.take(kind), weight))
        if lines[kind]:
            heapq.heappush(heap, (-weight, kind))
    return pairings
