"""Which jobs interleave, and how fast is each then? Muri's groups: up to four jobs take turns at what a step needs.

A step loads (and prepares), computes, and tells the other GPUs. A group's cycle has four slots, and each of its jobs
does one stage in a slot, loading in two; the jobs are one slot apart. A slot ends when all of its stages have: the
period of the cycle is the time of a step for each job of the group. Jobs are paired by weight, the part of the stages'
time that a cycle makes use of, and the pairs are paired again: the pairing of the most weight, which Muri finds by the
blossom algorithm and we, as few kinds of jobs differ, as a small integer program.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from scipy.optimize import LinearConstraint, milp

from cotenant.experiment.lab.muri_rules import Live

SLOTS: Final = 4
NODE_GPUS: Final = 8
_CYCLES: Final = 4

Stages: TypeAlias = tuple[float, float, float]
Kind: TypeAlias = tuple[tuple[Stages, float], ...]
"""Of a group: stages and the time of a step alone of each of its jobs, in order."""


def kind_of(group: Sequence[Live]) -> Kind:
    return tuple(sorted((one.job.stages_s, one.job.step_s) for one in group))


class Periods:
    """Periods of groups by kind; each is worked out once."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._known: dict[Kind, float] = {}
        self._paired: dict[frozenset[tuple[Kind, int]], list[tuple[Kind, Kind, int]]] = {}

    def of(self, kind: Kind) -> float:
        """Seconds of a cycle in the best order."""
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = _best_period(kind)
        return found

    def weight(self, kind: Kind) -> float:
        """The part of what the four slots offer that is used."""
        return sum(sum(stages) for stages, _ in kind) / (SLOTS * self.of(kind))

    def paired(self, counts: Mapping[Kind, int], most: int) -> list[tuple[Kind, Kind, int]]:
        """How many groups of which two kinds become one, for the most weight in all."""
        key = frozenset(counts.items())
        if key not in self._paired:
            self._paired[key] = _most_weight(counts, most, self.weight)
        return self._paired[key]


def _best_period(kind: Kind) -> float:
    if len(kind) == 1:
        return kind[0][1]
    stages = [stages for stages, _ in kind]
    best = min(_period(order) for order in itertools.permutations(stages))
    if len(stages) == 2:  # also with an empty slot between the two
        (first, second) = stages
        best = min(best, max(first[0], sum(second[1:])) + max(second[0], sum(first[1:])))
    return best


def _period(order: Sequence[Stages]) -> float:
    ends = [0.0]
    for slot in range(1, SLOTS * _CYCLES + 1):
        times = [ends[-1]]
        for stage, ahead, begun in ((2, 0, -1), (1, 1, -1), (0, 2, -2)):
            place = (slot + ahead) % SLOTS
            if place < len(order) and slot + begun >= 0:
                times.append(ends[begun] + order[place][stage])
        ends.append(max(times))
    return ends[-1] - ends[-1 - SLOTS]


def interleave(chosen: Sequence[Sequence[Live]], gpus: int, most: int, periods: Periods) -> list[list[Live]]:
    """Groups of the chosen jobs (lists of as many GPUs each), paired until they need no more GPUs than there are."""
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


def _pairs(groups: Sequence[Sequence[Live]], most: int, periods: Periods) -> list[tuple[int, int]]:
    """The pairing of the most weight; by kinds, because groups of a kind are alike."""
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
    room = np.array([counts[kind] for kind in kinds], dtype=float)
    whole, fits = np.ones(len(edges)), LinearConstraint(uses, 0, room)
    solved = milp(-weights, constraints=fits, integrality=whole, options={"presolve": False})  # else it prints lines
    found = zip(edges, np.rint(solved.x).astype(int), strict=True)
    return [(kinds[one], kinds[other], int(count)) for (one, other), count in found if count]


def rates(group: Sequence[Live], periods: Periods, longer: float) -> list[float]:
    """Of each job's speed alone. No job is faster than alone, whatever the trace says of its stages.

    `longer`: by how much stages that take turns take longer than alone.
    """
    if len(group) == 1:
        return [1.0]
    period = longer * periods.of(kind_of(group))
    return [min(1.0, one.job.step_s / period) for one in group]


def chosen_for(order: Sequence[Live], free: list[int], most: int) -> list[list[Live]]:
    """Whoever gets GPUs in this order brings along the next ones that want as many; lists by the number of GPUs."""
    by_size: dict[int, list[Live]] = {}
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
    """Of the nodes' free GPUs: on one node, or on whole free nodes; False: there are none."""
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
