"""May this job be started there, at this instant? The last word before it is: what was planned on may have changed."""

from __future__ import annotations

from cotenant.domain.cluster import GpuReport, JobSpec, JobState
from cotenant.machine.cluster_floor import Floor, Node
from cotenant.machine.cluster_jobs import Job, Roster


def why_not(floor: Floor, roster: Roster, job: Job, node: Node, gpus: tuple[int, ...]) -> str:
    """What is against starting this job on these GPUs at this instant; nothing: it may be."""
    spec = job.spec
    if len(set(gpus)) != spec.gpus:
        return f"it wants {spec.gpus} GPUs"
    if job.state is JobState.WAITING and roster.users.left(spec.user) < spec.gpus:
        return f"the quota of {spec.user} is held"
    for gpu in gpus:
        if gpu >= len(node.gpus) or not floor.open[node.base + gpu]:
            return "it is not open"
        wrong = why_not_gpu(spec, node.gpus[gpu])
        if wrong:
            return wrong
    if (spec.group or spec.avoid) and any(
        other.node is node and clash(job, other) for other in roster.particular.values()
    ):
        return "jobs there and this one must not share a node"
    return ""


def why_not_gpu(spec: JobSpec, report: GpuReport) -> str:
    """What of a GPU's own is against a job there."""
    if spec.types and report.type not in spec.types:
        return f"it is a {report.type}"
    if spec.memory_bytes > report.free_bytes:
        return "it has not enough memory free"
    if report.offer_ppm < spec.least_ppm:
        return "it offers too small a share"
    if spec.avoid and any(one.name in spec.avoid for one in report.online):
        return "the job avoids an online tenant there"
    return ""


def clash(job: Job, other: Job) -> bool:
    """Whether these two must not be on one node."""
    mine, theirs = job.spec, other.spec
    return job is not other and (
        (bool(theirs.group) and theirs.group in mine.avoid) or (bool(mine.group) and mine.group in theirs.avoid)
    )
