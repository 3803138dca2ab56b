"""Checks before a job is started: the state on which a round planned may have changed."""

from __future__ import annotations

from cotenant.cluster.model.cluster import GpuReport, JobSpec
from cotenant.cluster.state.inventory import ClusterInventory, Node
from cotenant.cluster.state.jobs import Job, JobTable


def why_not(inventory: ClusterInventory, job_table: JobTable, job: Job, node: Node, gpus: tuple[int, ...]) -> str:
    """Return why the job cannot be started on these GPUs now; empty: it can."""
    spec = job.spec
    if len(set(gpus)) != spec.gpus:
        return f"it needs {spec.gpus} GPUs"
    if spec.pool and spec.pool not in node.pools:
        return "the job is restricted to other nodes"
    for gpu in gpus:
        if gpu >= len(node.gpus) or not inventory.open[node.base + gpu]:
            return "it is not open"
        reason = why_not_gpu(spec, node.next_report(gpu))
        if reason:
            return reason
        if gpu in node.busy and not spec.memory_bytes:
            return "it has offline jobs, and this one does not say how much memory it needs"
    if (spec.group or spec.avoid) and any(
        neighbour.node is node and clash(job, neighbour) for neighbour in job_table.particular.values()
    ):
        return "jobs there and this one must not share a node"
    return ""


def why_not_gpu(spec: JobSpec, report: GpuReport) -> str:
    """Return why the GPU itself does not suit the job; empty: it does."""
    if spec.types and report.type not in spec.types:
        return f"it is a {report.type}"
    if spec.memory_bytes > report.free_bytes:
        return "it has not enough memory free"
    if report.offer_ppm < spec.min_share_ppm:
        return "it offers too small a share"
    if spec.avoid and any(tenant.name in spec.avoid for tenant in report.online):
        return "the job avoids an online tenant there"
    return ""


def clash(job: Job, other: Job) -> bool:
    """Return whether the two jobs must not be on one node."""
    mine, theirs = job.spec, other.spec
    return job is not other and (
        (bool(theirs.group) and theirs.group in mine.avoid) or (bool(mine.group) and mine.group in theirs.avoid)
    )
