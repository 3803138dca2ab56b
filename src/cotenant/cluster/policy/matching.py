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


def by_match(given: Round) -> RoundPlan:
    """Place jobs with the highest total weight."""
    is_free = np.ones(len(given.gpus.kind), bool)
    price = np.zeros(given.weight.shape[1], np.float32) if given.price is None else given.price
    pairings: list[Pairing] = []
    best: tuple[int, Matching] | None = None
    gangs = given.job_kinds.gpus[given.jobs.kind] > 1
    waits = given.jobs.now <= 0
    priorities = np.unique(given.jobs.priority[waits])[::-1].tolist() or [0]
    for priority in priorities:
        here = given.jobs.priority == priority
        pairings += place_gangs(given, np.flatnonzero(here & waits & gangs), is_free, price)
        singles = np.flatnonzero(here & waits & ~gangs)
        lines = _lines(given, singles)
        if priority == priorities[-1]:
            lines = _with_movers(given, lines, is_free)
        if not len(lines.job) or not is_free.any():
            continue
        columns, capacity = np.unique(given.gpus.kind[is_free], return_counts=True)
        supply = np.minimum(np.diff(lines.start), capacity.sum())
        found = match(lines.weight[:, columns], supply, capacity, price=None if given.price is None else price[columns])
        if best is None or len(singles) > best[0]:
            best = len(singles), found
            price = price.copy()
            price[columns] = found.price
        pairings += _settle(given, lines, columns, found, is_free)
    if best is None:
        return RoundPlan(pairings, price)
    return RoundPlan(pairings, price, best[1].value, best[1].bound)


def _lines(given: Round, jobs: Array) -> _Lines:
    priority_factor = given.jobs.priority_factor[jobs].astype(np.float64)
    waited = given.jobs.waited_ns[jobs]
    for since_ns, more in _AGES:
        priority_factor = np.where(waited >= since_ns, given.jobs.priority_factor[jobs] * more, priority_factor)
    level = np.clip(np.rint(priority_factor * _FACTOR_STEPS), 1, _LEVELS - 1).astype(np.int64)
    key = given.jobs.kind[jobs].astype(np.int64) * _LEVELS + level
    order = np.argsort(key, kind="stable")
    lines, first = np.unique(key[order], return_index=True)
    lifted = (lines % _LEVELS / _FACTOR_STEPS).astype(np.float32)
    weight = given.weight[lines // _LEVELS] * lifted[:, None]
    return _Lines(jobs[order], np.append(first, len(jobs)), weight)


def _with_movers(given: Round, lines: _Lines, is_free: Array) -> _Lines:
    """Add the running jobs with the largest gains on free GPUs, each as a line of its own."""
    running = np.flatnonzero((given.jobs.now > 0) & (given.job_kinds.gpus[given.jobs.kind] == 1))
    columns = np.unique(given.gpus.kind[is_free])
    if not given.moves or not len(running) or not len(columns):
        return lines
    best = given.weight[:, columns].max(axis=1)[given.jobs.kind[running]]
    gain = best - given.jobs.now[running] - given.switch
    movers = running[np.argsort(-gain, kind="stable")[: given.moves]]
    movers = np.sort(movers[np.isin(movers, running[gain > 0])])
    weight = given.weight[given.jobs.kind[movers]] - (given.jobs.now[movers] + np.float32(given.switch))[:, None]
    start = np.append(lines.start, lines.start[-1] + 1 + np.arange(len(movers)))
    table = np.concatenate([lines.weight, weight.astype(np.float32)])
    return _Lines(np.concatenate([lines.job, movers]), start, table)


def _settle(given: Round, lines: _Lines, columns: Array, found: Matching, is_free: Array) -> list[Pairing]:
    """Assign GPUs of the matched kinds; the first job of a line gets the best, from nodes with few free GPUs."""
    line, column, count = found.pairs.T
    order = np.lexsort((column, -lines.weight[line, columns[column]], line))
    line, column = (np.repeat(one[order], count[order]) for one in (line, columns[column]))
    jobs = lines.job[lines.start[line] + _place_among(line)]
    gpus = _by_kind(given, is_free, column)
    kinds = given.jobs.kind[jobs]
    fine = np.ones(len(jobs), bool)
    for kind, nodes in given.barred.items():
        fine &= (kinds != kind) | ~np.isin(given.gpus.node[gpus], sorted(nodes))
    is_free[gpus[fine]] = False
    weight = given.weight[kinds, given.gpus.kind[gpus]]
    chosen = [
        Pairing(job, (gpu,), value)
        for job, gpu, value in zip(jobs[fine].tolist(), gpus[fine].tolist(), weight[fine].tolist(), strict=True)
    ]
    return chosen + _elsewhere(given, jobs[~fine], is_free)


def _place_among(same: Array) -> Array:
    """Return for each entry how many equal entries are before it."""
    order = np.argsort(same, kind="stable")
    first = np.searchsorted(same[order], same[order])
    places = np.empty(len(same), np.int64)
    places[order] = np.arange(len(same)) - first
    return places


def _by_kind(given: Round, is_free: Array, wanted: Array) -> Array:
    """Return a GPU for each wanted kind, none twice."""
    free = np.flatnonzero(is_free)
    free_on_node = np.bincount(given.gpus.node[free])[given.gpus.node[free]]
    free = free[np.lexsort((free, free_on_node, given.gpus.kind[free]))]
    return free[np.searchsorted(given.gpus.kind[free], wanted) + _place_among(wanted)]


def _elsewhere(given: Round, jobs: Array, is_free: Array) -> list[Pairing]:
    """Place the jobs whose GPU is on a node that is excluded for them on the best remaining GPUs."""
    waiting = [int(job) for job in jobs if given.jobs.now[job] <= 0]
    if not waiting:
        return []
    free = Free(given, given.weight > 0, cost=-given.weight)
    free.hold(np.flatnonzero(~is_free))
    chosen = []
    for job in waiting:
        kind = int(given.jobs.kind[job])
        for gpu in free.take(kind):
            is_free[gpu] = False
            chosen.append(Pairing(job, (gpu,), float(given.weight[kind, given.gpus.kind[gpu]])))
    return chosen
