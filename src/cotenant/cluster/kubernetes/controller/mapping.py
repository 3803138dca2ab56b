"""Pure mapping between Kubernetes objects and the values of the cluster state machine."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.controller.objects import Pod
from cotenant.cluster.kubernetes.gpu_node import GpuStatus
from cotenant.cluster.kubernetes.quantity import NAME_LIMIT, name_list, whole_number
from cotenant.cluster.model.cluster import (
    GANG_LIMIT,
    ONLINE_LIMIT,
    PLACES_LIMIT,
    GpuCondition,
    GpuReport,
    JobSpec,
    OnlineUse,
)
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import parse_size

_GANG_SIZE_LIMIT: Final = 1000
_PRIORITY_LIMIT: Final = (1 << 31) - 1


def job_name(pod: Pod) -> str:
    """Return the name of the job that stands for a pod: namespace, name and uid."""
    uid = pod.metadata.uid
    return f"{pod.key[: NAME_LIMIT - 1 - len(uid)]}@{uid}"


def job_spec(pod: Pod, pool: str) -> JobSpec:
    """Return the job that stands for a gated pod; raise `ConfigError` for an annotation that cannot be read.

    A pod is started once: what succeeds it after an eviction or a failure is another pod, so nothing is retried.
    """
    annotations, namespace = pod.metadata.annotations, pod.metadata.namespace
    memory = annotations.get(names.ANNOTATION_MEMORY, "")
    gang = annotations.get(names.ANNOTATION_GANG, "")
    avoided = annotations.get(names.ANNOTATION_AVOID, "")
    gang_size = _count(annotations, names.ANNOTATION_GANG_SIZE, 1, _GANG_SIZE_LIMIT)
    return JobSpec(
        name=job_name(pod),
        user=namespace,
        profile=profile_of(pod),
        memory_bytes=parse_size(memory, field=names.ANNOTATION_MEMORY) if memory else 0,
        gpus=_count(annotations, names.ANNOTATION_GPUS, 1, GANG_LIMIT),
        priority=max(-_PRIORITY_LIMIT, min(pod.spec.priority, _PRIORITY_LIMIT)),
        avoid=name_list(avoided, names.ANNOTATION_AVOID) if avoided else (),
        group=annotations.get(names.ANNOTATION_GROUP, "")[:NAME_LIMIT],
        retries=0,
        gang=f"{namespace}/{gang}"[:NAME_LIMIT] if gang else "",
        gang_size=gang_size if gang else 0,
        pool=pool,
    )


def profile_of(pod: Pod) -> str:
    """Return under which name speeds of the pod are learned: the annotation, else its task, else its owner."""
    annotations = pod.metadata.annotations
    given = annotations.get(names.ANNOTATION_PROFILE) or annotations.get(names.ANNOTATION_TASK)
    if given:
        return given[:NAME_LIMIT]
    owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    return f"{pod.metadata.namespace}/{pod.metadata.name if owner is None else owner.name}"[:NAME_LIMIT]


def _count(annotations: dict[str, str], field: str, smallest: int, largest: int) -> int:
    text = annotations.get(field, "")
    return whole_number(text, field, smallest, largest) if text else smallest


def gpu_report(status: GpuStatus) -> GpuReport:
    """Return a GPU of a node as the state machine knows it; values out of range are cut."""
    memory_bytes = max(0, status.memory_bytes)
    return GpuReport(
        status.type or "unknown",
        memory_bytes,
        max(0, min(status.free_bytes, memory_bytes)),
        max(0, min(status.offer_ppm, WHOLE_PPM)),
        _CONDITIONS.get(status.condition, GpuCondition.UNHEALTHY),
        tuple(
            OnlineUse(tenant.name, tenant.use.task_use(), max(0, tenant.slo_ns))
            for tenant in status.online[:ONLINE_LIMIT]
        ),
        max(1, min(status.offline_places, PLACES_LIMIT)),
    )


_CONDITIONS: Final = {
    condition.value: condition for condition in GpuCondition if condition is not GpuCondition.UNREPORTED
}


def instant_of(timestamp: str) -> Instant:
    """Return the Unix nanoseconds of an RFC 3339 timestamp; 0 if there is none or it cannot be read."""
    try:
        return int(datetime.fromisoformat(timestamp).timestamp() * 1000) * (SECOND_NS // 1000)
    except ValueError:
        return 0


def timestamp_of(unix_time_ns: int, *, micro: bool = False) -> str:
    """Return an instant as RFC 3339 text, as Kubernetes writes Time or, with microseconds, MicroTime."""
    moment = datetime.fromtimestamp(unix_time_ns // SECOND_NS, UTC)
    fraction = f".{unix_time_ns % SECOND_NS // 1000:06d}" if micro else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"
