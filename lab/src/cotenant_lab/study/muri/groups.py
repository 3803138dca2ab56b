"""Muri's groups: jobs that interleave the resources of a step, and their speed.

A step loads (and prepares) data, computes, and synchronizes with the other GPUs. A group's cycle has four slots, and
each of its jobs does one phase in a slot, loading in two; the jobs are one slot apart. A slot ends when all of its
phases have: the period of the cycle is the time of a step for each job of the group. Jobs are paired by weight, the
fraction of the phases' time that a cycle uses, and the pairs are paired again. Muri finds the pairing of maximum weight
by the blossom algorithm; here, with few kinds of jobs, it is a small integer program.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from scipy.optimize import LinearConstraint, milp

from cotenant_lab.study.muri.rules import ActiveJob

SLOTS: Final = 4
NODE_GPUS: Final = 8
_CYCLES: Final = 4

Phases: TypeAlias = tuple[float, float, float]
Kind: TypeAlias = tuple[tuple[Phases, float], ...]
"""Phases and step time alone of each job of a group, in order."""


def kind_of(group: Sequence[ActiveJob]) -> Kind:
    return tuple(sorted((active.job.phases_s, active.job.step_s) for active in group))


class Periods:
    """Caches the periods of groups by kind."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._period_by_kind: dict[Kind, float] = {}
        self._paired: dict[frozenset[tuple[Kind, int]], list[tuple[Kind, Kind, int]]] = {}

    def of(self, kind: Kind) -> float:
        """Return the seconds of a cycle in the best order."""
        period = self._period_by_kind.get(kind)
        if period is None:
            period = self._period_by_kind[kind] = _best_period(kind)
        return period

    def weight(self, kind: Kind) -> float:
        """Return the fraction of the four slots that is used."""
        return sum(sum(phases) for phases, _ in kind) / (SLOTS * self.of(kind))

    def paired(self, counts: Mapping[Kind, int], max_jobs: int) -> list[tuple[Kind, Kind, int]]:
        """Return how many groups of which two kinds merge, for maximum total weight."""
        key = frozenset(counts.items())
        if key not in self._paired:
            self._paired[key] = _max_weight_pairs(counts, max_jobs, self.weight)
        return self._paired[key]


def _best_period(kind: Kind) -> float:
    if len(kind) == 1:
        return kind[0][1]
    phases = [phases for phases, _ in kind]
    best = min(_period(order) for order in itertools.permutations(phases))
    if len(phases) == 2:  # consider an empty slot between the two as well
        (first, second) = phases
        best = min(best, max(first[0], sum(second[1:])) + max(second[0], sum(first[1:])))
    return best


def _period(order: Sequence[Phases]) -> float:
    ends = [0.0]
    for slot in range(1, SLOTS * _CYCLES + 1):
        times = [ends[-1]]
        for phase, ahead, begin_slot in ((2, 0, -1), (1, 1, -1), (0, 2, -2)):
            position = (slot + ahead) % SLOTS
            if position < len(order) and slot + begin_slot >= 0:
                times.append(ends[begin_slot] + order[position][phase])
        ends.append(max(times))
    return ends[-1] - ends[-1 - SLOTS]


def interleave(
    chosen: Sequence[Sequence[ActiveJob]], gpus: int, max_jobs: int, periods: Periods
) -> list[list[ActiveJob]]:
    """Merge the chosen jobs (lists by number of GPUs) into groups until they need no more GPUs than there are."""
    groups = {same_size[0].job.gpus: [[job] for job in same_size] for same_size in chosen if same_size}
    needed = sum(size * len(size_groups) for size, size_groups in groups.items())
    for _ in range(max_jobs):
        if needed <= gpus:
            break
        for size, size_groups in groups.items():
            if needed <= gpus:
                break
            merged, merged_indices = [], set()
            for first, second in _pairs(size_groups, max_jobs, periods):
                if needed > gpus:
                    merged.append([*size_groups[first], *size_groups[second]])
                    merged_indices |= {first, second}
                    needed -= size
            groups[size] = [job for index, job in enumerate(size_groups) if index not in merged_indices] + merged
    return [group for size_groups in groups.values() for group in size_groups]


def _pairs(groups: Sequence[Sequence[ActiveJob]], max_jobs: int, periods: Periods) -> list[tuple[int, int]]:
    """Return the pairing of maximum weight, computed by kinds because groups of a kind are equal."""
    indices_by_kind: dict[Kind, list[int]] = {}
    for index, group in enumerate(groups):
        indices_by_kind.setdefault(kind_of(group), []).append(index)
    pairs = []
    for first, second, count in periods.paired(
        {kind: len(indices) for kind, indices in indices_by_kind.items()}, max_jobs
    ):
        pairs += [(indices_by_kind[first].pop(0), indices_by_kind[second].pop(0)) for _ in range(count)]
    return sorted(pairs, key=max)


def _max_weight_pairs(
    counts: Mapping[Kind, int], max_jobs: int, weight: Callable[[Kind], float]
) -> list[tuple[Kind, Kind, int]]:
    kinds = list(counts)
    edges = [
        (first, second)
        for first, second in itertools.combinations_with_replacement(range(len(kinds)), 2)
        if len(kinds[first]) + len(kinds[second]) <= max_jobs and (first != second or counts[kinds[first]] > 1)
    ]
    if not edges:
        return []
    weights = np.array([weight(tuple(sorted(kinds[first] + kinds[second]))) for first, second in edges])
    uses = np.zeros((len(kinds), len(edges)))
    for column, (first, second) in enumerate(edges):
        uses[first, column] += 1
        uses[second, column] += 1
    available = np.array([counts[kind] for kind in kinds], dtype=float)
    is_integer, fits = np.ones(len(edges)), LinearConstraint(uses, 0, available)
    solved = milp(
        -weights, constraints=fits, integrality=is_integer, options={"presolve": False}
    )  # presolve prints lines
    solution = zip(edges, np.rint(solved.x).astype(int), strict=True)
    return [(kinds[first], kinds[second], int(count)) for (first, second), count in solution if count]


def rates(group: Sequence[ActiveJob], periods: Periods, longer: float) -> list[float]:
    """Return each job's speed relative to alone; no job is faster than alone, whatever the trace says of its phases.

    `longer`: factor by which interleaved phases take longer than alone.
    """
    if len(group) == 1:
        return [1.0]
    period = longer * periods.of(kind_of(group))
    return [min(1.0, active.job.step_s / period) for active in group]


def chosen_for(order: Sequence[ActiveJob], free: list[int], max_jobs: int) -> list[list[ActiveJob]]:
    """Choose jobs in this order, each with the next ones of the same size; return lists by number of GPUs."""
    by_size: dict[int, list[ActiveJob]] = {}
    for active in order:
        by_size.setdefault(active.job.gpus, []).append(active)
    counts = dict.fromkeys(by_size, 0)
    used: set[int] = set()
    for active in order:
        if active.job.number in used or not take(free, active.job.gpus):
            continue
        same_size = by_size[active.job.gpus]
        bound = min(counts[active.job.gpus] + max_jobs, len(same_size))
        used |= {active_job.job.number for active_job in same_size[counts[active.job.gpus] : bound]}
        counts[active.job.gpus] = bound
    return [same_size[: counts[size]] for size, same_size in by_size.items()]


def take(free: list[int], gpus: int) -> bool:
    """Take free GPUs on one node, or whole free nodes; return False if there are none."""
    if gpus <= NODE_GPUS:
        for node, free_gpus in enumerate(free):
            if free_gpus >= gpus:
                free[node] -= gpus
                return True
        return False
    nodes = [node for node, free_gpus in enumerate(free) if free_gpus == NODE_GPUS][: gpus // NODE_GPUS]
    if len(nodes) * NODE_GPUS < gpus:
        return False
    for node in nodes:
        free[node] = 0
    return True
