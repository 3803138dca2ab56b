"""Text form of the turns of the cluster state machine for golden logs: instant, event and actions on one line."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.cluster.model.cluster import AttemptReport, JobSpec
from cotenant.cluster.model.event import (
    ClusterAction,
    ClusterEvent,
    ClusterRestored,
    ClusterStarted,
    JobCancelled,
    JobSubmitted,
    NodeDrained,
    NodeGone,
    NodeReport,
    PoolSet,
    StartJob,
    StopJob,
)
from cotenant.node.decision_log import printable
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.text import counted, format_duration, format_share, format_size


def describe_cluster_turn(now: Instant, event: ClusterEvent, actions: Sequence[ClusterAction]) -> str:
    """Return a turn as one line."""
    effects = "; ".join(describe_cluster_action(action) for action in actions) or "nothing to do"
    return printable(f"{now // SECOND_NS}.{now % SECOND_NS:09d} {describe_cluster_event(event)} -> {effects}")


def describe_cluster_event(event: ClusterEvent) -> str:
    """Return an event as text."""
    match event:
        case ClusterStarted(settings=settings):
            return f"cluster started: {settings.place}, a round every {format_duration(settings.round_ns)}"
        case ClusterRestored(nodes=nodes, jobs=jobs):
            return f"cluster restored with {counted(len(nodes), 'node')}, {counted(len(jobs), 'job')}"
        case NodeReport(node=node, epoch=epoch, gpus=gpus, attempts=attempts):
            offers = " ".join(_gpu(gpu.offer_ppm, gpu.condition.value) for gpu in gpus)
            running = ", ".join(_attempt(report) for report in attempts) or "nothing runs"
            return f"{node}/{epoch} offers {offers or 'no GPU'}: {running}"
        case _:
            return _describe_request(event)


def _describe_request(event: ClusterEvent) -> str:
    """Return a request of a user or operator, or the departure of a node, as text."""
    match event:
        case NodeGone(node=node):
            return f"{node} leaves"
        case NodeDrained(node=node, on=on):
            return f"{node} is {'drained' if on else 'no longer drained'}"
        case JobSubmitted(spec=spec):
            return f"{spec.user} submits {spec.name}: {_spec(spec)}"
        case JobCancelled(job=job):
            return f"{job} is wanted no more"
        case PoolSet(pool=pool, nodes=nodes):
            return f"pool {pool} has {counted(len(nodes), 'node')}"
        case _:
            return "wakes"


def describe_cluster_action(action: ClusterAction) -> str:
    """Return an action as text."""
    match action:
        case StartJob(node=node, attempt=attempt, gpus=gpus, share_ppm=share_ppm, progress_ppm=progress_ppm):
            progress = f" from {format_share(progress_ppm)}" if progress_ppm else ""
            gpu_list = ",".join(str(gpu) for gpu in gpus)
            return f"start {attempt.job}#{attempt.number} on {node}/{gpu_list} with {format_share(share_ppm)}{progress}"
        case StopJob(node=node, attempt=attempt, why=why):
            return f"stop {attempt.job}#{attempt.number} on {node}: {why}"


def _gpu(offer_ppm: int, condition: str) -> str:
    return format_share(offer_ppm) if condition == "healthy" else condition


def _attempt(report: AttemptReport) -> str:
    state = "at " + format_share(report.progress_ppm) if report.end is None else report.end.value
    return f"{report.attempt.job}#{report.attempt.number} {state}"


def _spec(spec: JobSpec) -> str:
    words = [counted(spec.gpus, "GPU")]
    if spec.memory_bytes:
        words.append(f"memory {format_size(spec.memory_bytes)}")
    if spec.types:
        words.append(f"of {' or '.join(spec.types)}")
    if spec.min_share_ppm:
        words.append(f"at least {format_share(spec.min_share_ppm)}")
    if spec.priority:
        words.append(f"priority {spec.priority}")
    if spec.avoid:
        words.append(f"without {', '.join(spec.avoid)}")
    return " ".join(words)
