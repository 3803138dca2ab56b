"""Whose turn is it? Of all who wait, those that a round looks at: a window that only those fill who could be started.

A job that no open GPU will do for would otherwise keep those behind it out of sight, round after round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from cotenant.domain.instant import Instant
from cotenant.machine.cluster_worth import possible_pairs
from cotenant.policy.place.rounds import ROUNDS

if TYPE_CHECKING:
    from cotenant.machine.cluster_state import ClusterState

Array: TypeAlias = Any
_CHOICE: Final = 8
"""For each open GPU so many jobs are looked at, those whose turn it is first: nobody waits for ever for being slow."""
_LEAST_CHOICE: Final = 1024
_CELLS: Final = 1 << 22
"""So many pairs of kinds are looked at together."""
_FORETOLD_CELLS: Final = 1 << 20
"""Of no more pairs it is foretold who would be unsafe, only to find out whose turn it is."""


def whose_turn(machine: ClusterState, gpus: Array, now: Instant) -> Array:
    """Rows of who waits, in order: priority, then who came first; of a user with a quota no more than it leaves."""
    roster = machine.roster
    if not roster.waiting or not len(gpus):
        return np.zeros(0, np.int64)
    rows = np.flatnonzero(np.frombuffer(roster.waits, np.uint8))
    rows = rows[np.frombuffer(roster.after, np.int64)[rows] <= now]
    number = np.frombuffer(roster.number, np.int64)[rows]
    priority = np.frombuffer(roster.priority, np.int32)[rows]
    rows = rows[np.lexsort((number, -priority))]
    most = _CHOICE * len(gpus) + _LEAST_CHOICE
    if not len(rows) or (len(rows) <= most and not roster.users.quotas):
        return rows
    known, kind = np.unique(np.frombuffer(roster.kind, np.int32)[rows], return_inverse=True)
    gangs = _gangs_with_room(machine, known.tolist(), gpus)
    is_kept = gangs[kind] > 0
    rows, room = rows[is_kept], gangs[kind][is_kept]
    is_kept = _within_quotas(machine, rows)
    rows, room = rows[is_kept], room[is_kept]
    return rows if len(rows) <= most else rows[_not_too_many_alike(machine, rows, room)][:most]


def _gangs_with_room(machine: ClusterState, kinds: list[int], gpus: Array) -> Array:
    """Of each kind, at most how many jobs could be started now if there were no others."""
    floor, jobs = machine.floor, [machine.roster.kinds[kind] for kind in kinds]
    columns, counts = np.unique(np.frombuffer(floor.kind, np.int32)[gpus], return_counts=True)
    spots = [floor.kinds[column] for column in columns.tolist()]
    is_bound_to_be_safe = ROUNDS[machine.settings.place].is_safe and len(jobs) * len(spots) <= _FORETOLD_CELLS
    if is_bound_to_be_safe:
        room = (machine.worth.table(jobs, spots, machine.settings.slowdown_limit_ppm).worth > 0) @ counts
    else:
        step = max(1, _CELLS // len(spots))
        blocks = (jobs[first : first + step] for first in range(0, len(jobs), step))
        room = np.concatenate([possible_pairs(block, spots) @ counts for block in blocks])
    wanted = np.array([kind.gpus for kind in jobs], np.int64)
    of_one_node = np.bincount(np.frombuffer(floor.rank, np.int32)[gpus]).max()
    return np.where(wanted <= of_one_node, room // wanted, 0)


def _within_quotas(machine: ClusterState, rows: Array) -> Array:
    """Whether each may be started, those before it first; who wants more than is left takes nothing from the next."""
    roster = machine.roster
    user = np.frombuffer(roster.user, np.int32)[rows]
    is_kept = np.ones(len(rows), bool)
    for name in roster.users.quotas:
        theirs = roster.user_of.get(name)
        if theirs is None:
            continue
        mine = np.flatnonzero(user == theirs)
        if not len(mine):
            continue
        left = roster.users.left(name)
        wanted = np.array([roster.kinds[kind].gpus for kind in np.frombuffer(roster.kind, np.int32)[rows[mine]]])
        if wanted.sum() <= left:
            continue
        is_kept[mine] = False
        least = wanted.min()
        for at, gpus in zip(mine.tolist(), wanted.tolist(), strict=True):
            if left < least:
                break
            if gpus <= left:
                left -= gpus
                is_kept[at] = True
    return is_kept


def _not_too_many_alike(machine: ClusterState, rows: Array, room: Array) -> Array:
    """Whether each is among the first of its kind and user, of which there is room for so many."""
    roster = machine.roster
    kind = np.frombuffer(roster.kind, np.int32)[rows].astype(np.int64)
    alike = kind * len(roster.user_names) + np.frombuffer(roster.user, np.int32)[rows]
    order = np.argsort(alike, kind="stable")
    is_first = np.concatenate([[True], np.diff(alike[order]) != 0])
    begins = np.flatnonzero(is_first)
    before = np.empty(len(rows), np.int64)
    before[order] = np.arange(len(rows)) - begins[np.cumsum(is_first) - 1]
    return before < room
