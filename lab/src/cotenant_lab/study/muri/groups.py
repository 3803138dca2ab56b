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
    return tuple(sorted((one.job.phases_s, one.job.step_s) for one in group))


class Periods:
    """Caches the periods of groups by kind."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._known: dict[Kind, float] = {}
        self._paired: dict[frozenset[tuple[Kind, int]], list[tuple[Kind, Kind, int]]] = {}

    def of(self, kind: Kind) -> float:
        """Return the seconds of a cycle in the best order."""
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = _best_period(kind)
        return found

    def weight(self, kind: Kind) -> float:
        """Return the fraction of the four slots that is used."""
        return sum(sum(phases) for phases, _ in kind) / (SLOTS * self.of(kind))

    def paired(self, counts: Mapping[Kind, int], most: int) -> list[tuple[Kind, Kind, int]]:
        """Return how many groups of which two kinds merge, for maximum total weight."""
        key = frozenset(counts.items())
        if key not in self._paired:
            self._paired[key] = _most_weight(counts, most, self.weight)
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
        for phase, ahead, begun in ((2, 0, -1), (1, 1, -1), (0, 2, -2)):
            place = (slot + ahead) % SLOTS
            if place < len(order) and slot + begun >= 0:
                times.append(ends[begun] + order[place][phase])
        ends.append(max(times))
    return ends[-1] - ends[-1 - SLOTS]


def interleave(chosen: Sequence[Sequence[ActiveJob]], gpus: int, most: int, periods: Periods) -> list[list[ActiveJob]]:
    """Merge the chosen jobs (lists by number of GPUs) into groups until they need no more GPUs than there are."""
    groups = {alike[0].job.gpus: [[one] for one in alike] for alike in chosen if alike}
    needed = sum(size * len(found) for size, found in groups.items())
    for _ in range(most):
        if needed <= gpus:
            break
        for size, found in groups.items():
            if needed <= gpus:
                break
            merged, taken = [], set()
            for first, second in _pairs(found, most, periods):
                if needed > gpus:
                    merged.append([*found[first], *found[second]])
                    taken |= {first, second}
                    needed -= size
            groups[size] = [one for place, one in enumerate(found) if place not in taken] + merged
    return [group for found in groups.values() for group in found]


def _pairs(groups: Sequence[Sequence[ActiveJob]], most: int, periods: Periods) -> list[tuple[int, int]]:
    """Return the pairing of maximum weight, computed by kinds because groups of a kind are equal."""
    left: dict[Kind, list[int]] = {}
    for place, group in enumerate(groups):
        left.setdefault(kind_of(group), []).append(place)
    pairs = []
    for one, other, count in periods.paired({kind: len(places) for kind, places in left.items()}, most):
        pairs += [(left[one].pop(0), left[other].pop(0)) for _ in range(count)]
    return sorted(pairs, key=max)


def _most_weight(
    counts: Mapping[Kind, int], most: int, weight: Callable[[Kind], float]
) -> list[tuple[Kind, Kind, int]]:
    kinds = list(counts)
    edges = [
        (one, other)
        for one, other in itertools.combinations_with_replacement(range(len(kinds)), 2)
        if len(kinds[one]) + len(kinds[other]) <= most and (one != other or counts[kinds[one]] > 1)
    ]
    if not edges:
        return []
    weights = np.array([weight(tuple(sorted(kinds[one] + kinds[other]))) for one, other in edges])
    uses = np.zeros((len(kinds), len(edges)))
    for column, (one, other) in enumerate(edges):
        uses[one, column] += 1
        uses[other, column] += 1
    available = np.array([counts[kind] for kind in kinds], dtype=float)
    whole, fits = np.ones(len(edges)), LinearConstraint(uses, 0, available)
    solved = milp(-weights, constraints=fits, integrality=whole, options={"presolve": False})  # presolve prints lines
    found = zip(edges, np.rint(solved.x).astype(int), strict=True)
    return [(kinds[one], kinds[other], int(count)) for (one, other), count in found if count]


def rates(group: Sequence[ActiveJob], periods: Periods, longer: float) -> list[float]:
    """Return each job's speed relative to alone; no job is faster than alone, whatever the trace says of its phases.

    `longer`: factor by which interleaved phases take longer than alone.
    """
    if len(group) == 1:
        return [1.0]
    period = longer * periods.of(kind_of(group))
    return [min(1.0, one.job.step_s / period) for one in group]


def chosen_for(order: Sequence[ActiveJob], free: list[int], most: int) -> list[list[ActiveJob]]:
    """Choose jobs in this order, each with the next ones of the same size; return lists by number of GPUs."""
    by_size: dict[int, list[ActiveJob]] = {}
    for one in order:
        by_size.setdefault(one.job.gpus, []).append(one)
    counts = dict.fromkeys(by_size, 0)
    used: set[int] = set()
    for one in order:
        if one.job.number in used or not take(free, one.job.gpus):
            continue
        alike = by_size[one.job.gpus]
        bound = min(counts[one.job.gpus] + most, len(alike))
        used |= {other.job.number for other in alike[counts[one.job.gpus] : bound]}
        counts[one.job.gpus] = bound
    return [alike[: counts[size]] for size, alike in by_size.items()]


def take(free: list[int], gpus: int) -> bool:
    """Take free GPUs on one node, or whole free nodes; return False if there are none."""
    if gpus <= NODE_GPUS:
        for node, left in enumerate(free):
            if left >= gpus:
                free[node] -= gpus
                return True
        return False
    nodes = [node for node, left in enumerate(free) if left == NODE_GPUS][: gpus // NODE_GPUS]
    if len(nodes) * NODE_GPUS < gpus:
        return False
    for node in nodes:
        free[node] = 0
    return True
