"""Greedy: repeatedly take the pair with the highest weight."""

from __future__ import annotations

import heapq

import numpy as np

from cotenant.cluster.policy.gang import place_gangs
from cotenant.cluster.policy.in_order import Free, turns
from cotenant.cluster.policy.round import Pairing, Round, RoundPlan


def greedy(inputs: Round) -> RoundPlan:
    """Place by priority, gangs before single-GPU jobs; no job is moved."""
    is_free = np.ones(len(inputs.gpus.kind), bool)
    order = turns(inputs)
    gangs = inputs.job_kinds.gpus[inputs.jobs.kind[order]] > 1
    pairings: list[Pairing] = []
    free_prices = np.zeros(inputs.weight.shape[1], np.float32)
    for priority in np.unique(inputs.jobs.priority[order])[::-1]:
        has_priority = inputs.jobs.priority[order] == priority
        pairings += place_gangs(inputs, order[has_priority & gangs], is_free, free_prices)
        free = Free(inputs, inputs.weight > 0, cost=-inputs.weight)
        free.hold(np.flatnonzero(~is_free))
        pairings += _best_first(inputs, order[has_priority & ~gangs].tolist(), free)
        is_free &= free.is_free
    return RoundPlan(pairings)


def _best_first(inputs: Round, jobs: list[int], free: Free) -> list[Pairing]:
    lines: dict[int, list[int]] = {}
    for job in reversed(jobs):
        lines.setdefault(int(inputs.jobs.kind[job]), []).append(job)
    columns = np.unique(inputs.gpus.kind[free.is_free])
    if not len(columns):
        return []
    heap = [(-float(inputs.weight[kind, columns].max()), kind) for kind in lines]
    heapq.heapify(heap)
    pairings = []
    while heap and free.free_count:
        expected, kind = heapq.heappop(heap)
        if not (gpu := free.peek(kind)):
            continue
        weight = float(inputs.weight[kind, inputs.gpus.kind[gpu[0]]])
        if -weight > expected:  # the best GPU was taken meanwhile
            heapq.heappush(heap, (-weight, kind))
            continue
        pairings.append(Pairing(lines[kind].pop(), free.take(kind), weight))
        if lines[kind]:
            heapq.heappush(heap, (-weight, kind))
    return pairings
