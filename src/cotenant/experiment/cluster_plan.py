"""Who is in a cluster's world? The nodes, jobs and chances of a scenario, made or read from traces."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.domain.cluster import JobSpec
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.errors import ConfigError
from cotenant.format.cluster_csv import TraceJob, TraceNode, read_jobs, read_nodes, window
from cotenant.format.measured.openb import read_openb_nodes, read_openb_pods, with_services
from cotenant.format.measured.philly import read_philly
from cotenant.format.scenario_cluster import ClusterScenario, JobsConfig, TraceConfig
from cotenant.sim.cluster_jobs import Brought
from cotenant.sim.physics.colocated import Colocated

_DATA: Final = "COTENANT_DATA"
_JOB_READERS: Final[dict[str, Callable[[bytes, str], list[TraceJob]]]] = {
    "csv": read_jobs,
    "philly": read_philly,
    "openb": lambda content, where: read_openb_pods(content, where)[1],
}


class Cast(msgspec.Struct, frozen=True):
    """All that a scenario brings."""

    nodes: list[TraceNode]
    jobs: list[Brought]
    """In order."""
    cancels: list[tuple[int, str]]
    left_out: int
    """Jobs of a trace that no node could ever hold."""
    homeless: int
    """Services of a trace for which there was no room."""


def cast_of(scenario: ClusterScenario, where: Path, physics: Colocated) -> Cast:
    """The same for the same scenario, seed and files."""
    homeless = 0
    traced: list[TraceJob] = []
    nodes = [
        TraceNode(f"{sort.name}-{number}", sort.type, sort.gpus, int(sort.memory))
        for sort in scenario.nodes
        for number in range(sort.count)
    ]
    if scenario.trace is not None:
        nodes, traced, homeless = _traced(scenario.trace, scenario, nodes, where)
    if not nodes:
        raise ConfigError("nodes", 0, "a cluster has at least one node: give a count", where=str(where))
    chance = np.random.default_rng([scenario.seed, 21])
    kinds = {training.name: place for place, training in enumerate(physics.trainings)}
    known = scenario.trace.known / WHOLE_PPM if scenario.trace else 1.0
    jobs = [_job(job, physics, kinds, chance, known, where) for job in traced]
    cancels: list[tuple[int, str]] = []
    for sort in scenario.jobs:
        made, gone = _made(sort, scenario, physics, kinds, where)
        jobs += made
        cancels += gone
    _check_names(jobs, where)
    rooms = [(node.type, node.gpus, node.memory_bytes) for node in nodes]
    rooms = list(dict.fromkeys(rooms))
    fitting = [job for job in jobs if _fits(job.spec, rooms)]
    fitting.sort(key=lambda job: job.when_ns)
    return Cast(nodes, fitting, sorted(cancels), len(jobs) - len(fitting), homeless)


def _check_names(jobs: Sequence[Brought], where: Path) -> None:
    """A cluster takes the second job of a name for the first one again, or refuses it: neither is what was meant."""
    seen: set[str] = set()
    for job in jobs:
        if job.spec.name in seen:
            remedy = "a sort of jobs and the trace both bring a job of this name; give the sort another name"
            raise ConfigError("jobs", job.spec.name, remedy, where=str(where))
        seen.add(job.spec.name)


def _made(
    sort: JobsConfig, scenario: ClusterScenario, physics: Colocated, kinds: dict[str, int], where: Path
) -> tuple[list[Brought], list[tuple[int, str]]]:
    """The jobs of one sort; its chances depend on the seed and on its name alone."""
    chance = np.random.default_rng([scenario.seed, 22, *sort.name.encode()])
    over_ns = int(sort.over) or int(scenario.duration)
    count = int(sort.count)
    whens = np.sort(chance.integers(0, over_ns, count)).tolist()
    works = np.exp(np.log(max(int(sort.work), 1)) + sort.spread * chance.standard_normal(count))
    users = chance.integers(0, sort.users, count).tolist()
    leaves = chance.random(count) < sort.cancelled / WHOLE_PPM
    stays = chance.exponential(max(int(sort.work), 1), count)
    jobs = []
    cancels = []
    for number, (when, work, user) in enumerate(zip(whens, works.tolist(), users, strict=True)):
        traced = TraceJob(
            f"{sort.name}-{number}",
            f"{sort.name}-user-{user}",
            when,
            max(round(work), 1),
            sort.gpus,
            sort.profile,
            int(sort.memory),
            sort.types,
        )
        known = sort.known / WHOLE_PPM
        made = _job(traced, physics, kinds, chance, known, where)
        jobs.append(made._replace(spec=msgspec.structs.replace(made.spec, priority=sort.priority)))
        if leaves[number]:
            cancels.append((when + 1 + int(stays[number]), traced.name))
    return jobs, cancels


def _job(job: TraceJob, physics: Colocated, kinds: dict[str, int], chance: Any, known: float, where: Path) -> Brought:
    drawn, told = int(chance.integers(0, len(physics.trainings))), bool(chance.random() < known)
    if job.profile and job.profile not in kinds:
        raise ConfigError(
            "profile", job.profile, f"choose one of {', '.join(kinds)}, or leave it out", where=str(where)
        )
    kind = kinds[job.profile] if job.profile else drawn
    training = physics.trainings[kind]
    spec = JobSpec(
        name=job.name,
        user=job.user,
        work_ns=job.work_ns if told else 0,
        use=training.use if told else None,
        profile=training.name,
        memory_bytes=job.memory_bytes or training.memory_bytes,
        gpus=job.gpus,
        types=job.types,
    )
    return Brought(job.submit_ns, spec, kind, max(job.work_ns, 1))


def _fits(spec: JobSpec, rooms: Sequence[tuple[str, int, int]]) -> bool:
    return any(
        spec.gpus <= gpus and spec.memory_bytes <= memory_bytes and (not spec.types or kind in spec.types)
        for kind, gpus, memory_bytes in rooms
    )


def _traced(
    trace: TraceConfig, scenario: ClusterScenario, nodes: list[TraceNode], where: Path
) -> tuple[list[TraceNode], list[TraceJob], int]:
    jobs: list[TraceJob] = []
    homeless = 0
    if trace.jobs:
        jobs = _JOB_READERS[trace.format](*_read(trace.jobs, "trace.jobs", where))
    if trace.nodes:
        content, found = _read(trace.nodes, "trace.nodes", where)
        if (trace.nodes_format or trace.format) == "openb":
            pods = trace.services or (trace.jobs if trace.format == "openb" else "")
            services = read_openb_pods(*_read(pods, "trace.services", where))[0] if pods else []
            nodes, homeless = with_services(read_openb_nodes(content, found), services)
        else:
            nodes = read_nodes(content, found)
    kept = window(jobs, int(trace.begin), int(scenario.duration), int(trace.limit), trace.compress)
    return nodes, kept, homeless


def _read(name: str, field: str, where: Path) -> tuple[bytes, str]:
    """A file beside the scenario, or of the measurements."""
    for path in (where.parent / name, Path(os.environ.get(_DATA, "") or "../shared/data") / name):
        if path.is_file():
            try:
                return path.read_bytes(), str(path)
            except OSError as error:
                raise ConfigError(field, name, f"cannot be read: {error.strerror}", where=str(where)) from None
    remedy = f"there is no such file, neither beside the scenario nor in {_DATA}; name one that is there"
    raise ConfigError(field, name, remedy, where=str(where))
