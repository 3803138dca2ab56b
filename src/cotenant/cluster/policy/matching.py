"""Match: place waiting jobs on open GPUs so that the sum of predicted speeds is highest.

Priorities are handled one after the other. Within one, gangs are placed first, because scattered GPUs are of no use to
them; then all single-GPU jobs are matched at once, by kind (match.py). With the last priority, running jobs that would
gain more than the cost of a move take part with that gain as their weight. The weight of a job grows, within limits,
with its waiting time and with its user's priority factor.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from cotenant.cluster.policy.gang import place_gangs
from cotenant.cluster.policy.in_order import Free
from cotenant.cluster.policy.match import Matching, match
from cotenant.cluster.policy.round import Array, Pairing, Round, RoundPlan

HOUR_NS: Final = 3_600_000_000_000
_AGES: Final = ((1 * HOUR_NS, 1.125), (6 * HOUR_NS, 1.25), (24 * HOUR_NS, 1.5))
"""Waiting time, and the factor on the weight from then on."""
_FACTOR_STEPS: Final = 8
"""Factors are rounded to an eighth, so that jobs of one kind stay in few lines."""
_LEVELS: Final = 64


class _Lines(NamedTuple):
    """Rows of the table to match: jobs with the same kind and factor."""

    job: Array
    """All jobs, grouped by line and in queue order within a line."""
    start: Array
    """Index of the first job of each line, and the number of jobs."""
    weight: Array


def by_match(inputs: Round) -> RoundPlan:
    """Place jobs with the highest total weight."""
    is_free = np.ones(len(inputs.gpus.kind), bool)
    price = np.zeros(inputs.weight.shape[1], np.float32) if inputs.price is None else inputs.price
    pairings: list[Pairing] = []
    best: tuple[int, Matching] | None = None
    gangs = inputs.job_kinds.gpus[inputs.jobs.kind] > 1
    waits = inputs.jobs.now <= 0
    priorities = np.unique(inputs.jobs.priority[waits])[::-1].tolist() or [0]
    for priority in priorities:
        has_priority = inputs.jobs.priority == priority
        pairings += place_gangs(inputs, np.flatnonzero(has_priority & waits & gangs), is_free, price)
        singles = np.flatnonzero(has_priority & waits & ~gangs)
        lines = _lines(inputs, singles)
        if priority == priorities[-1]:
            lines = _with_movers(inputs, lines, is_free)
        if not len(lines.job) or not is_free.any():
            continue
        columns, capacity = np.unique(inputs.gpus.kind[is_free], return_counts=True)
        supply = np.minimum(np.diff(lines.start), capacity.sum())
        matching = match(
            lines.weight[:, columns], supply, capacity, price=None if inputs.price is None else price[columns]
        )
        if best is None or len(singles) > best[0]:
            best = len(singles), matching
            price = price.copy()
            price[columns] = matching.price
        pairings += _assign_gpus(inputs, lines, columns, matching, is_free)
    if best is None:
        return RoundPlan(pairings, price)
    return RoundPlan(pairings, price, best[1].value, best[1].bound)


def _lines(inputs: Round, jobs: Array) -> _Lines:
    priority_factor = inputs.jobs.priority_factor[jobs].astype(np.float64)
    waited = inputs.jobs.waited_ns[jobs]
    for since_ns, factor in _AGES:
        priority_factor = np.where(waited >= since_ns, inputs.jobs.priority_factor[jobs] * factor, priority_factor)
    level = np.clip(np.rint(priority_factor * _FACTOR_STEPS), 1, _LEVELS - 1).astype(np.int64)
    key = inputs.jobs.kind[jobs].astype(np.int64) * _LEVELS + level
    order = np.argsort(key, kind="stable")
    lines, first = np.unique(key[order], return_index=True)
    factors = (lines % _LEVELS / _FACTOR_STEPS).astype(np.float32)
    weight = inputs.weight[lines // _LEVELS] * factors[:, None]
    return _Lines(jobs[order], np.append(first, len(jobs)), weight)


def _with_movers(inputs: Round, lines: _Lines, is_free: Array) -> _Lines:
    """Add the running jobs with the largest gains on free GPUs, each as a line of its own."""
    running = np.flatnonzero((inputs.jobs.now > 0) & (inputs.job_kinds.gpus[inputs.jobs.kind] == 1))
    columns = np.unique(inputs.gpus.kind[is_free])
    if not inputs.moves or not len(running) or not len(columns):
        return lines
    best = inputs.weight[:, columns].max(axis=1)[inputs.jobs.kind[running]]
    gain = best - inputs.jobs.now[running] - inputs.switch
    movers = running[np.argsort(-gain, kind="stable")[: inputs.moves]]
    movers = np.sort(movers[np.isin(movers, running[gain > 0])])
    weight = inputs.weight[inputs.jobs.kind[movers]] - (inputs.jobs.now[movers] + np.float32(inputs.switch))[:, None]
    start = np.append(lines.start, lines.start[-1] + 1 + np.arange(len(movers)))
    table = np.concatenate([lines.weight, weight.astype(np.float32)])
    return _Lines(np.concatenate([lines.job, movers]), start, table)


def _assign_gpus(inputs: Round, lines: _Lines, columns: Array, matching: Matching, is_free: Array) -> list[Pairing]:
    """Assign GPUs of the matched kinds; the first job of a line gets the best, from nodes with few free GPUs."""
    line, column, count = matching.pairs.T
    order = np.lexsort((column, -lines.weight[line, columns[column]], line))
    line, column = (np.repeat(indices[order], count[order]) for indices in (line, columns[column]))
    jobs = lines.job[lines.start[line] + _rank_among_equal(line)]
    gpus = _by_kind(inputs, is_free, column)
    kinds = inputs.jobs.kind[jobs]
    is_allowed = np.ones(len(jobs), bool)
    for kind, nodes in inputs.barred.items():
        is_allowed &= (kinds != kind) | ~np.isin(inputs.gpus.node[gpus], sorted(nodes))
    is_free[gpus[is_allowed]] = False
    weight = inputs.weight[kinds, inputs.gpus.kind[gpus]]
    chosen = [
        Pairing(job, (gpu,), value)
        for job, gpu, value in zip(
            jobs[is_allowed].tolist(), gpus[is_allowed].tolist(), weight[is_allowed].tolist(), strict=True
        )
    ]
    return chosen + _place_on_other_nodes(inputs, jobs[~is_allowed], is_free)


def _rank_among_equal(values: Array) -> Array:
    """Return for each entry how many equal entries are before it."""
    order = np.argsort(values, kind="stable")
    first = np.searchsorted(values[order], values[order])
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values)) - first
    return ranks


def _by_kind(inputs: Round, is_free: Array, wanted: Array) -> Array:
    """Return a GPU for each wanted kind, none twice."""
    free = np.flatnonzero(is_free)
    free_on_node = np.bincount(inputs.gpus.node[free])[inputs.gpus.node[free]]
    free = free[np.lexsort((free, free_on_node, inputs.gpus.kind[free]))]
    return free[np.searchsorted(inputs.gpus.kind[free], wanted) + _rank_among_equal(wanted)]


def _place_on_other_nodes(inputs: Round, jobs: Array, is_free: Array) -> list[Pairing]:
    """Place the jobs whose GPU is on a node that is excluded for them on the best remaining GPUs."""
    waiting = [int(job) for job in jobs if inputs.jobs.now[job] <= 0]
    if not waiting:
        return []
    free = Free(inputs, inputs.weight > 0, cost=-inputs.weight)
    free.hold(np.flatnonzero(~is_free))
    chosen = []
    for job in waiting:
        kind = int(inputs.jobs.kind[job])
        for gpu in free.take(kind):
            is_free[gpu] = False
            chosen.append(Pairing(job, (gpu,), float(inputs.weight[kind, inputs.gpus.kind[gpu]])))
    return chosen
