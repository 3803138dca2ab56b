"""Tables and JSON of a cluster's jobs and nodes."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cotenant.cli.render.tables import table
from cotenant.cluster.daemon.commands import JobList, NodeList
from cotenant.cluster.model.cluster import JobReport, JobState
from cotenant.cluster.wire import NodeLine
from cotenant.units.instant import Instant
from cotenant.units.text import counted, round_duration, round_share

_STYLES: Final = {
    JobState.WAITING: "yellow",
    JobState.STARTING: "cyan",
    JobState.RUNNING: "green",
    JobState.STOPPING: "cyan",
    JobState.LOST: "bold red",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "dim",
}
_COLUMNS: Final = ("JOB", "USER", "STATE", "GPUS", "NODE", "DONE", "TIME", "ATTEMPTS", "REASON")


def jobs_table(job_list: JobList) -> Group:
    """Return a table of jobs, the waiting ones last with their reasons, and the number of jobs in each state."""
    order = {state: index for index, state in enumerate((JobState.RUNNING, JobState.STARTING, JobState.STOPPING))}
    ordered = sorted(job_list.jobs, key=lambda job: (job.state.is_over, order.get(job.state, len(order))))
    rows = [_job_row(job, job_list.now_ns) for job in ordered]
    counts = {state: sum(job.state is state for job in job_list.jobs) for state in JobState}
    summary = ", ".join(f"{count:,} {state.value}" for state, count in counts.items() if count)
    jobs = table("", _COLUMNS, rows)
    jobs.columns[-1].no_wrap = False  # the reason must not be cut
    return Group(jobs, Text(f"{counted(len(rows), 'job')}{': ' if summary else ''}{summary}"))


def _job_row(job: JobReport, now: Instant) -> list[str | Text]:
    location = f"{job.node} {','.join(map(str, job.gpus))}".strip()
    attempts = job.failures + job.evictions + (job.state is JobState.RUNNING or job.state is JobState.DONE)
    return [
        job.spec.name,
        job.spec.user,
        Text(job.state.value, style=_STYLES.get(job.state, "")),
        str(job.spec.gpus),
        location,
        round_share(job.progress_ppm) if job.progress_ppm else "",
        round_duration(_time_in_state(job, now)),
        str(attempts),
        job.why,
    ]


def _time_in_state(job: JobReport, now: Instant) -> int:
    """Return how long a job has waited or run; of an ended job, how long it ran."""
    if job.state.is_over:
        return max(0, job.ended - (job.started or job.submitted))
    return max(0, now - (job.started if job.state is JobState.RUNNING and job.started else job.submitted))


def jobs_json(job_list: JobList) -> dict[str, Any]:
    """Return every field of the jobs; instants are nanoseconds of the controller's clock."""
    return {"now_ns": job_list.now_ns, "jobs": [job_json(job) for job in job_list.jobs]}


def job_json(job: JobReport) -> dict[str, Any]:
    """Return one job; the controller does not disclose its environment."""
    fields = {name: getattr(job, name) for name in job.__struct_fields__ if name != "spec"}
    spec = {name: getattr(job.spec, name) for name in job.spec.__struct_fields__ if name not in ("use", "environment")}
    fields["on_gpus"] = fields.pop("gpus")  # in a spec it is the number of GPUs
    return {**spec, **fields, "state": job.state.value}


def nodes_table(node_list: NodeList) -> Table:
    """Return a table with one row per node."""
    columns = ("NODE", "STATE", "GPUS", "TYPES", "SHARED", "JOBS", "LAST REPORT")
    rows: list[list[str | Text]] = [
        [
            node.node,
            _node_state(node),
            str(node.gpus),
            ",".join(node.types),
            str(node.offering),
            str(node.running),
            f"{round_duration(max(0, node_list.now_ns - node.last_report_ns))} ago",
        ]
        for node in node_list.nodes
    ]
    return table(counted(len(rows), "node"), columns, rows)


def _node_state(node: NodeLine) -> Text:
    if node.is_silent:
        return Text("silent", style="bold red")
    state = "drained" if node.is_drained else "ready"
    return Text(
        state if node.is_connected else f"{state}, disconnected", style="yellow" if node.is_drained else "green"
    )


def nodes_json(node_list: NodeList) -> dict[str, Any]:
    """Return every field of the nodes."""
    return {"now_ns": node_list.now_ns, "nodes": [msgspec.structs.asdict(node) for node in node_list.nodes]}
