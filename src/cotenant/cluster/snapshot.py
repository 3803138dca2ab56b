"""Snapshot of a cluster as JSON with named fields: nodes, jobs and settings."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Final, Literal

import msgspec

from cotenant.cluster.model.cluster import (
    GPUS_LIMIT,
    ONLINE_LIMIT,
    Amount,
    ClusterSettings,
    Gang,
    GangSize,
    GpuCondition,
    GpuReport,
    JobReport,
    JobSpec,
    JobState,
    Label,
    Name,
    OnlineUse,
    Part,
    Places,
    QueuePriority,
)
from cotenant.cluster.model.event import ClusterRestored, JobSnapshot, NodeSnapshot
from cotenant.errors import ConfigError
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import NEVER, Instant

VERSION: Final = 3
_POSITION: Final = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`")
_Used = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
"""GPU seconds; more than a cluster of a million GPUs accumulates in its life."""
_Times = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_Shift = Annotated[int, msgspec.Meta(ge=-3_000_000, le=3_000_000)]
"""Correction of a logarithm in millionths; the predictor corrects by no more."""
_Moves = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
_UNSETTLED: Final = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.LOST)


class _NamedFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the sections, encoded with field names."""


class _Use(_NamedFields, frozen=True):
    duty_ppm: Part = 0
    widths: tuple[tuple[Part, Part], ...] = ()
    memory_ppm: Part = 0
    kernel_ns: Amount = 0
    longest_ns: Amount = 0
    round_ns: Amount = 0
    round_device_ns: Amount = 0
    active_ppm: Part = 0


class _Online(_NamedFields, frozen=True):
    name: Name
    use: _Use = _Use()


class _Gpu(_NamedFields, frozen=True):
    type: Name
    memory_bytes: Amount
    free_bytes: Amount
    offer_ppm: Part
    condition: GpuCondition = GpuCondition.HEALTHY
    online: Annotated[tuple[_Online, ...], msgspec.Meta(max_length=ONLINE_LIMIT)] = ()
    places: Places = 1


class _Node(_NamedFields, frozen=True):
    name: Name
    gpus: Annotated[tuple[_Gpu, ...], msgspec.Meta(max_length=GPUS_LIMIT)]
    drained: bool = False
    silent: bool = False
    strays: tuple[int, ...] = ()
    """Indices of GPUs that offline work holds which was not placed by rounds."""


class _Job(_NamedFields, frozen=True):
    name: Name
    user: Name
    state: JobState = JobState.WAITING
    node: str = ""
    on: tuple[int, ...] = ()
    """Indices of its GPUs on the node."""
    waited_ns: Amount = 0
    use: _Use | None = None
    profile: Label = ""
    memory_bytes: Amount = 0
    gpus: Gang = 1
    types: tuple[Name, ...] = ()
    min_share_ppm: Part = 0
    priority: QueuePriority = 0
    avoid: tuple[Name, ...] = ()
    group: Label = ""
    gang: Label = ""
    gang_size: GangSize = 0
    pool: Label = ""


class _Settings(_NamedFields, frozen=True):
    place: str = ClusterSettings().place
    switch_ppm: Amount = ClusterSettings().switch_ppm
    slowdown_limit_ppm: Amount = ClusterSettings().slowdown_limit_ppm
    moves_limit: _Moves = ClusterSettings().moves_limit
    fair: bool = ClusterSettings().fair


class _File(_NamedFields, frozen=True):
    format: Literal["cotenant-snapshot"]
    version: int
    nodes: tuple[_Node, ...]
    jobs: tuple[_Job, ...] = ()
    pools: dict[Name, tuple[Name, ...]] = {}
    """Nodes of each pool to which jobs are restricted."""
    settings: _Settings = _Settings()
    used_gpu_seconds: dict[str, _Used] = {}
    """GPU time of each user, for fair sharing."""
    learned: tuple[tuple[str, str, _Times, _Shift], ...] = ()


def encode_snapshot(state: ClusterRestored, now: Instant) -> bytes:
    """Return the snapshot file, indented, without finished jobs."""
    jobs = [_job_of(job, now) for job in state.jobs if not job.report.state.is_over]
    chosen = state.settings
    file = _File(
        "cotenant-snapshot",
        VERSION,
        tuple(
            _Node(node.node, tuple(map(_gpu_of, node.gpus)), node.is_drained, node.is_silent, node.strays)
            for node in state.nodes
        ),
        tuple(jobs),
        dict(state.pools),
        _Settings(chosen.place, chosen.switch_ppm, chosen.slowdown_limit_ppm, chosen.moves_limit, chosen.fair),
        dict(state.used),
        state.learned,
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"


def decode_snapshot(text: bytes, where: str) -> tuple[ClusterRestored, Instant]:
    """Return the cluster and the instant of the snapshot; instant 0 is the submission of the oldest waiting job."""
    try:
        file = msgspec.json.decode(text, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        position = _POSITION.search(str(error))
        remedy = f"{_POSITION.sub('', str(error))}; docs/concepts/cluster.md shows what a snapshot looks like"
        raise ConfigError(position["path"] if position else "snapshot", where, remedy) from None
    if file.version != VERSION:
        raise ConfigError("version", file.version, f"this program reads version {VERSION}", where=where)
    _check(file, where)
    now = max((job.waited_ns for job in file.jobs), default=0)
    chosen = file.settings
    settings = ClusterSettings(
        place=chosen.place,
        switch_ppm=chosen.switch_ppm,
        fair=chosen.fair,
        slowdown_limit_ppm=chosen.slowdown_limit_ppm,
        moves_limit=chosen.moves_limit,
    )
    return ClusterRestored(
        settings,
        tuple(
            NodeSnapshot(node.name, 0, now, tuple(map(_report, node.gpus)), node.drained, node.silent, node.strays)
            for node in file.nodes
        ),
        tuple(_job_snapshot(job, number + 1, now) for number, job in enumerate(file.jobs)),
        NEVER,
        file.learned,
        tuple(sorted(file.used_gpu_seconds.items())),
        len(file.jobs) + 1,
        accounted=now,
        pools=tuple(sorted(file.pools.items())),
    ), now


def _check(file: _File, where: str) -> None:
    """Reject a cluster that is inconsistent."""
    names = {node.name for node in file.nodes}
    if len(names) < len(file.nodes):
        raise ConfigError("nodes", len(file.nodes), "two nodes have the same name; give each its own", where=where)
    for number, node in enumerate(file.nodes):
        if any(not 0 <= gpu < len(node.gpus) for gpu in node.strays):
            raise ConfigError(f"nodes[{number}].strays", node.strays, "name GPUs of the node, from 0", where=where)
    _check_jobs(file, where)


def _check_jobs(file: _File, where: str) -> None:
    gpus = {node.name: node.gpus for node in file.nodes}
    silent = {node.name for node in file.nodes if node.silent}
    names = {job.name for job in file.jobs}
    if len(names) < len(file.jobs):
        raise ConfigError("jobs", len(file.jobs), "two jobs have the same name; give each its own", where=where)
    allocated: Counter[tuple[str, int]] = Counter()
    for number, job in enumerate(file.jobs):
        field = f"jobs[{number}]"
        if job.state.is_over:
            raise ConfigError(f"{field}.state", job.state.value, "remove finished jobs from the snapshot", where=where)
        if job.state is JobState.WAITING:
            if job.node or job.on:
                raise ConfigError(f"{field}.node", job.node, "a job that waits is on no node", where=where)
            continue
        if job.node not in gpus:
            raise ConfigError(f"{field}.node", job.node, "write the name of one of the nodes", where=where)
        if len(set(job.on)) != job.gpus or any(not 0 <= gpu < len(gpus[job.node]) for gpu in job.on):
            raise ConfigError(f"{field}.on", job.on, f"name {job.gpus} GPUs of {job.node}, from 0", where=where)
        if (job.state is JobState.LOST) != (job.node in silent):
            raise ConfigError(f"{field}.state", job.state.value, "jobs of silent nodes, and only those, are lost")
        allocated.update((job.node, gpu) for gpu in job.on)
        if any(allocated[job.node, gpu] > gpus[job.node][gpu].places for gpu in job.on):
            raise ConfigError(f"{field}.on", job.on, "other jobs have all places of one of these GPUs", where=where)


def _gpu_of(report: GpuReport) -> _Gpu:
    online = tuple(_Online(tenant.name, _Use(*msgspec.structs.astuple(tenant.use))) for tenant in report.online)
    values = (report.type, report.memory_bytes, report.free_bytes, report.offer_ppm, report.condition)
    return _Gpu(*values, online, report.places)


def _report(gpu: _Gpu) -> GpuReport:
    online = tuple(OnlineUse(tenant.name, TaskUse(*msgspec.structs.astuple(tenant.use))) for tenant in gpu.online)
    values = (gpu.type, gpu.memory_bytes, gpu.free_bytes, gpu.offer_ppm, gpu.condition)
    return GpuReport(*values, online, gpu.places)


def _job_of(job: JobSnapshot, now: Instant) -> _Job:
    report = job.report
    spec = report.spec
    return _Job(
        spec.name,
        spec.user,
        report.state,
        report.node,
        report.gpus,
        max(0, now - job.since),
        None if spec.use is None else _Use(*msgspec.structs.astuple(spec.use)),
        spec.profile,
        spec.memory_bytes,
        spec.gpus,
        spec.types,
        spec.min_share_ppm,
        spec.priority,
        spec.avoid,
        spec.group,
        spec.gang,
        spec.gang_size,
        spec.pool,
    )


def _job_snapshot(job: _Job, attempt: int, now: Instant) -> JobSnapshot:
    spec = JobSpec(
        job.name,
        job.user,
        use=None if job.use is None else TaskUse(*msgspec.structs.astuple(job.use)),
        profile=job.profile,
        memory_bytes=job.memory_bytes,
        gpus=job.gpus,
        types=job.types,
        min_share_ppm=job.min_share_ppm,
        priority=job.priority,
        avoid=job.avoid,
        group=job.group,
        gang=job.gang,
        gang_size=job.gang_size,
        pool=job.pool,
    )
    since = now - job.waited_ns
    is_on_node = job.state in _UNSETTLED
    report = JobReport(spec, job.state, since, attempt if is_on_node else 0, job.node, job.on, started=since)
    is_stopping = job.state is JobState.STOPPING
    is_known = is_on_node and job.state is not JobState.STARTING
    return JobSnapshot(report, since, is_known=is_known, stop="it was ordered to stop" if is_stopping else "")
