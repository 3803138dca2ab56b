"""Match: jobs that wait and GPUs that offer, so that the sum of foretold speeds is the highest.

Priorities go one after the other; who might be moved comes with the last. Within one, jobs of several GPUs choose
first, since what is left scattered is of no use to them; then all others are matched at once, by kind (match.py),
together with those that run and would gain more than the cost of a move elsewhere: their worth is what they would
gain beyond it. Who waited long, or whose user had little, counts for more, within limits: the lift is in the worth by
which is matched, so that it decides between jobs for the same GPU.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from cotenant.policy.place.gang import place_gangs
from cotenant.policy.place.in_turn import Free
from cotenant.policy.place.match import Matching, match
from cotenant.policy.place.round import Array, Pairing, Planned, Round

HOUR_NS: Final = 3_600_000_000_000
_AGES: Final = ((1 * HOUR_NS, 1.125), (6 * HOUR_NS, 1.25), (24 * HOUR_NS, 1.5))
"""Who waited so long counts for so much more."""
_LIFT_STEPS: Final = 8
"""Lifts are told apart to an eighth, so that jobs of a kind stay few kinds."""
_LEVELS: Final = 64


class _Lines(NamedTuple):
    """Rows of the table to be matched: jobs that are alike in everything that counts."""

    job: Array
    """All jobs, those of a line together and in their order."""
    start: Array
    """Where each line begins, and where all end."""
    worth: Array


def by_match(given: Round) -> Planned:
    """Who with whom, for the most in sum."""
    is_free = np.ones(len(given.gpus.kind), bool)
    price = np.zeros(given.worth.shape[1], np.float32) if given.price is None else given.price
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
        columns, room = np.unique(given.gpus.kind[is_free], return_counts=True)
        supply = np.minimum(np.diff(lines.start), room.sum())
        found = match(lines.worth[:, columns], supply, room, price=None if given.price is None else price[columns])
        if best is None or len(singles) > best[0]:
            best = len(singles), found
            price = price.copy()
            price[columns] = found.price
        pairings += _settle(given, lines, columns, found, is_free)
    if best is None:
        return Planned(pairings, price)
    return Planned(pairings, price, best[1].value, best[1].bound)


def _lines(given: Round, jobs: Array) -> _Lines:
    lift = given.jobs.lift[jobs].astype(np.float64)
    waited = given.jobs.waited_ns[jobs]
    for since_ns, more in _AGES:
        lift = np.where(waited >= since_ns, given.jobs.lift[jobs] * more, lift)
    level = np.clip(np.rint(lift * _LIFT_STEPS), 1, _LEVELS - 1).astype(np.int64)
    key = given.jobs.kind[jobs].astype(np.int64) * _LEVELS + level
    order = np.argsort(key, kind="stable")
    lines, first = np.unique(key[order], return_index=True)
    lifted = (lines % _LEVELS / _LIFT_STEPS).astype(np.float32)
    worth = given.worth[lines // _LEVELS] * lifted[:, None]
    return _Lines(jobs[order], np.append(first, len(jobs)), worth)


def _with_movers(given: Round, lines: _Lines, is_free: Array) -> _Lines:
    """Those that run and would gain most on what is free; each a line of its own, worth what it would gain."""
    running = np.flatnonzero((given.jobs.now > 0) & (given.job_kinds.gpus[given.jobs.kind] == 1))
    columns = np.unique(given.gpus.kind[is_free])
    if not given.moves or not len(running) or not len(columns):
        return lines
    best = given.worth[:, columns].max(axis=1)[given.jobs.kind[running]]
    gain = best - given.jobs.now[running] - given.switch
    movers = running[np.argsort(-gain, kind="stable")[: given.moves]]
    movers = np.sort(movers[np.isin(movers, running[gain > 0])])
    worth = given.worth[given.jobs.kind[movers]] - (given.jobs.now[movers] + np.float32(given.switch))[:, None]
    start = np.append(lines.start, lines.start[-1] + 1 + np.arange(len(movers)))
    table = np.concatenate([lines.worth, worth.astype(np.float32)])
    return _Lines(np.concatenate([lines.job, movers]), start, table)


def _settle(given: Round, lines: _Lines, columns: Array, found: Matching, is_free: Array) -> list[Pairing]:
    """Which one of each line gets which GPU of a kind: the first gets the best; nodes with little room go first."""
    line, column, count = found.pairs.T
    order = np.lexsort((column, -lines.worth[line, columns[column]], line))
    line, column = (np.repeat(one[order], count[order]) for one in (line, columns[column]))
    jobs = lines.job[lines.start[line] + _place_among(line)]
    gpus = _by_kind(given, is_free, column)
    kinds = given.jobs.kind[jobs]
    fine = np.ones(len(jobs), bool)
    for kind, nodes in given.barred.items():
        fine &= (kinds != kind) | ~np.isin(given.gpus.node[gpus], sorted(nodes))
    is_free[gpus[fine]] = False
    worth = given.worth[kinds, given.gpus.kind[gpus]]
    chosen = [
        Pairing(job, (gpu,), value)
        for job, gpu, value in zip(jobs[fine].tolist(), gpus[fine].tolist(), worth[fine].tolist(), strict=True)
    ]
    return chosen + _elsewhere(given, jobs[~fine], is_free)


def _place_among(same: Array) -> Array:
    """Of each, how many of the same number stand before it."""
    order = np.argsort(same, kind="stable")
    first = np.searchsorted(same[order], same[order])
    places = np.empty(len(same), np.int64)
    places[order] = np.arange(len(same)) - first
    return places


def _by_kind(given: Round, is_free: Array, wanted: Array) -> Array:
    """A GPU for each wanted kind, none twice."""
    free = np.flatnonzero(is_free)
    crowd = np.bincount(given.gpus.node[free])[given.gpus.node[free]]
    free = free[np.lexsort((free, crowd, given.gpus.kind[free]))]
    return free[np.searchsorted(given.gpus.kind[free], wanted) + _place_among(wanted)]


def _elsewhere(given: Round, jobs: Array, is_free: Array) -> list[Pairing]:
    """For the few that got a GPU on a node that is barred to them: what is best of the rest."""
    waiting = [int(job) for job in jobs if given.jobs.now[job] <= 0]
    if not waiting:
        return []
    free = Free(given, given.worth > 0, cost=-given.worth)
    free.hold(np.flatnonzero(~is_free))
    chosen = []
    for job in waiting:
        kind = int(given.jobs.kind[job])
        for gpu in free.take(kind):
            is_free[gpu] = False
            chosen.append(Pairing(job, (gpu,), float(given.worth[kind, given.gpus.kind[gpu]])))
    return chosen
