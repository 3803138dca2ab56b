"""Gangs: jobs that are started together, on any nodes, or not at all.

A gang takes part in a round if all its jobs exist and all that wait are considered. Jobs of the gang that run already
count as well: the successor of one that ended is started alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from cotenant.cluster.model.cluster import JobState
from cotenant.cluster.policy.gang import place_together
from cotenant.cluster.policy.round import Gpus, Jobs, Pairing, Round, RoundPlan
from cotenant.cluster.state.fit import clash, why_not
from cotenant.cluster.state.inventory import ClusterInventory, Node
from cotenant.cluster.state.jobs import Job, JobTable
from cotenant.units.text import counted

Array: TypeAlias = Any


def complete_gangs(job_table: JobTable, rows: Array) -> Array:
    """Return the rows without the jobs of gangs that cannot be started as a whole."""
    if not job_table.gangs or not len(rows):
        return rows
    jobs = [job_table.at_row[row] for row in rows.tolist()]
    considered = Counter(job.spec.gang for job in jobs if job is not None and job.spec.gang)
    complete = {
        gang
        for gang, count in considered.items()
        if count == _waiting(job_table, gang) and not missing_members(job_table, gang)
    }
    is_kept = [job is not None and (not job.spec.gang or job.spec.gang in complete) for job in jobs]
    return rows[np.array(is_kept, bool)]


def missing_members(job_table: JobTable, gang: str) -> str:
    """Return how many jobs of the gang are missing, as a sentence; empty: none."""
    members = job_table.gangs[gang].values()
    size = max(job.spec.gang_size for job in members)
    if len(members) >= size:
        return ""
    return f"only {len(members)} of the {size} members of its gang {gang} exist"


def gang_needs(job_table: JobTable, gang: str) -> str:
    """Return what the waiting jobs of a gang need, as a sentence."""
    gpus = sum(job.spec.gpus for job in job_table.gangs[gang].values() if job.state is JobState.WAITING)
    return f"it waits for a round in which its gang {gang} gets {counted(gpus, 'GPU')} at once"


def _waiting(job_table: JobTable, gang: str) -> int:
    return sum(job.state is JobState.WAITING for job in job_table.gangs[gang].values())


def is_startable(
    inventory: ClusterInventory, job_table: JobTable, placements: Sequence[tuple[Job, Node, tuple[int, ...]]]
) -> bool:
    """Return whether these are all waiting jobs of one gang, and all of them can be started as planned."""
    gang = placements[0][0].spec.gang
    if len(placements) != _waiting(job_table, gang):
        return False
    for index, (job, node, gpus) in enumerate(placements):
        if job.state is not JobState.WAITING or why_not(inventory, job_table, job, node, gpus):
            return False
        if any(other_node is node and clash(job, other) for other, other_node, _ in placements[:index]):
            return False
    return True


def plan_with_gangs(plan: Callable[[Round], RoundPlan], inputs: Round, gangs: Sequence[str]) -> RoundPlan:
    """Plan a round in which some jobs belong to a gang; `gangs` names the gang of each job, or is empty.

    By descending priority, gangs are placed as a whole, and the policy places the other jobs on the remaining GPUs. A
    gang has the lowest priority of its jobs. Prices of earlier rounds are not used and no job is moved.
    """
    priority = inputs.jobs.priority.copy()
    members: dict[str, list[int]] = {}
    for job, gang in enumerate(gangs):
        if gang:
            members.setdefault(gang, []).append(job)
    for jobs in members.values():
        priority[jobs] = priority[jobs].min()
    is_single = np.array([not gang for gang in gangs], bool) & (inputs.jobs.now <= 0)
    is_free = np.ones(len(inputs.gpus.kind), bool)
    pairings: list[Pairing] = []
    for level in np.unique(priority)[::-1].tolist():
        together = [jobs for jobs in members.values() if priority[jobs[0]] == level]
        pairings += place_together(inputs, together, is_free)
        pairings += _plan_rest(plan, inputs, np.flatnonzero(is_single & (priority == level)), is_free)
    return RoundPlan(pairings)


def _plan_rest(plan: Callable[[Round], RoundPlan], inputs: Round, jobs: Array, is_free: Array) -> list[Pairing]:
    """Place these jobs by the policy on the free GPUs."""
    gpus = np.flatnonzero(is_free)
    if not len(jobs) or not len(gpus):
        return []
    part = inputs._replace(
        jobs=Jobs(*(column[jobs] for column in inputs.jobs)),
        gpus=Gpus(*(column[gpus] for column in inputs.gpus)),
        price=None,
        moves=0,
    )
    pairings = [
        Pairing(int(jobs[pairing.job]), tuple(int(gpus[gpu]) for gpu in pairing.gpus), pairing.weight)
        for pairing in plan(part).pairings
    ]
    for pairing in pairings:
        is_free[list(pairing.gpus)] = False
    return pairings
