"""Does a cluster keep its promises? What must be true after every turn, whatever happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from cotenant.domain.cluster import GpuCondition, JobState
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.errors import InvariantError
from cotenant.machine.cluster_floor import Node
from cotenant.machine.cluster_jobs import Job
from cotenant.machine.cluster_kinds import gpu_kind, job_kind
from cotenant.machine.cluster_state import ClusterState

_THERE: Final = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.LOST)
"""States in which an attempt is on a node, or may be."""


def check(state: ClusterState) -> None:
    """Raise `InvariantError` with the story if any promise is broken."""
    expected = [*_of_jobs(state), *_of_places(state), *_of_books(state), *_of_floor(state), *_of_rows(state)]
    wrong = [f"{what} are {found}, not {right}" for what, found, right in expected if found != right]
    if wrong:
        raise InvariantError(f"after turn {state.turn}: " + "; ".join(wrong))


def _of_jobs(state: ClusterState) -> list[tuple[str, object, object]]:
    """Every job that was submitted is in one state, until it is forgotten after it is over."""
    jobs = list(state.roster.jobs.values())
    there = [job for job in jobs if job.state in _THERE]
    counted = Counter(job.state for job in jobs)
    return [
        ("states", dict(state.roster.counts), {one: counted[one] for one in JobState}),
        ("jobs over", sorted(state.roster.over), sorted(job.spec.name for job in jobs if job.state.is_over)),
        ("jobs remembered too long", len(state.roster.over) > state.settings.remember, False),
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


def _of_places(state: ClusterState) -> list[tuple[str, object, object]]:
    """Nothing is placed twice: no job has two attempts, and no GPU two jobs."""
    jobs = [job for job in state.roster.jobs.values() if not job.state.is_over]
    there = [job for job in jobs if job.node is not None]
    attempts = [(node.name, number, job.spec.name) for node in _nodes(state) for number, job in node.attempts.items()]
    busy = [(node.name, gpu, job.spec.name) for node in _nodes(state) for gpu, job in node.busy.items()]
    held = [(job.node.name, gpu, job.spec.name) for job in there if job.node is not None for gpu in job.gpus]
    kept = [(job.kept_on.name, gpu, job.spec.name) for job in jobs if job.kept_on is not None for gpu in job.kept]
    numbers = [job.attempt for job in there]
    return [
        (
            "attempts",
            sorted(attempts),
            sorted((job.node.name, job.attempt, job.spec.name) for job in there if job.node is not None),
        ),
        ("GPUs in use", sorted(busy), sorted(held + kept)),
        ("GPUs with two jobs", [at for at, n in Counter((one[:2]) for one in held + kept).items() if n > 1], []),
        ("attempts given twice", len(set(numbers)), len(numbers)),
        ("attempts not yet given", [number for number in numbers if number >= state.next_attempt], []),
        (
            "GPUs kept for who does not come",
            _names(job for job in jobs if job.kept and (job.node is None or not job.stop)),
            [],
        ),
    ]


def _of_books(state: ClusterState) -> list[tuple[str, object, object]]:
    alive = [job for job in state.roster.jobs.values() if not job.state.is_over]
    held: Counter[str] = Counter()
    for job in alive:
        held[job.spec.user] += len(job.gpus)
    avoided = Counter(name for job in alive for name in job.spec.avoid)
    particular = [job for job in alive if job.node is not None and (job.spec.group or job.spec.avoid)]
    return [
        ("GPUs of users", state.roster.users.held, {user: gpus for user, gpus in held.items() if gpus}),
        ("names that are avoided", state.floor.avoided, dict(avoided)),
        ("particular jobs", sorted(state.roster.particular), sorted(job.spec.name for job in particular)),
        ("silent nodes", state.silent, sum(node.is_silent for node in _nodes(state))),
    ]


def _of_floor(state: ClusterState) -> list[tuple[str, object, object]]:
    floor = state.floor
    nodes = list(_nodes(state))
    places = [(node, gpu) for node in nodes for gpu in range(len(node.gpus))]
    counted = Counter(floor.kind)
    kinds = [floor.kinds[number] for number in floor.kind]
    return [
        ("nodes by rank", [node.name for node in floor.ranked], [node.name for node in nodes]),
        ("ranks", [node.rank for node in nodes], list(range(len(nodes)))),
        ("ranks of GPUs", list(floor.rank), [node.rank for node, _ in places]),
        ("places", [node.base + gpu for node, gpu in places], list(range(len(floor)))),
        ("open GPUs", list(floor.open), [int(_is_open(node, gpu)) for node, gpu in places]),
        ("GPUs by kind", {n: c for n, c in enumerate(floor.counts) if c}, dict(counted)),
        (
            "kinds of GPUs",
            [] if floor.is_stale else kinds,
            []
            if floor.is_stale
            else [gpu_kind(node.gpus[gpu], floor.avoided, exact=floor.is_small) for node, gpu in places],
        ),
        ("prices of what is not there", [n for n, p in enumerate(floor.prices) if p and not floor.counts[n]], []),
    ]


def _of_rows(state: ClusterState) -> list[tuple[str, object, object]]:
    roster = state.roster
    alive = [job for job in roster.jobs.values() if not job.state.is_over]
    waiting = [job for job in alive if job.state is JobState.WAITING]
    return [
        ("rows", _names(job for job in roster.at_row if job is not None), _names(alive)),
        ("rows of jobs", [roster.at_row[job.row] is job for job in alive], [True] * len(alive)),
        ("rows that wait", [row for row, on in enumerate(roster.waits) if on], sorted(job.row for job in waiting)),
        (
            "what rows say",
            [(roster.after[j.row], roster.since[j.row], roster.priority[j.row], roster.number[j.row]) for j in waiting],
            [(job.after, job.since, job.spec.priority, job.number) for job in waiting],
        ),
        (
            "kinds of jobs",
            [(roster.kinds[roster.kind[job.row]], job.kind) for job in alive],
            [(job_kind(job.spec, was_tried=job.attempt > 0), roster.kind[job.row]) for job in alive],
        ),
        ("users of rows", [roster.user_names[roster.user[j.row]] for j in alive], [job.spec.user for job in alive]),
    ]


def _is_open(node: Node, gpu: int) -> bool:
    report = node.gpus[gpu]
    is_free = gpu not in node.busy and gpu not in node.strays and not node.is_drained and not node.is_silent
    return is_free and report.condition is GpuCondition.HEALTHY and report.offer_ppm > 0


def _nodes(state: ClusterState) -> Iterable[Node]:
    return state.floor.nodes.values()


def _names(jobs: Iterable[Job]) -> list[str]:
    return sorted(job.spec.name for job in jobs)
