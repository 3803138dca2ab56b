"""Invariants of the cluster state, checked after every turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from cotenant.cluster.model.cluster import GpuCondition, JobState
from cotenant.cluster.state.attempts import ClusterState
from cotenant.cluster.state.inventory import Node
from cotenant.cluster.state.jobs import Job
from cotenant.cluster.state.kinds import gpu_kind, job_kind
from cotenant.errors import InvariantError
from cotenant.units.share import WHOLE_PPM

_THERE: Final = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.LOST)
"""States in which an attempt is or may be on a node."""


def check(state: ClusterState) -> None:
    """Raise `InvariantError` with all violated invariants."""
    expected = [
        *_job_checks(state),
        *_placement_checks(state),
        *_user_checks(state),
        *_inventory_checks(state),
        *_row_checks(state),
    ]
    wrong = [f"{what} are {found}, not {right}" for what, found, right in expected if found != right]
    if wrong:
        raise InvariantError(f"after turn {state.turn}: " + "; ".join(wrong))


def _job_checks(state: ClusterState) -> list[tuple[str, object, object]]:
    """Compare job states with what they imply: each job is in one state until it is forgotten after its end."""
    jobs = list(state.job_table.jobs.values())
    there = [job for job in jobs if job.state in _THERE]
    counted = Counter(job.state for job in jobs)
    return [
        ("states", dict(state.job_table.counts), {one: counted[one] for one in JobState}),
        ("jobs over", sorted(state.job_table.over), sorted(job.spec.name for job in jobs if job.state.is_over)),
        ("jobs remembered too long", len(state.job_table.over) > state.settings.remember, False),
        ("jobs on a node", _names(job for job in jobs if job.node is not None), _names(there)),
        ("jobs with GPUs", _names(job for job in jobs if job.gpus), _names(there)),
        (
            "gangs that are not whole",
            _names(job for job in there if len(set(job.gpus)) != job.spec.gpus or len(job.gpus) != job.spec.gpus),
            [],
        ),
        (
            "jobs on silent nodes",
            _names(job for job in there if job.node is not None and job.node.is_silent),
            _names(job for job in jobs if job.state is JobState.LOST),
        ),
        ("jobs known to run that are not", _names(j for j in jobs if j.is_known and j.state not in _THERE), []),
        (
            "jobs that run and are not known to",
            _names(job for job in jobs if job.state is JobState.RUNNING and (job.stop or not job.is_known)),
            [],
        ),
        ("jobs that stop without a cause", _names(j for j in jobs if j.state is JobState.STOPPING and not j.stop), []),
        ("progress", [job.progress_ppm for job in jobs if not 0 <= job.progress_ppm <= WHOLE_PPM], []),
    ]


def _placement_checks(state: ClusterState) -> list[tuple[str, object, object]]:
    """Compare allocations: no job has two attempts, and no GPU two jobs."""
    jobs = [job for job in state.job_table.jobs.values() if not job.state.is_over]
    there = [job for job in jobs if job.node is not None]
    attempts = [(node.name, number, job.spec.name) for node in _nodes(state) for number, job in node.attempts.items()]
    busy = [(node.name, gpu, job.spec.name) for node in _nodes(state) for gpu, job in node.busy.items()]
    held = [(job.node.name, gpu, job.spec.name) for job in there if job.node is not None for gpu in job.gpus]
    reserved = [
        (job.reserved_on.name, gpu, job.spec.name)
        for job in jobs
        if job.reserved_on is not None
        for gpu in job.reserved
    ]
    numbers = [job.attempt for job in there]
    return [
        (
            "attempts",
            sorted(attempts),
            sorted((job.node.name, job.attempt, job.spec.name) for job in there if job.node is not None),
        ),
        ("GPUs in use", sorted(busy), sorted(held + reserved)),
        ("GPUs with two jobs", [at for at, n in Counter((one[:2]) for one in held + reserved).items() if n > 1], []),
        ("attempts given twice", len(set(numbers)), len(numbers)),
        ("attempts not yet given", [number for number in numbers if number >= state.next_attempt], []),
        (
            "GPUs kept for who does not come",
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
        ("silent nodes", state.silent, sum(node.is_silent for node in _nodes(state))),
    ]


def _inventory_checks(state: ClusterState) -> list[tuple[str, object, object]]:
    inventory = state.inventory
    nodes = list(_nodes(state))
    places = [(node, gpu) for node in nodes for gpu in range(len(node.gpus))]
    counted = Counter(inventory.kind)
    kinds = [inventory.kinds[number] for number in inventory.kind]
    return [
        ("nodes by rank", [node.name for node in inventory.ranked], [node.name for node in nodes]),
        ("ranks", [node.rank for node in nodes], list(range(len(nodes)))),
        ("ranks of GPUs", list(inventory.rank), [node.rank for node, _ in places]),
        ("places", [node.base + gpu for node, gpu in places], list(range(len(inventory)))),
        ("open GPUs", list(inventory.open), [int(_is_open(node, gpu)) for node, gpu in places]),
        ("GPUs by kind", {n: c for n, c in enumerate(inventory.counts) if c}, dict(counted)),
        (
            "kinds of GPUs",
            [] if inventory.is_stale else kinds,
            []
            if inventory.is_stale
            else [gpu_kind(node.gpus[gpu], inventory.avoided, exact=inventory.is_small) for node, gpu in places],
        ),
        (
            "prices of what is not there",
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
            "what rows say",
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


def _is_open(node: Node, gpu: int) -> bool:
    report = node.gpus[gpu]
    is_free = gpu not in node.busy and gpu not in node.strays and not node.is_drained and not node.is_silent
    return is_free and report.condition is GpuCondition.HEALTHY and report.offer_ppm > 0


def _nodes(state: ClusterState) -> Iterable[Node]:
    return state.inventory.nodes.values()


def _names(jobs: Iterable[Job]) -> list[str]:
    return sorted(job.spec.name for job in jobs)
