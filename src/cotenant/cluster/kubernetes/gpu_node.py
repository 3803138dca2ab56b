"""The GpuNode object: the report of a node, which the kubelet plugin writes and the controller reads.

Its status has the fields of `cotenant.cluster.model.event.NodeReport` in the notation of Kubernetes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import resource_path
from cotenant.predict.usage import TaskUse

API_VERSION: Final = f"{names.GROUP}/{names.GPU_NODE_VERSION}"


class Use(msgspec.Struct, rename="camel", omit_defaults=True):
    """Use of a GPU by an online task alone, as `TaskUse`."""

    duty_ppm: int = 0
    widths: tuple[tuple[int, int], ...] = ()
    memory_ppm: int = 0
    kernel_ns: int = 0
    longest_ns: int = 0
    round_ns: int = 0
    round_device_ns: int = 0
    active_ppm: int = 0

    @classmethod
    def of(cls, use: TaskUse) -> Use:
        """Return the notation of a use."""
        return cls(*(getattr(use, name) for name in cls.__struct_fields__))

    def task_use(self) -> TaskUse:
        """Return the use that this notates."""
        return TaskUse(*(getattr(self, name) for name in self.__struct_fields__))


class OnlineTenant(msgspec.Struct, rename="camel", omit_defaults=True):
    """An online tenant of a GPU."""

    name: str
    pod_uid: str = ""
    slo_ns: int = 0
    use: Use = msgspec.field(default_factory=Use)


class GpuStatus(msgspec.Struct, rename="camel"):
    """A GPU of the node."""

    uuid: str
    index: int
    type: str
    memory_bytes: int
    free_bytes: int
    """Memory that offline work may use, including what it uses now."""
    offer_ppm: int
    """Part of the compute that offline work may use."""
    condition: str = "healthy"
    """A value of `cotenant.cluster.model.cluster.GpuCondition`."""
    online: list[OnlineTenant] = []
    offline_places: int = 1
    """Offline tenants that may share the GPU."""


class TenantStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """A tenant of the node."""

    pod_uid: str
    claim_uid: str = ""
    name: str = ""
    kind: str = ""
    """"online" or "offline"."""
    gpus: list[str] = []
    """The uuids of its GPUs."""
    memory_bytes: int = 0
    progress_ppm: int = 0
    rate_ppm: int = 0
    """Measured speed relative to the speed alone; 0: unknown."""
    state: str = ""
    reason: str = ""


class GpuNodeStatus(msgspec.Struct, rename="camel"):
    """What the node reports."""

    epoch: int = 0
    observed_at: str = ""
    version: str = ""
    gpus: list[GpuStatus] = []
    tenants: list[TenantStatus] = []
    allocation: str = ""
    """How containers get the GPUs: "claim" or "device-plugin"."""


class GpuNodeMeta(msgspec.Struct, rename="camel"):
    """Metadata of a GpuNode."""

    name: str
    uid: str = ""
    resource_version: str = ""


class GpuNode(msgspec.Struct):
    """A GpuNode; its name is that of the Node."""

    metadata: GpuNodeMeta
    status: GpuNodeStatus = msgspec.field(default_factory=GpuNodeStatus)


def gpu_node_path(name: str = "", subresource: str = "") -> str:
    """Return the path of one GpuNode, or of all."""
    return resource_path(API_VERSION, names.GPU_NODE_PLURAL, "", name, subresource)
