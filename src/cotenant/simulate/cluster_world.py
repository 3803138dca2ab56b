"""Nodes and jobs of a cluster scenario, generated or read from traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.cluster.model.cluster import JobSpec
from cotenant.cluster.sim.jobs import ScheduledJob
from cotenant.cluster.sim.openb import read_openb_nodes, read_openb_pods, with_services
from cotenant.cluster.sim.philly import read_philly
from cotenant.cluster.sim.physics.colocated import ColocationModel
from cotenant.cluster.sim.scenario import ClusterScenario, JobsConfig, TraceConfig
from cotenant.cluster.sim.table import TraceJob, TraceNode, read_jobs, read_nodes, window
from cotenant.errors import ConfigError
from cotenant.simulate.data_files import find_data_file
from cotenant.units.share import WHOLE_PPM

_JOB_READERS: Final[dict[str, Callable[[bytes, str], list[TraceJob]]]] = {
    "csv": read_jobs,
    "philly": read_philly,
    "openb": lambda content, where: read_openb_pods(content, where)[1],
}


class ClusterSetup(msgspec.Struct, frozen=True):
    """Nodes and jobs of a scenario."""

    nodes: list[TraceNode]
    jobs: list[ScheduledJob]
    """By submission."""
    cancels: list[tuple[int, str]]
    left_out: int
    """Jobs of a trace that no node could hold."""
    unplaceable: int
    """Services of a trace that no node could hold."""


def build_cluster(scenario: ClusterScenario, where: Path, physics: ColocationModel, data: str = "") -> ClusterSetup:
    """Return the setup; it depends only on the scenario, its seed and its files."""
    unplaceable = 0
    traced: list[TraceJob] = []
    nodes = [
        TraceNode(f"{group.name}-{number}", group.type, group.gpus, int(group.memory))
        for group in scenario.nodes
        for number in range(group.count)
    ]
    if scenario.trace is not None:
        nodes, traced, unplaceable = _traced(scenario.trace, scenario, nodes, where, data)
    if not nodes:
        raise ConfigError("nodes", 0, "a cluster has at least one node: give a count", where=str(where))
    rng = np.random.default_rng([scenario.seed, 21])
    kinds = {training.name: index for index, training in enumerate(physics.trainings)}
    known = scenario.trace.known / WHOLE_PPM if scenario.trace else 1.0
    jobs = [_job(job, physics, kinds, rng, known, where) for job in traced]
    cancels: list[tuple[int, str]] = []
    for group in scenario.jobs:
        group_jobs, group_cancels = _generate_jobs(group, scenario, physics, kinds, where)
        jobs += group_jobs
        cancels += group_cancels
    _check_names(jobs, where)
    capacities = [(node.type, node.gpus, node.memory_bytes) for node in nodes]
    capacities = list(dict.fromkeys(capacities))
    fitting = [job for job in jobs if _fits(job.spec, capacities)]
    fitting.sort(key=lambda job: job.submit_ns)
    return ClusterSetup(nodes, fitting, sorted(cancels), len(jobs) - len(fitting), unplaceable)


def _check_names(jobs: Sequence[ScheduledJob], where: Path) -> None:
    """Reject duplicate names: the controller would take the second job for a repetition of the first, or refuse it."""
    names: set[str] = set()
    for job in jobs:
        if job.spec.name in names:
            remedy = "two groups of jobs, or a group and the trace, contain a job of this name; rename the group"
            raise ConfigError("jobs", job.spec.name, remedy, where=str(where))
        names.add(job.spec.name)


def _generate_jobs(
    group: JobsConfig, scenario: ClusterScenario, physics: ColocationModel, kinds: dict[str, int], where: Path
) -> tuple[list[ScheduledJob], list[tuple[int, str]]]:
    """Generate the jobs of one group; the random numbers depend only on the seed and the group's name."""
    rng = np.random.default_rng([scenario.seed, 22, *group.name.encode()])
    over_ns = int(group.over) or int(scenario.duration)
    count = int(group.count)
    submits = np.sort(rng.integers(0, over_ns, count)).tolist()
    works = np.exp(np.log(max(int(group.work), 1)) + group.spread * rng.standard_normal(count))
    users = rng.integers(0, group.users, count).tolist()
    is_cancelled = rng.random(count) < group.cancelled / WHOLE_PPM
    cancel_delays = rng.exponential(max(int(group.work), 1), count)
    jobs = []
    cancels = []
    for number, (when, work, user) in enumerate(zip(submits, works.tolist(), users, strict=True)):
        traced = TraceJob(
            f"{group.name}-{number}",
            f"{group.name}-user-{user}",
            when,
            max(round(work), 1),
            group.gpus,
            group.profile,
            int(group.memory),
            group.types,
        )
        known = group.known / WHOLE_PPM
        job = _job(traced, physics, kinds, rng, known, where)
        jobs.append(job._replace(spec=msgspec.structs.replace(job.spec, priority=group.priority)))
        if is_cancelled[number]:
            cancels.append((when + 1 + int(cancel_delays[number]), traced.name))
    return jobs, cancels


def _job(
    job: TraceJob, physics: ColocationModel, kinds: dict[str, int], rng: Any, known: float, where: Path
) -> ScheduledJob:
    prepared, is_known = int(rng.integers(0, len(physics.trainings))), bool(rng.random() < known)
    if job.profile and job.profile not in kinds:
        raise ConfigError(
            "profile", job.profile, f"choose one of {', '.join(kinds)}, or leave it out", where=str(where)
        )
    kind = kinds[job.profile] if job.profile else prepared
    training = physics.trainings[kind]
    spec = JobSpec(
        name=job.name,
        user=job.user,
        use=training.use if is_known else None,
        profile=training.name,
        memory_bytes=job.memory_bytes or training.memory_bytes,
        gpus=job.gpus,
        types=job.types,
    )
    return ScheduledJob(job.submit_ns, spec, kind, max(job.work_ns, 1))


def _fits(spec: JobSpec, capacities: Sequence[tuple[str, int, int]]) -> bool:
    return any(
        spec.gpus <= gpus and spec.memory_bytes <= memory_bytes and (not spec.types or kind in spec.types)
        for kind, gpus, memory_bytes in capacities
    )


def _traced(
    trace: TraceConfig, scenario: ClusterScenario, nodes: list[TraceNode], where: Path, data: str
) -> tuple[list[TraceNode], list[TraceJob], int]:
    jobs: list[TraceJob] = []
    unplaceable = 0
    if trace.jobs:
        jobs = _JOB_READERS[trace.format](*_read(trace.jobs, "trace.jobs", where, data))
    if trace.nodes:
        content, path = _read(trace.nodes, "trace.nodes", where, data)
        if (trace.nodes_format or trace.format) == "openb":
            pods = trace.services or (trace.jobs if trace.format == "openb" else "")
            services = read_openb_pods(*_read(pods, "trace.services", where, data))[0] if pods else []
            nodes, unplaceable = with_services(read_openb_nodes(content, path), services)
        else:
            nodes = read_nodes(content, path)
    selected = window(jobs, int(trace.begin), int(scenario.duration), int(trace.limit), trace.compress)
    return nodes, selected, unplaceable


def _read(name: str, field: str, where: Path, data: str) -> tuple[bytes, str]:
    path = find_data_file(name, field, where, data)
    try:
        return path.read_bytes(), str(path)
    except OSError as error:
        raise ConfigError(field, name, f"cannot be read: {error.strerror}", where=str(where)) from None
