"""Who is started where, now? A snapshot of who waits and what is open, and a plan on it.

Each part of the plan is committed or discarded: what no longer holds is left for the next round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from cotenant.domain.cluster import JobState
from cotenant.domain.clusters import Answer, ClusterAction, StartJob, StopJob
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import Instant
from cotenant.domain.use import TaskUse
from cotenant.machine.cluster_fit import why_not
from cotenant.machine.cluster_jobs import Job
from cotenant.machine.cluster_turns import whose_turn
from cotenant.machine.cluster_worth import Table
from cotenant.policy.place.fair import lifts
from cotenant.policy.place.round import GpuKinds, Gpus, JobKinds, Jobs, Planned, Round
from cotenant.policy.place.rounds import ROUNDS

if TYPE_CHECKING:
    from cotenant.machine.cluster_state import ClusterState

Array: TypeAlias = Any
_NEAR: Final = 0.99
"""Of what a plan could be worth at most, it must reach so much."""
_LOOKED_AT: Final = 64
"""Nodes whose jobs may be moved in one round."""


class Drawn(NamedTuple):
    """A round as it is planned on, with what its numbers stand for."""

    round: Round
    table: Table
    jobs: list[Job]
    gpus: Array
    """Places on the floor."""
    job_kinds: list[int]
    gpu_kinds: list[int]


def hold_round(machine: ClusterState, now: Instant) -> list[ClusterAction]:
    """Plan, then commit what still holds."""
    machine.floor.settle()
    machine.roster.settle()
    machine.roster.users.account(now)
    if machine.recorded is not None:
        return _hold_again(machine, machine.recorded, now)
    drawn = draw_round(machine, now)
    return [] if drawn is None else commit(machine, drawn, plan_round(machine, drawn), now)


def _hold_again(machine: ClusterState, recorded: Sequence[ClusterAction], now: Instant) -> list[ClusterAction]:
    """What was decided then, whatever would be decided now."""
    jobs, nodes = machine.roster.jobs, machine.floor.nodes
    actions: list[ClusterAction] = []
    for action in recorded:
        job = None if isinstance(action, Answer) else jobs.get(action.attempt.job)
        if isinstance(action, StartJob) and job is not None and job.state is JobState.WAITING:
            actions.append(machine.start(job, nodes[action.node], action.gpus, now))
        elif isinstance(action, StopJob) and job is not None and action.kept_on and job.state is JobState.RUNNING:
            actions += machine.move_away(job, nodes[action.kept_on], action.kept, now)
    return actions


def plan_round(machine: ClusterState, drawn: Drawn) -> Planned:
    """What the policy of this cluster makes of it.

    Prices of the last round that were too high for this one leave GPUs unused; then it is planned without them.
    """
    plan = ROUNDS[machine.settings.place].plan
    planned = plan(drawn.round)
    if drawn.round.price is not None and planned.value < _NEAR * planned.bound:
        planned = plan(drawn.round._replace(price=None))
    return planned


def draw_round(machine: ClusterState, now: Instant) -> Drawn | None:
    """Who waits and may be started, who runs and may be moved, and what is open; None: there is nothing to decide."""
    floor, roster, settings = machine.floor, machine.roster, machine.settings
    gpus = np.flatnonzero(np.frombuffer(floor.open, np.uint8)) if len(floor) else np.zeros(0, np.int64)
    rows = whose_turn(machine, gpus, now)
    running = _movable(machine, now) if settings.moves_limit and len(rows) < len(gpus) else []
    if not len(gpus) or not len(rows) + len(running):
        return None
    jobs = [roster.at_row[row] for row in rows.tolist()]
    everybody: list[Job] = [*(job for job in jobs if job is not None), *running]
    rows = np.concatenate([rows, np.array([job.row for job in running], np.int64)])
    job_kinds, kind = _numbered(np.frombuffer(roster.kind, np.int32)[rows])
    gpu_kinds, column = _numbered(np.frombuffer(floor.kind, np.int32)[gpus])
    kinds = [roster.kinds[one] for one in job_kinds]
    spots = [floor.kinds[one] for one in gpu_kinds]
    table = machine.worth.table(kinds, spots, settings.slowdown_limit_ppm)
    now_worth = np.zeros(len(rows), np.float32)
    if running:
        now_worth[len(rows) - len(running) :] = _worth_now(machine, running)
    since = np.frombuffer(roster.since, np.int64)[rows]
    given = Round(
        Jobs(
            kind,
            np.frombuffer(roster.priority, np.int32)[rows],
            now - since,
            _lifts(machine, rows),
            now_worth,
        ),
        JobKinds(
            np.array([one.gpus for one in kinds], np.int32),
            np.array([one.memory_bytes for one in kinds], np.int64),
            np.array([_need_ppm(one.use) for one in kinds], np.int32),
        ),
        Gpus(column, np.frombuffer(floor.rank, np.int32)[gpus]),
        GpuKinds(
            np.array([one.offer_ppm for one in spots], np.int32),
            np.array([one.free_bytes for one in spots], np.int64),
            np.array([len(one.online) for one in spots], np.int32),
        ),
        table.possible,
        table.worth,
        _barred(machine, job_kinds),
        np.array([floor.prices[one] for one in gpu_kinds], np.float32) if machine.rounds else None,
        settings.switch_ppm / WHOLE_PPM,
        settings.moves_limit if running else 0,
        machine.rounds,
        np.array([len(node.gpus) for node in floor.ranked], np.int32),
    )
    return Drawn(given, table, everybody, gpus, job_kinds, gpu_kinds)


def commit(machine: ClusterState, drawn: Drawn, planned: Planned, now: Instant) -> list[ClusterAction]:
    """Each pairing that still holds is done; the rest is discarded."""
    floor = machine.floor
    actions: list[ClusterAction] = []
    for pairing in planned.pairings:
        job = drawn.jobs[pairing.job]
        places = [int(drawn.gpus[gpu]) for gpu in pairing.gpus]
        node = floor.ranked[floor.rank[places[0]]]
        gpus = tuple(sorted(place - node.base for place in places))
        if any(floor.rank[place] != node.rank for place in places) or why_not(floor, machine.roster, job, node, gpus):
            machine.discarded += 1
        elif job.state is JobState.WAITING:
            machine.placed += 1
            actions.append(machine.start(job, node, gpus, now))
        elif job.state is JobState.RUNNING and not job.stop:
            machine.moved += 1
            actions += machine.move_away(job, node, gpus, now)
        else:
            machine.discarded += 1
    if planned.price is not None:
        # What is left over costs nothing, or who comes next would not get it.
        left = {floor.kind[place] for place in drawn.gpus.tolist() if floor.open[place]}
        for kind, price in zip(drawn.gpu_kinds, planned.price.tolist(), strict=True):
            floor.prices[kind] = 0.0 if kind in left else price
    return actions


def _movable(machine: ClusterState, now: Instant) -> list[Job]:
    """Jobs that run on one GPU and have done so for a round: of others it is not known yet how they do.

    Of a large cluster a part in each round, and the next one in the next.
    """
    floor, since = machine.floor, now - machine.settings.round_ns
    nodes = len(floor.ranked)
    first = machine.rounds * _LOOKED_AT % nodes if nodes else 0
    looked_at = [floor.ranked[(first + step) % nodes] for step in range(min(nodes, _LOOKED_AT))]
    return [
        job
        for node in looked_at
        for job in node.attempts.values()
        if job.state is JobState.RUNNING
        and job.spec.gpus == 1
        and job.started <= since
        and job.gpus[0] < len(node.gpus)
    ]


def _worth_now(machine: ClusterState, running: list[Job]) -> Array:
    floor, roster = machine.floor, machine.roster
    places = [floor.kind[job.node.base + job.gpus[0]] for job in running if job.node is not None]
    job_kinds, row = _numbered(np.array([job.kind for job in running], np.int32))
    gpu_kinds, column = _numbered(np.array(places, np.int32))
    # Where it runs it is: what the online work would bear is no matter of its worth.
    table = machine.worth.table(
        [roster.kinds[one] for one in job_kinds], [floor.kinds[one] for one in gpu_kinds], 1 << 62
    )
    return np.maximum(table.worth[row, column], np.float32(1e-3))


def _numbered(kinds: Array) -> tuple[list[int], Array]:
    """Kinds in the order in which they come first, and the place of each one's in that.

    No matter how they are numbered here, they are the same in a cluster restored from a snapshot.
    """
    known, first, place = np.unique(kinds, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return known[order].tolist(), rank[place.reshape(-1)]


def _lifts(machine: ClusterState, rows: Array) -> Array:
    if not machine.settings.fair:
        return np.ones(len(rows), np.float32)
    roster = machine.roster
    known, place = np.unique(np.frombuffer(roster.user, np.int32)[rows], return_inverse=True)
    names = [roster.user_names[user] for user in known.tolist()]
    received = [roster.users.used.get(name, 0.0) for name in names]
    return lifts(received, [roster.users.weight(name) for name in names])[place.reshape(-1)]


def _barred(machine: ClusterState, job_kinds: list[int]) -> dict[int, frozenset[int]]:
    """Kinds of jobs, with the nodes on which somebody is with whom they must not be."""
    barred: dict[int, frozenset[int]] = {}
    there = machine.roster.particular.values()
    for row, number in enumerate(job_kinds):
        kind = machine.roster.kinds[number]
        if there and (kind.group or kind.avoid):
            nodes = frozenset(
                other.node.rank
                for other in there
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
    """The part of the SMs that the job would use alone; 0: not known."""
    if use is None or not use.widths:
        return 0
    return min(WHOLE_PPM, sum(width * part for width, part in use.widths) // WHOLE_PPM)
