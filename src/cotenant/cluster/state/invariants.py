"""Invariants of the cluster state, checked after every turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from cotenant.cluster.model.cluster import JobState
from cotenant.cluster.state.attempts import ClusterState
from cotenant.cluster.state.inventory import Node
from cotenant.cluster.state.jobs import Job
from cotenant.cluster.state.kinds import job_kind
from cotenant.errors import InvariantError
from cotenant.units.share import WHOLE_PPM

_ON_NODE: Final = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.LOST)
"""States in which an attempt is or may be on a node."""


def check(state: ClusterState) -> None:
    """Raise `InvariantError` with all violated invariants."""
    checks = [
        *_job_checks(state),
        *_placement_checks(state),
        *_user_checks(state),
        *_inventory_checks(state),
        *_row_checks(state),
    ]
    violations = [
        f"{quantity} are {actual}, not {expected}" for quantity, actual, expected in checks if actual != expected
    ]
    if violations:
        raise InvariantError(f"after turn {state.turn}: " + "; ".join(violations))


def _job_checks(state: ClusterState) -> list[tuple[str, object, object]]:
    """Compare job states with what they imply: each job is in one state until it is forgotten after its end."""
    jobs = list(state.job_table.jobs.values())
    on_node = [job for job in jobs if job.state in _ON_NODE]
    state_counts = Counter(job.state for job in jobs)
    return [
        ("states", dict(state.job_table.counts), {job_state: state_counts[job_state] for job_state in JobState}),
        ("jobs over", sorted(state.job_table.over), sorted(job.spec.name for job in jobs if job.state.is_over)),
        ("jobs remembered too long", len(state.job_table.over) > state.settings.remember, False),
        ("jobs on a node", _names(job for job in jobs if job.node is not None), _names(on_node)),
        ("jobs with GPUs", _names(job for job in jobs if job.gpus), _names(on_node)),
        (
            "jobs with a wrong number of GPUs",
            _names(job for job in on_node if len(set(job.gpus)) != job.spec.gpus or len(job.gpus) != job.spec.gpus),
            [],
        ),
        (
            "jobs on silent nodes",
            _names(job for job in on_node if job.node is not None and job.node.is_silent),
            _names(job for job in jobs if job.state is JobState.LOST),
        ),
        ("reported jobs that are on no node", _names(j for j in jobs if j.is_known and j.state not in _ON_NODE), []),
        (
            "running jobs that were not reported",
            _names(job for job in jobs if job.state is JobState.RUNNING and (job.stop or not job.is_known)),
            [],
        ),
        ("stopping jobs without a reason", _names(j for j in jobs if j.state is JobState.STOPPING and not j.stop), []),
        ("progress", [job.progress_ppm for job in jobs if not 0 <= job.progress_ppm <= WHOLE_PPM], []),
    ]


def _placement_checks(state: ClusterState) -> list[tuple[str, object, object]]:
    """Compare allocations: no job has two attempts, and no GPU more jobs than may share it."""
    jobs = [job for job in state.job_table.jobs.values() if not job.state.is_over]
    on_node = [job for job in jobs if job.node is not None]
    attempts = [(node.name, number, job.spec.name) for node in _nodes(state) for number, job in node.attempts.items()]
    busy = [
        (node.name, gpu, job.spec.name) for node in _nodes(state) for gpu, jobs in node.busy.items() for job in jobs
    ]
    held = [(job.node.name, gpu, job.spec.name) for job in on_node if job.node is not None for gpu in job.gpus]
    reserved = [
        (job.reserved_on.name, gpu, job.spec.name)
        for job in jobs
        if job.reserved_on is not None
        for gpu in job.reserved
    ]
    numbers = [job.attempt for job in on_node]
    return [
        (
            "attempts",
            sorted(attempts),
            sorted((job.node.name, job.attempt, job.spec.name) for job in on_node if job.node is not None),
        ),
        ("GPUs in use", sorted(busy), sorted(held + reserved)),
        (
            "GPUs with too many jobs",
            [
                (node, gpu)
                for (node, gpu), count in Counter((allocation[:2]) for allocation in held + reserved).items()
                if count > state.inventory.nodes[node].most_places
            ],
            [],
        ),
        ("attempt numbers issued twice", len(set(numbers)), len(numbers)),
        ("attempt numbers not issued yet", [number for number in numbers if number >= state.next_attempt], []),
        (
            "GPUs reserved for jobs that do not move",
            _names(job for job in jobs if job.reserved and (job.node is None or not job.stop)),
            [],
        ),
    ]


def _user_checks(state: ClusterState) -> list[tuple[str, object, object]]:
    alive = [job for job in state.job_table.jobs.values() if not job.state.is_over]
    held: Counter[str] = Counter()
    for job in alive:
        held[job.spec.user] += len(job.gpus)
    avoided = Counter(name for job in alive for name in job.spec.avoid)
    particular = [job for job in alive if job.node is not None and (job.spec.group or job.spec.avoid)]
    return [
        ("GPUs of users", state.job_table.users.held, {user: gpus for user, gpus in held.items() if gpus}),
        ("names that are avoided", state.inventory.avoided, dict(avoided)),
        ("particular jobs", sorted(state.job_table.particular), sorted(job.spec.name for job in particular)),
        (
            "gangs",
            {gang: sorted(members) for gang, members in state.job_table.gangs.items()},
            {
                gang: sorted(job.spec.name for job in alive if job.spec.gang == gang)
                for gang in sorted({job.spec.gang for job in alive if job.spec.gang})
            },
        ),
        ("silent nodes", state.silent, sum(node.is_silent for node in _nodes(state))),
    ]


def _inventory_checks(state: ClusterState) -> list[tuple[str, object, object]]:
    inventory = state.inventory
    nodes = list(_nodes(state))
    gpus = [(node, gpu) for node in nodes for gpu in range(len(node.gpus))]
    kind_counts = Counter(inventory.kind)
    kinds = [inventory.kinds[number] for number in inventory.kind]
    return [
        ("nodes by rank", [node.name for node in inventory.ranked], [node.name for node in nodes]),
        ("ranks", [node.rank for node in nodes], list(range(len(nodes)))),
        ("ranks of GPUs", list(inventory.rank), [node.rank for node, _ in gpus]),
        ("places", [node.base + gpu for node, gpu in gpus], list(range(len(inventory)))),
        ("open GPUs", list(inventory.open), [int(inventory.is_open(node, gpu)) for node, gpu in gpus]),
        ("GPUs by kind", {n: c for n, c in enumerate(inventory.counts) if c}, dict(kind_counts)),
        (
            "kinds of GPUs",
            [] if inventory.is_stale else kinds,
            [] if inventory.is_stale else [inventory.kind_at(node, gpu) for node, gpu in gpus],
        ),
        (
            "prices of kinds without GPUs",
            [n for n, p in enumerate(inventory.prices) if p and not inventory.counts[n]],
            [],
        ),
    ]


def _row_checks(state: ClusterState) -> list[tuple[str, object, object]]:
    job_table = state.job_table
    alive = [job for job in job_table.jobs.values() if not job.state.is_over]
    waiting = [job for job in alive if job.state is JobState.WAITING]
    return [
        ("rows", _names(job for job in job_table.at_row if job is not None), _names(alive)),
        ("rows of jobs", [job_table.at_row[job.row] is job for job in alive], [True] * len(alive)),
        ("rows that wait", [row for row, on in enumerate(job_table.waits) if on], sorted(job.row for job in waiting)),
        (
            "values in rows",
            [
                (job_table.after[j.row], job_table.since[j.row], job_table.priority[j.row], job_table.number[j.row])
                for j in waiting
            ],
            [(job.after, job.since, job.spec.priority, job.number) for job in waiting],
        ),
        (
            "kinds of jobs",
            [(job_table.kinds[job_table.kind[job.row]], job.kind) for job in alive],
            [(job_kind(job.spec, was_tried=job.attempt > 0), job_table.kind[job.row]) for job in alive],
        ),
        (
            "users of rows",
            [job_table.user_names[job_table.user[j.row]] for j in alive],
            [job.spec.user for job in alive],
        ),
    ]


def _nodes(state: ClusterState) -> Iterable[Node]:
    return state.inventory.nodes.values()


def _names(jobs: Iterable[Job]) -> list[str]:
    return sorted(job.spec.name for job in jobs)
