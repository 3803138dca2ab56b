"""The fields of Kubernetes objects that the controller reads; everything else in their JSON is skipped.

Field names: https://kubernetes.io/docs/reference/kubernetes-api/ (core/v1 Pod and Node, resource.k8s.io/v1
ResourceClaim, coordination.k8s.io/v1 Lease).
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import resource_path

HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
CLAIM_NODE: Final = f"{names.GROUP}/node"
"""Annotation of a pinned claim: the node of its GPUs."""
CLAIM_GPUS: Final = f"{names.GROUP}/gpu-uuids"
"""Annotation of a pinned claim: the uuids of its GPUs, with commas."""
_NO_GPU: Final = "cannot allocate all claims"
"""What kube-scheduler says of a node whose devices do not have the capacity of a claim."""
RESOURCE_API: Final = "resource.k8s.io/v1"


class OwnerReference(msgspec.Struct):
    """Owner of an object."""

    kind: str
    name: str
    uid: str
    controller: bool = False


class ObjectMeta(msgspec.Struct, rename="camel"):
    """Metadata of an object."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []


class SchedulingGate(msgspec.Struct):
    """A gate that keeps a pod from being scheduled."""

    name: str


class Toleration(msgspec.Struct, frozen=True):
    """A taint that a pod tolerates."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class SelectorRequirement(msgspec.Struct, frozen=True):
    """A condition on a label or field of a node."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(msgspec.Struct, rename="camel", frozen=True):
    """Conditions that must all hold."""

    match_expressions: tuple[SelectorRequirement, ...] = ()
    match_fields: tuple[SelectorRequirement, ...] = ()


class NodeSelector(msgspec.Struct, frozen=True):
    """Alternatives of which one must hold."""

    alternatives: tuple[NodeSelectorTerm, ...] = msgspec.field(default=(), name="nodeSelectorTerms")


class NodeAffinity(msgspec.Struct, frozen=True):
    """Affinity of a pod to nodes."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(msgspec.Struct, rename="camel", frozen=True):
    """Affinity of a pod."""

    node_affinity: NodeAffinity | None = None


class PodSpec(msgspec.Struct, rename="camel"):
    """Specification of a pod."""

    node_name: str = ""
    scheduling_gates: list[SchedulingGate] = []
    node_selector: dict[str, str] = {}
    priority: int = 0
    tolerations: tuple[Toleration, ...] = ()
    affinity: Affinity | None = None


class PodCondition(msgspec.Struct):
    """Condition of a pod."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(msgspec.Struct):
    """Status of a pod."""

    phase: str = "Pending"
    conditions: list[PodCondition] = []


class Pod(msgspec.Struct):
    """A pod."""

    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def is_gated(self) -> bool:
        """Return whether the pod waits for a placement round."""
        return any(gate.name == names.GATE for gate in self.spec.scheduling_gates)

    @property
    def other_gates(self) -> tuple[str, ...]:
        """Return the gates that other controllers remove."""
        return tuple(gate.name for gate in self.spec.scheduling_gates if gate.name != names.GATE)

    @property
    def is_over(self) -> bool:
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def never_starts(self) -> bool:
        """Return whether the pod is being deleted before it got a node; finalizers may keep it for long."""
        return bool(self.metadata.deletion_timestamp) and not self.spec.node_name

    @property
    def is_said_to_wait(self) -> bool:
        """Return whether the condition of the controller says that the pod waits."""
        return any(each.type == names.CONDITION_PLACED and each.status == "False" for each in self.status.conditions)

    @property
    def is_offline(self) -> bool:
        return self.metadata.annotations.get(names.ANNOTATION_KIND) == "offline"

    @property
    def is_refused(self) -> bool:
        """Return whether kube-scheduler found no node for the pod."""
        return self._refusal is not None

    @property
    def is_refused_by_gpu(self) -> bool:
        """Return whether kube-scheduler found no node because the GPU of the pod's claim has been taken meanwhile."""
        return self._refusal is not None and _NO_GPU in self._refusal.message

    @property
    def _refusal(self) -> PodCondition | None:
        for condition in () if self.spec.node_name else self.status.conditions:
            if (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable"):
                return condition
        return None

    @property
    def claim_name(self) -> str:
        """Return the name that the webhook gave to the claim of the pod; empty: none."""
        return self.metadata.labels.get(names.LABEL_CLAIM, "")

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


class DeviceResult(msgspec.Struct, rename="camel"):
    """A device that was allocated to a claim."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    consumed_capacity: dict[str, str] = {}
    """What the claim holds of the capacity of the device, as quantities."""


class DeviceAllocation(msgspec.Struct):
    """Devices of an allocation."""

    results: list[DeviceResult] = []


class ClaimAllocation(msgspec.Struct):
    """ClaimAllocation of a claim."""

    devices: DeviceAllocation = msgspec.field(default_factory=DeviceAllocation)


class ClaimStatus(msgspec.Struct):
    """Status of a claim."""

    allocation: ClaimAllocation | None = None


class Claim(msgspec.Struct):
    """A ResourceClaim with the label of those that the controller creates."""

    metadata: ObjectMeta
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)

    @property
    def key(self) -> tuple[str, str]:
        """Return namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def pod_uid(self) -> str:
        return self.metadata.labels.get(names.LABEL_POD_UID, "")

    @property
    def owner(self) -> str:
        """Return the name of the pod for which the controller created the claim; empty: a user wrote the claim."""
        owners = (one.name for one in self.metadata.owner_references if (one.kind, one.uid) == ("Pod", self.pod_uid))
        return next(owners, "")

    @property
    def node(self) -> str:
        """Return the node to which the claim is pinned; empty: none."""
        return self.metadata.annotations.get(CLAIM_NODE, "")

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """Return the GPUs to which the claim is pinned."""
        text = self.metadata.annotations.get(CLAIM_GPUS, "")
        return tuple(text.split(",")) if text else ()


class Taint(msgspec.Struct):
    """A taint of a node."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(msgspec.Struct):
    """Specification of a node."""

    unschedulable: bool = False
    taints: list[Taint] = []


class NodeMeta(msgspec.Struct):
    """Metadata of a node; its long annotations are skipped."""

    name: str
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    labels: dict[str, str] = {}


class KubeNode(msgspec.Struct):
    """A node of Kubernetes."""

    metadata: NodeMeta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)

    @property
    def hostname(self) -> str:
        return self.metadata.labels.get(HOSTNAME_LABEL, self.metadata.name)


PODS: Final = resource_path("v1", "pods")
NODES: Final = resource_path("v1", "nodes")
CLAIMS: Final = resource_path(RESOURCE_API, "resourceclaims")
POD_SELECTOR: Final = {
    "labelSelector": names.LABEL_CLAIM,
    "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed",
}
"""Pods that the webhook changed and that have not ended; the watch reports the end of one as a deletion."""
CLAIM_SELECTOR: Final = {"labelSelector": names.LABEL_POD_UID}
