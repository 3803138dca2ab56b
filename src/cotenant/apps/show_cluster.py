"""How do a cluster's jobs and nodes look in a terminal? Tables for people; the JSON for machines stands beside them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cotenant.apps.cluster_ask import JobsShown, NodesShown
from cotenant.apps.show import table
from cotenant.domain.cluster import JobState, JobTold
from cotenant.domain.instant import Instant
from cotenant.format.cluster_wire import NodeLine
from cotenant.format.quantity import counted, round_duration, round_share

_STYLES: Final = {
    JobState.WAITING: "yellow",
    JobState.STARTING: "cyan",
    JobState.RUNNING: "green",
    JobState.STOPPING: "cyan",
    JobState.LOST: "bold red",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "dim",
}
_COLUMNS: Final = ("JOB", "USER", "STATE", "GPUS", "NODE", "DONE", "TIME", "TRIES", "WHY")


def jobs_table(shown: JobsShown) -> Group:
    """Those that wait last, with the reason why they do; and what there is in sum."""
    order = {state: place for place, state in enumerate((JobState.RUNNING, JobState.STARTING, JobState.STOPPING))}
    listed = sorted(shown.jobs, key=lambda job: (job.state.is_over, order.get(job.state, len(order))))
    rows = [_job_row(job, shown.now_ns) for job in listed]
    counts = {state: sum(job.state is state for job in shown.jobs) for state in JobState}
    told = ", ".join(f"{count:,} {state.value}" for state, count in counts.items() if count)
    shown_jobs = table("", _COLUMNS, rows)
    shown_jobs.columns[-1].no_wrap = False  # why it waits is the one thing that nobody can guess
    return Group(shown_jobs, Text(f"{counted(len(rows), 'job')}{': ' if told else ''}{told}"))


def _job_row(job: JobTold, now: Instant) -> list[str | Text]:
    where = f"{job.node} {','.join(map(str, job.gpus))}".strip()
    tries = job.failures + job.evictions + (job.state is JobState.RUNNING or job.state is JobState.DONE)
    return [
        job.spec.name,
        job.spec.user,
        Text(job.state.value, style=_STYLES.get(job.state, "")),
        str(job.spec.gpus),
        where,
        round_share(job.progress_ppm) if job.progress_ppm else "",
        round_duration(_since(job, now)),
        str(tries),
        job.why,
    ]


def _since(job: JobTold, now: Instant) -> int:
    """How long it has been waiting, has been running, or ran."""
    if job.state.is_over:
        return max(0, job.ended - (job.started or job.submitted))
    return max(0, now - (job.started if job.state is JobState.RUNNING and job.started else job.submitted))


def jobs_json(shown: JobsShown) -> dict[str, Any]:
    """For programs: every field, instants as nanoseconds of the brain's clock."""
    return {"now_ns": shown.now_ns, "jobs": [job_json(job) for job in shown.jobs]}


def job_json(job: JobTold) -> dict[str, Any]:
    """One job; how an environment is set, the brain tells nobody."""
    fields = {name: getattr(job, name) for name in job.__struct_fields__ if name != "spec"}
    spec = {name: getattr(job.spec, name) for name in job.spec.__struct_fields__ if name not in ("use", "environment")}
    fields["on_gpus"] = fields.pop("gpus")  # a spec's are how many it wants
    return {**spec, **fields, "state": job.state.value}


def nodes_table(shown: NodesShown) -> Table:
    """One line per node."""
    columns = ("NODE", "STATE", "GPUS", "TYPES", "OFFERING", "JOBS", "HEARD")
    rows: list[list[str | Text]] = [
        [
            node.node,
            _node_state(node),
            str(node.gpus),
            ",".join(node.types),
            str(node.offering),
            str(node.running),
            f"{round_duration(max(0, shown.now_ns - node.heard_ns))} ago",
        ]
        for node in shown.nodes
    ]
    return table(counted(len(rows), "node"), columns, rows)


def _node_state(node: NodeLine) -> Text:
    if node.is_silent:
        return Text("silent", style="bold red")
    state = "drained" if node.is_drained else "ready"
    return Text(state if node.is_connected else f"{state}, away", style="yellow" if node.is_drained else "green")


def nodes_json(shown: NodesShown) -> dict[str, Any]:
    """For programs."""
    return {"now_ns": shown.now_ns, "nodes": [msgspec.structs.asdict(node) for node in shown.nodes]}
