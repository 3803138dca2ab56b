"""Placement rounds: prepare the waiting jobs and open GPUs, plan by the policy, and commit.

A pairing that is no longer valid when it is committed is discarded and left to the next round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from cotenant.cluster.model.cluster import JobState
from cotenant.cluster.model.event import ClusterAction
from cotenant.cluster.policy import ROUNDS
from cotenant.cluster.policy.round import GpuKinds, Gpus, JobKinds, Jobs, Pairing, Round, RoundPlan, priority_factors
from cotenant.cluster.state.fit import why_not
from cotenant.cluster.state.gangs import complete_gangs, is_startable, plan_with_gangs
from cotenant.cluster.state.inventory import Node
from cotenant.cluster.state.jobs import Job
from cotenant.cluster.state.pair_weights import WeightTable
from cotenant.cluster.state.queue_window import eligible_rows
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import Instant
from cotenant.units.share import WHOLE_PPM

if TYPE_CHECKING:
    from cotenant.cluster.state.attempts import ClusterState

Array: TypeAlias = Any
_NEAR: Final = 0.99
"""Part of its upper bound that a plan from the last round's prices must reach."""
_CONSIDERED_NODES: Final = 64
"""Nodes whose jobs may be moved in one round."""


class PreparedRound(NamedTuple):
    """Input of a policy, with the jobs, GPUs and kinds to which its indices refer."""

    round: Round
    table: WeightTable
    jobs: list[Job]
    gpus: Array
    """Indices into the inventory."""
    job_kinds: list[int]
    gpu_kinds: list[int]


def hold_round(machine: ClusterState, now: Instant) -> list[ClusterAction]:
    """Plan a round and commit the valid pairings."""
    machine.inventory.settle()
    machine.job_table.settle()
    machine.job_table.users.account(now)
    prepared = prepare_round(machine, now)
    return [] if prepared is None else commit(machine, prepared, plan_round(machine, prepared), now)


def plan_round(machine: ClusterState, prepared: PreparedRound) -> RoundPlan:
    """Plan by the policy of the cluster.

    If prices of the last round were too high and left GPUs unused, plan again without them.
    """
    plan = ROUNDS[machine.settings.place].plan
    if machine.job_table.gangs and any(job.spec.gang for job in prepared.jobs):
        return plan_with_gangs(plan, prepared.round, [job.spec.gang for job in prepared.jobs])
    planned = plan(prepared.round)
    if prepared.round.price is not None and planned.value < _NEAR * planned.bound:
        planned = plan(prepared.round._replace(price=None))
    return planned


def prepare_round(machine: ClusterState, now: Instant) -> PreparedRound | None:
    """Return the jobs that may be started or moved, and the open GPUs; None: there is nothing to decide."""
    inventory, job_table, settings = machine.inventory, machine.job_table, machine.settings
    gpus = np.flatnonzero(np.frombuffer(inventory.open, np.uint8)) if len(inventory) else np.zeros(0, np.int64)
    rows = complete_gangs(machine.job_table, eligible_rows(machine, gpus, now))
    running = _movable(machine, now) if settings.moves_limit and len(rows) < len(gpus) else []
    if not len(gpus) or not len(rows) + len(running):
        return None
    jobs = [job_table.at_row[row] for row in rows.tolist()]
    candidates: list[Job] = [*(job for job in jobs if job is not None), *running]
    rows = np.concatenate([rows, np.array([job.row for job in running], np.int64)])
    job_kinds, kind = _numbered(np.frombuffer(job_table.kind, np.int32)[rows])
    gpu_kinds, column = _numbered(np.frombuffer(inventory.kind, np.int32)[gpus])
    kinds = [job_table.kinds[job_kind] for job_kind in job_kinds]
    spots = [inventory.kinds[gpu_kind] for gpu_kind in gpu_kinds]
    table = machine.pair_weights.table(kinds, spots, settings.slowdown_limit_ppm)
    current_weight = np.zeros(len(rows), np.float32)
    if running:
        current_weight[len(rows) - len(running) :] = _current_weights(machine, running)
    state_start = np.frombuffer(job_table.since, np.int64)[rows]
    inputs = Round(
        Jobs(
            kind,
            np.frombuffer(job_table.priority, np.int32)[rows],
            now - state_start,
            _priority_factors(machine, rows),
            current_weight,
        ),
        JobKinds(
            np.array([kind.gpus for kind in kinds], np.int32),
            np.array([kind.memory_bytes for kind in kinds], np.int64),
            np.array([_need_ppm(kind.use) for kind in kinds], np.int32),
        ),
        Gpus(column, np.frombuffer(inventory.rank, np.int32)[gpus]),
        GpuKinds(
            np.array([spot.offer_ppm for spot in spots], np.int32),
            np.array([spot.free_bytes for spot in spots], np.int64),
            np.array([len(spot.online) for spot in spots], np.int32),
        ),
        table.possible,
        table.weight,
        _barred(machine, job_kinds),
        np.array([inventory.prices[gpu_kind] for gpu_kind in gpu_kinds], np.float32) if machine.rounds else None,
        settings.switch_ppm / WHOLE_PPM,
        settings.moves_limit if running else 0,
        machine.rounds,
        np.array([len(node.gpus) for node in inventory.ranked], np.int32),
    )
    return PreparedRound(inputs, table, candidates, gpus, job_kinds, gpu_kinds)


def commit(machine: ClusterState, prepared: PreparedRound, planned: RoundPlan, now: Instant) -> list[ClusterAction]:
    """Carry out the pairings that are still valid and discard the others."""
    inventory = machine.inventory
    actions: list[ClusterAction] = []
    started_gangs: dict[str, bool] = {}
    placements = [_placement(machine, prepared, pairing) for pairing in planned.pairings]
    for job, node, gpus in placements:
        gang = job.spec.gang
        if gang and gang not in started_gangs:
            started_gangs[gang] = is_startable(
                inventory, machine.job_table, [placement for placement in placements if placement[0].spec.gang == gang]
            )
        is_discarded = not started_gangs[gang] if gang else bool(why_not(inventory, machine.job_table, job, node, gpus))
        if is_discarded:
            machine.discarded += 1
        elif job.state is JobState.WAITING:
            machine.placed += 1
            actions.append(machine.start(job, node, gpus, now))
        elif job.state is JobState.RUNNING and not job.stop:
            machine.moved += 1
            actions += machine.migrate(job, node, gpus, now)
        else:
            machine.discarded += 1
    if planned.price is not None:
        # A kind with unused GPUs gets no price, so that the next round can use them.
        unused_kinds = {inventory.kind[gpu] for gpu in prepared.gpus.tolist() if inventory.open[gpu]}
        for kind, price in zip(prepared.gpu_kinds, planned.price.tolist(), strict=True):
            inventory.prices[kind] = price if kind not in unused_kinds and inventory.counts[kind] else 0.0
    return actions


def _placement(machine: ClusterState, prepared: PreparedRound, pairing: Pairing) -> tuple[Job, Node, tuple[int, ...]]:
    """Return the job, node and GPUs of a pairing; no GPUs if those are on several nodes."""
    inventory = machine.inventory
    positions = [int(prepared.gpus[gpu]) for gpu in pairing.gpus]
    node = inventory.ranked[inventory.rank[positions[0]]]
    is_one_node = all(inventory.rank[gpu] == node.rank for gpu in positions)
    gpus = tuple(sorted(gpu - node.base for gpu in positions)) if is_one_node else ()
    return prepared.jobs[pairing.job], node, gpus


def _movable(machine: ClusterState, now: Instant) -> list[Job]:
    """Return the jobs that have had one GPU alone for at least a round, so that their speed is known.

    In a large cluster each round considers another part of the nodes.
    """
    inventory, since = machine.inventory, now - machine.settings.round_ns
    nodes = len(inventory.ranked)
    first = machine.rounds * _CONSIDERED_NODES % nodes if nodes else 0
    considered = [inventory.ranked[(first + step) % nodes] for step in range(min(nodes, _CONSIDERED_NODES))]
    return [
        job
        for node in considered
        for job in node.attempts.values()
        if job.state is JobState.RUNNING
        and job.spec.gpus == 1
        and not job.spec.gang
        and job.started <= since
        and job.gpus[0] < len(node.gpus)
        and node.gpus[job.gpus[0]].places == 1
    ]


def _current_weights(machine: ClusterState, running: list[Job]) -> Array:
    inventory, job_table = machine.inventory, machine.job_table
    kinds = [inventory.kind[job.node.base + job.gpus[0]] for job in running if job.node is not None]
    job_kinds, row = _numbered(np.array([job.kind for job in running], np.int32))
    gpu_kinds, column = _numbered(np.array(kinds, np.int32))
    # The limit on slowdowns does not apply to a job that runs already.
    table = machine.pair_weights.table(
        [job_table.kinds[job_kind] for job_kind in job_kinds],
        [inventory.kinds[gpu_kind] for gpu_kind in gpu_kinds],
        1 << 62,
    )
    return np.maximum(table.weight[row, column], np.float32(1e-3))


def _numbered(kinds: Array) -> tuple[list[int], Array]:
    """Return the kinds in the order of their first occurrence, and for each entry the index of its kind.

    The result does not depend on the numbers of kinds, so it is the same in a cluster restored from a snapshot.
    """
    unique, first, index = np.unique(kinds, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return unique[order].tolist(), rank[index.reshape(-1)]


def _priority_factors(machine: ClusterState, rows: Array) -> Array:
    if not machine.settings.fair:
        return np.ones(len(rows), np.float32)
    job_table = machine.job_table
    users, index = np.unique(np.frombuffer(job_table.user, np.int32)[rows], return_inverse=True)
    names = [job_table.user_names[user] for user in users.tolist()]
    return priority_factors([job_table.users.used.get(name, 0.0) for name in names])[index.reshape(-1)]


def _barred(machine: ClusterState, job_kinds: list[int]) -> dict[int, frozenset[int]]:
    """Return for kinds of jobs the nodes that are excluded because of other jobs there."""
    barred: dict[int, frozenset[int]] = {}
    particular = machine.job_table.particular.values()
    for row, number in enumerate(job_kinds):
        kind = machine.job_table.kinds[number]
        if particular and (kind.group or kind.avoid):
            nodes = frozenset(
                other.node.rank
                for other in particular
                if other.node is not None
                and (
                    (other.spec.group and other.spec.group in kind.avoid)
                    or (kind.group and kind.group in other.spec.avoid)
                )
            )
            if nodes:
                barred[row] = nodes
    return barred


def _need_ppm(use: TaskUse | None) -> int:
    """Return the part of the SMs that the job would use alone; 0: unknown."""
    if use is None or not use.widths:
        return 0
    return min(WHOLE_PPM, sum(width * part for width, part in use.widths) // WHOLE_PPM)
