"""Selection of the waiting jobs that a round considers.

The window contains only jobs that could be started. Otherwise a job that suits no open GPU would hide those behind it
in every round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from cotenant.cluster.policy import ROUNDS
from cotenant.cluster.state.pair_weights import possible_pairs
from cotenant.units.instant import Instant

if TYPE_CHECKING:
    from cotenant.cluster.state.attempts import ClusterState

Array: TypeAlias = Any
_CHOICE: Final = 8
"""Jobs considered per open GPU, in queue order, so that a slow job is not passed over for ever."""
_MIN_CHOICE: Final = 1024
_CELLS: Final = 1 << 22
"""Pairs of kinds that are tested together."""
_PREDICTED_CELLS: Final = 1 << 20
"""Number of pairs up to which unsafe ones are predicted for the selection."""


def eligible_rows(machine: ClusterState, gpus: Array, now: Instant) -> Array:
    """Return the rows of waiting jobs by priority and submission."""
    job_table = machine.job_table
    if not job_table.waiting or not len(gpus):
        return np.zeros(0, np.int64)
    rows = np.flatnonzero(np.frombuffer(job_table.waits, np.uint8))
    rows = rows[np.frombuffer(job_table.after, np.int64)[rows] <= now]
    number = np.frombuffer(job_table.number, np.int64)[rows]
    priority = np.frombuffer(job_table.priority, np.int32)[rows]
    rows = rows[np.lexsort((number, -priority))]
    limit = _CHOICE * len(gpus) + _MIN_CHOICE
    if len(rows) <= limit:
        return rows
    kinds, kind = np.unique(np.frombuffer(job_table.kind, np.int32)[rows], return_inverse=True)
    gangs = _startable(machine, kinds.tolist(), gpus)
    is_kept = gangs[kind] > 0
    rows, capacity = rows[is_kept], gangs[kind][is_kept]
    return rows if len(rows) <= limit else rows[_limit_equal_jobs(machine, rows, capacity)][:limit]


def _startable(machine: ClusterState, kinds: list[int], gpus: Array) -> Array:
    """Return for each kind how many of its jobs could be started if there were no others."""
    inventory, jobs = machine.inventory, [machine.job_table.kinds[kind] for kind in kinds]
    columns, counts = np.unique(np.frombuffer(inventory.kind, np.int32)[gpus], return_counts=True)
    spots = [inventory.kinds[column] for column in columns.tolist()]
    is_bound_to_be_safe = ROUNDS[machine.settings.place].is_safe and len(jobs) * len(spots) <= _PREDICTED_CELLS
    if is_bound_to_be_safe:
        capacity = (machine.pair_weights.table(jobs, spots, machine.settings.slowdown_limit_ppm).weight > 0) @ counts
    else:
        step = max(1, _CELLS // len(spots))
        blocks = (jobs[first : first + step] for first in range(0, len(jobs), step))
        capacity = np.concatenate([possible_pairs(block, spots) @ counts for block in blocks])
    needed = np.array([kind.gpus for kind in jobs], np.int64)
    of_one_node = np.bincount(np.frombuffer(inventory.rank, np.int32)[gpus]).max()
    return np.where(needed <= of_one_node, capacity // needed, 0)


def _limit_equal_jobs(machine: ClusterState, rows: Array, capacity: Array) -> Array:
    """Return which rows are among the first of their kind and user that could all be started."""
    job_table = machine.job_table
    kind = np.frombuffer(job_table.kind, np.int32)[rows].astype(np.int64)
    key = kind * len(job_table.user_names) + np.frombuffer(job_table.user, np.int32)[rows]
    order = np.argsort(key, kind="stable")
    is_first = np.concatenate([[True], np.diff(key[order]) != 0])
    begins = np.flatnonzero(is_first)
    earlier = np.empty(len(rows), np.int64)
    earlier[order] = np.arange(len(rows)) - begins[np.cumsum(is_first) - 1]
    return earlier < capacity
