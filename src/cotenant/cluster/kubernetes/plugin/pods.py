"""The pods of the node: which of them waits for an answer or must end, and what its annotations ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import ApiClient, resource_path
from cotenant.cluster.kubernetes.plugin.node_link import NodeLink
from cotenant.cluster.kubernetes.plugin.parameters import TenantParameters, parse_parameters
from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.node.model.protection import WHY_LIMIT, clipped
from cotenant.node.model.tenant import TenantSpec
from cotenant.units.text import parse_size

_CONFIG_HASH: Final = "kubernetes.io/config.hash"
"""The annotation of a mirror pod with the uid that the kubelet uses for a static pod."""
_PARAMETERS: Final = {
    names.ANNOTATION_KIND: "kind",
    names.ANNOTATION_PRIORITY: "priority",
    names.ANNOTATION_SLO: "slo",
    names.ANNOTATION_SHARE: "share",
    names.ANNOTATION_TASK: "task",
}


class PodMeta(msgspec.Struct, rename="camel"):
    """Metadata of a pod."""

    name: str
    namespace: str
    uid: str
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None


class _Resources(msgspec.Struct):
    limits: dict[str, str | int] = {}
    requests: dict[str, str | int] = {}


class _Container(msgspec.Struct):
    name: str = ""
    resources: _Resources = msgspec.field(default_factory=_Resources)


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container] = []
    init_containers: list[_Container] = []
    termination_grace_period_seconds: int | None = None


class NodePod(msgspec.Struct):
    """The fields of a pod that the plugin reads."""

    metadata: PodMeta
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)

    @property
    def uses_places(self) -> bool:
        """Return whether a container has a place of the device plugin."""
        containers = (*self.spec.containers, *self.spec.init_containers)
        return any(names.EXTENDED_RESOURCE in (*one.resources.limits, *one.resources.requests) for one in containers)


class NodePods:
    """Finds pods of the node by their uid."""

    def __init__(self, api: ApiClient, node: str) -> None:
        """Search the pods of this Kubernetes node."""
        self._api = api
        self._node = node
        self._known: dict[str, NodePod] = {}

    def find(self, uid: str, *, is_fresh: bool = False) -> NodePod | None:
        """Return a pod; None if the node has none of this uid. A fresh one shows what changed meanwhile."""
        if is_fresh or uid not in self._known:
            path, selector = resource_path("v1", "pods"), f"spec.nodeName={self._node}"
            found = self._api.list(path, NodePod, fieldSelector=selector).items
            mirrors = {pod.metadata.annotations.get(_CONFIG_HASH, ""): pod for pod in found}
            # Any user may write that annotation: it must not stand for the pod of another.
            self._known = mirrors | {pod.metadata.uid: pod for pod in found}
        return self._known.get(uid)


def parameters_of_annotations(annotations: Mapping[str, str], where: str) -> tuple[TenantParameters, int]:
    """Return the parameters and the memory in bytes that annotations ask for; raise `ConfigError` for a wrong one."""
    mapping: dict[str, object] = {"kind": Kind.OFFLINE.value}
    mapping |= {field: annotations[name] for name, field in _PARAMETERS.items() if name in annotations}
    priority = mapping.get("priority")
    if isinstance(priority, str) and priority.isascii() and priority.isdigit() and len(priority) <= 2:
        mapping["priority"] = int(priority)
    parameters = parse_parameters(mapping, where)
    if names.ANNOTATION_MEMORY not in annotations:
        return parameters, 0
    try:
        return parameters, parse_size(annotations[names.ANNOTATION_MEMORY], field=names.ANNOTATION_MEMORY)
    except ConfigError as error:
        raise ConfigError(error.field, error.value, error.remedy, where=where) from None


def spec_of_pod(pod: NodePod, uid: str) -> TenantSpec:
    """Return what the processes of a pod of the device plugin join with; raise `ConfigError` if it may not."""
    meta = pod.metadata
    where = f"pod {meta.namespace}/{meta.name}"
    if not pod.uses_places:
        remedy = f"no container requests {names.EXTENDED_RESOURCE}; add it to the limits of one"
        raise ConfigError("resources.limits", None, remedy, where=where)
    parameters, memory_bytes = parameters_of_annotations(meta.annotations, where)
    name = f"{meta.namespace}.{meta.name}"[:54].rstrip("-.") + f"-{uid[:8]}"
    return parameters.spec(name, uid, "", memory_bytes)


class PodAnswers:
    """Answers the node what the waiting pods of the device plugin may use."""

    def __init__(self, node: NodeLink, pods: NodePods, report: Callable[[str], None]) -> None:
        """`report` logs refusals."""
        self._node = node
        self._pods = pods
        self._report = report

    def answer(self, uid: str) -> None:
        """Answer for one pod; raise `WorldError` if the API does not answer, so that the pod waits on."""
        pod = self._pods.find(uid) or self._pods.find(uid, is_fresh=True)
        if pod is None:
            self._node.answer_pod(uid, None, f"the API server does not know pod {uid} of this node")
            return
        try:
            spec = spec_of_pod(pod, uid)
        except ConfigError as error:
            self._report(f"a pod was refused: {error}")
            self._node.answer_pod(uid, None, clipped(str(error), WHY_LIMIT))
            return
        self._node.answer_pod(uid, spec)
