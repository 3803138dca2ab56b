"""What people ask of a cluster: its tenants, GPUs and jobs, and why a pod waits.

Everything is read from the API, with the rights of the caller.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import NOT_FOUND, ApiClient, ApiError, resource_path
from cotenant.cluster.kubernetes.controller.mapping import instant_of
from cotenant.cluster.kubernetes.controller.objects import PODS, ObjectMeta, Pod, PodCondition
from cotenant.cluster.kubernetes.gpu_node import GpuNode, GpuStatus, TenantStatus, gpu_node_path
from cotenant.errors import ConfigError
from cotenant.units.instant import Instant
from cotenant.units.text import counted, parse_size

_EVENTS_SHOWN: Final = 5
_DISRUPTED: Final = "DisruptionTarget"


class PodPhase(enum.Enum):
    """Where a pod is between its creation and its end."""

    WAITING = "waiting"
    """For a placement round."""
    STARTING = "starting"
    """For kube-scheduler, the kubelet or its image."""
    RUNNING = "running"
    ENDING = "ending"
    DONE = "done"
    FAILED = "failed"


class PodView(msgspec.Struct, frozen=True):
    """A pod that uses or wants a GPU, as `cotenant ps -A` shows it."""

    namespace: str
    name: str
    kind: str
    phase: PodPhase
    node: str = ""
    gpus: tuple[int, ...] = ()
    """Numbers of its GPUs on the node."""
    memory_bytes: int = 0
    """Device memory on each GPU; 0: unknown."""
    progress_ppm: int = 0
    rate_ppm: int = 0
    """Speed relative to that alone; 0: unknown."""
    created_ns: Instant = 0
    job: str = ""
    """The Job that created it; empty: none."""
    reason: str = ""
    """Why it waits, or what its node says about it."""


class GpuView(msgspec.Struct, frozen=True):
    """A GPU, as `cotenant top -A` shows it."""

    node: str
    index: int
    type: str
    condition: str
    memory_bytes: int
    free_bytes: int
    offer_ppm: int
    online: tuple[str, ...]
    """Names of online tenants, with namespace and name for pods."""
    load_ppm: int
    """Sum of the present loads of online tenants."""
    offline: tuple[str, ...]
    age_ns: int
    """Time since the node was observed."""


class JobView(msgspec.Struct, frozen=True):
    """A Job with pods of cotenant, as `cotenant jobs -A` shows it."""

    namespace: str
    name: str
    counts: tuple[tuple[PodPhase, int], ...]
    """Present pods by phase."""
    completions: int = 1
    succeeded: int = 0
    failed: int = 0
    created_ns: Instant = 0
    reason: str = ""
    """Why its first waiting pod waits."""


class PodExplanation(msgspec.Struct, frozen=True):
    """Why a pod waits, runs or ended."""

    pod: str
    summary: str
    causes: tuple[str, ...]
    events: tuple[tuple[str, str], ...]
    """The latest events: time and text."""


class _JobSpec(msgspec.Struct):
    completions: int = 1


class _JobStatus(msgspec.Struct):
    succeeded: int = 0
    failed: int = 0


class _Job(msgspec.Struct):
    metadata: ObjectMeta
    spec: _JobSpec = msgspec.field(default_factory=_JobSpec)
    status: _JobStatus = msgspec.field(default_factory=_JobStatus)


class _Event(msgspec.Struct, rename="camel"):
    reason: str | None = ""
    message: str | None = ""
    last_timestamp: str | None = ""
    event_time: str | None = ""

    @property
    def time(self) -> str:
        return self.last_timestamp or self.event_time or ""


class ClusterSnapshot:
    """Pods and nodes at one time."""

    def __init__(self, pods: Iterable[Pod], nodes: Iterable[GpuNode]) -> None:
        self.pods = list(pods)
        self.nodes = sorted(nodes, key=lambda node: node.metadata.name)
        self._tenants: dict[str, tuple[GpuNode, TenantStatus]] = {
            tenant.pod_uid: (node, tenant) for node in self.nodes for tenant in node.status.tenants if tenant.pod_uid
        }
        self._names = {pod.uid: pod.key for pod in self.pods}

    def pod_views(self, *, with_ended: bool = False) -> list[PodView]:
        """Return the pods, those that wait last."""
        views = [self.view_of(pod) for pod in self.pods if with_ended or not pod.is_over]
        return sorted(views, key=lambda view: (view.phase is PodPhase.WAITING, view.node, view.namespace, view.name))

    def view_of(self, pod: Pod) -> PodView:
        """Return one pod."""
        annotations = pod.metadata.annotations
        node, tenant = self._tenants.get(pod.uid, (None, None))
        gpus: tuple[int, ...] = ()
        if node is not None and tenant is not None:
            gpus = tuple(gpu.index for gpu in node.status.gpus if gpu.uuid in tenant.gpus)
        return PodView(
            pod.metadata.namespace,
            pod.metadata.name,
            annotations.get(names.ANNOTATION_KIND, ""),
            phase_of(pod),
            pod.spec.node_name,
            gpus,
            tenant.memory_bytes if tenant is not None else _size(annotations.get(names.ANNOTATION_MEMORY, "")),
            0 if tenant is None else tenant.progress_ppm,
            0 if tenant is None else tenant.rate_ppm,
            instant_of(pod.metadata.creation_timestamp),
            next((owner.name for owner in pod.metadata.owner_references if owner.kind == "Job"), ""),
            reason_of(pod) or ("" if tenant is None else tenant.reason),
        )

    def gpu_views(self, now: Instant) -> list[GpuView]:
        """Return all GPUs; `now` is Unix time."""
        return [
            self._gpu_view(node, gpu, max(0, now - instant_of(node.status.observed_at)))
            for node in self.nodes
            for gpu in node.status.gpus
        ]

    def _gpu_view(self, node: GpuNode, gpu: GpuStatus, age_ns: int) -> GpuView:
        offline = [
            self._names.get(tenant.pod_uid, tenant.name)
            for tenant in node.status.tenants
            if gpu.uuid in tenant.gpus and tenant.kind == "offline"
        ]
        return GpuView(
            node.metadata.name,
            gpu.index,
            gpu.type,
            gpu.condition,
            gpu.memory_bytes,
            gpu.free_bytes,
            gpu.offer_ppm,
            tuple(self._names.get(tenant.pod_uid, tenant.name) for tenant in gpu.online),
            sum(tenant.use.active_ppm for tenant in gpu.online),
            tuple(offline),
            age_ns,
        )

    def tenant_of(self, pod: Pod) -> tuple[GpuNode, TenantStatus] | None:
        """Return the tenant of a pod and its node; None: the pod has not joined."""
        return self._tenants.get(pod.uid)


def read_cluster(client: ApiClient, namespace: str = "") -> ClusterSnapshot:
    """Return the pods of cotenant in a namespace, or in all, and the nodes."""
    path = resource_path("v1", "pods", namespace) if namespace else PODS
    pods = client.list(path, Pod, labelSelector=names.LABEL_KIND).items
    return ClusterSnapshot(pods, client.list(gpu_node_path(), GpuNode).items)


def read_jobs(client: ApiClient, namespace: str = "") -> list[JobView]:
    """Return the Jobs that have pods of cotenant, or had some that are still there."""
    path = resource_path("v1", "pods", namespace) if namespace else PODS
    pods = client.list(path, Pod, labelSelector=names.LABEL_KIND).items
    found = client.list(resource_path("batch/v1", "jobs", namespace), _Job).items
    return job_views(pods, {(job.metadata.namespace, job.metadata.name): job for job in found})


def job_views(pods: Iterable[Pod], jobs: Mapping[tuple[str, str], Any]) -> list[JobView]:
    """Return a view of each Job of the pods, in the order of their creation."""
    by_job: dict[tuple[str, str], list[Pod]] = {}
    for pod in pods:
        for owner in pod.metadata.owner_references:
            if owner.kind == "Job":
                by_job.setdefault((pod.metadata.namespace, owner.name), []).append(pod)
    views = []
    for (namespace, name), own in by_job.items():
        job = jobs.get((namespace, name))
        phases = [phase_of(pod) for pod in own]
        waiting = next((pod for pod, phase in zip(own, phases, strict=True) if phase is PodPhase.WAITING), None)
        views.append(
            JobView(
                namespace,
                name,
                tuple((phase, phases.count(phase)) for phase in PodPhase if phase in phases),
                1 if job is None else job.spec.completions,
                0 if job is None else job.status.succeeded,
                0 if job is None else job.status.failed,
                0 if job is None else instant_of(job.metadata.creation_timestamp),
                "" if waiting is None else reason_of(waiting),
            )
        )
    return sorted(views, key=lambda view: (view.created_ns, view.namespace, view.name))


def phase_of(pod: Pod) -> PodPhase:
    """Return the phase of a pod."""
    if pod.status.phase == "Succeeded":
        return PodPhase.DONE
    if pod.status.phase == "Failed":
        return PodPhase.FAILED
    if pod.metadata.deletion_timestamp:
        return PodPhase.ENDING
    if pod.is_gated:
        return PodPhase.WAITING
    return PodPhase.RUNNING if pod.status.phase == "Running" else PodPhase.STARTING


def reason_of(pod: Pod) -> str:
    """Return what the conditions of a pod say about why it does not run; empty: nothing."""
    disrupted, placed, scheduled = (
        _condition(pod, kind) for kind in (_DISRUPTED, names.CONDITION_PLACED, "PodScheduled")
    )
    if disrupted is not None and disrupted.status == "True":
        return disrupted.message or disrupted.reason
    if pod.is_gated:
        others = [gate.name for gate in pod.spec.scheduling_gates if gate.name != names.GATE]
        if placed is not None and placed.message:
            return placed.message
        if others:
            return f"it waits for {', '.join(others)}"
        return "the controller has not examined it yet"
    if not pod.spec.node_name and placed is not None and placed.status == "False":
        return placed.message  # it has no claim, which kube-scheduler cannot explain
    if scheduled is not None and scheduled.status == "False":
        return scheduled.message or scheduled.reason
    return ""


def explain_pod(client: ApiClient, namespace: str, name: str) -> PodExplanation:
    """Return why a pod waits, runs or ended."""
    try:
        pod = client.get(resource_path("v1", "pods", namespace, name), Pod)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        remedy = f"namespace {namespace} has no such pod; see: cotenant ps -A"
        raise ConfigError("NAME", name, remedy) from None
    snapshot = ClusterSnapshot([pod], client.list(gpu_node_path(), GpuNode).items)
    events = client.list(
        resource_path("v1", "events", namespace), _Event, fieldSelector=f"involvedObject.uid={pod.uid}"
    ).items
    latest = sorted(events, key=lambda event: event.time)[-_EVENTS_SHOWN:]
    shown = tuple((event.time, f"{event.reason or ''}: {event.message or ''}") for event in latest)
    return PodExplanation(pod.key, *_explain(pod, snapshot), shown)


def _explain(pod: Pod, snapshot: ClusterSnapshot) -> tuple[str, tuple[str, ...]]:
    view = snapshot.view_of(pod)
    if names.LABEL_KIND not in pod.metadata.labels:
        if any(name in names.ANNOTATIONS for name in pod.metadata.annotations):
            why = (
                "it has annotations of cotenant, but the webhook has not translated it: no webhook answered when it "
                "was created (webhook.failurePolicy is Ignore), or its namespace is not served; create it again"
            )
        else:
            why = "it has no annotation of cotenant and no resource that the webhook translates"
        return f"{pod.key} does not use a GPU of cotenant", (why,)
    kind = f" ({view.kind})" if view.kind else ""
    causes = [view.reason] if view.reason else []
    if view.phase is PodPhase.WAITING:
        return f"{pod.key}{kind} waits for a placement round", tuple(causes)
    if view.phase is PodPhase.STARTING:
        where = f" on {view.node}" if view.node else ", and kube-scheduler has not chosen a node"
        return f"{pod.key}{kind} is starting{where}", tuple(causes)
    if view.phase in (PodPhase.DONE, PodPhase.FAILED):
        return f"{pod.key}{kind} has ended: {pod.status.phase}", tuple(causes)
    state = "is ending" if view.phase is PodPhase.ENDING else "runs"
    found = snapshot.tenant_of(pod)
    if found is None:
        causes.append("its program has not used the GPU yet, so that its node knows no tenant of it")
        return f"{pod.key}{kind} {state} on {view.node}", tuple(causes)
    causes += _tenant_causes(*found)
    gpus = ", ".join(map(str, view.gpus))
    return f"{pod.key}{kind} {state} on {view.node}, GPU {gpus}", tuple(causes)


def _tenant_causes(node: GpuNode, tenant: TenantStatus) -> list[str]:
    """Return what a node says about a tenant and its GPUs."""
    causes = [f"its node reports: {tenant.state}"] if tenant.state not in ("", "running") else []
    for gpu in node.status.gpus:
        if gpu.uuid not in tenant.gpus:
            continue
        others = [online.name for online in gpu.online if online.pod_uid != tenant.pod_uid]
        if others and tenant.kind == "offline":
            causes.append(
                f"GPU {gpu.index} is shared with {counted(len(others), 'online tenant')}: {', '.join(others)}"
            )
        if gpu.condition != "healthy":
            causes.append(f"GPU {gpu.index} is {gpu.condition}")
    if tenant.rate_ppm:
        causes.append(f"it runs at {tenant.rate_ppm / 10_000:.0f}% of its speed alone on a whole GPU")
    return causes


def _condition(pod: Pod, kind: str) -> PodCondition | None:
    return next((condition for condition in pod.status.conditions if condition.type == kind), None)


def _size(text: str) -> int:
    try:
        return parse_size(text) if text else 0
    except ConfigError:
        return 0
