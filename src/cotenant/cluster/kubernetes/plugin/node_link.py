"""The node daemon as the plugin sees it, through the operators' socket."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.cluster.model.cluster import GpuCondition
from cotenant.errors import PeerError, WorldError
from cotenant.node import wire
from cotenant.node.client.connection import Connection
from cotenant.node.directories import Directories
from cotenant.node.model.gpu import SOFT_PREFIX, UUID_PREFIX, Gpu
from cotenant.node.model.protection import GpuWatch, Health
from cotenant.node.model.tenant import TenantSpec

_TIMEOUT_S: Final = 5.0
_CONDITIONS: Final = {
    Health.INIT: GpuCondition.HEALTHY,
    Health.HEALTHY: GpuCondition.HEALTHY,
    Health.UNHEALTHY: GpuCondition.UNHEALTHY,
    Health.OVERLIMIT: GpuCondition.OVERLIMIT,
    Health.DISABLED: GpuCondition.DISABLED,
}
_PLACE: Final = re.compile(r"^(soft:)?[0-9]+ ")
_MODEL: Final = re.compile(r"\b([A-Z]{1,2}[0-9]{1,4}[A-Z]?)\b")
_ARCHITECTURES: Final = (
    (re.compile(r"^(B|GB)[0-9]"), "blackwell"),
    (re.compile(r"^(H|GH)[0-9]"), "hopper"),
    (re.compile(r"^L[0-9]"), "ada-lovelace"),
    (re.compile(r"^A[0-9]"), "ampere"),
    (re.compile(r"^T[0-9]"), "turing"),
    (re.compile(r"^V[0-9]"), "volta"),
    (re.compile(r"^P[0-9]"), "pascal"),
)
_UNKNOWN: Final = "unknown"


class GpuDevice(msgspec.Struct, frozen=True):
    """A GPU of the node, under the names that Kubernetes uses."""

    index: int
    uuid: str
    """The name by which a tenant requests it, which stays the same as long as the device is the same."""
    product: str
    memory_bytes: int
    condition: GpuCondition
    visible: str
    """The value of CUDA_VISIBLE_DEVICES that selects it."""
    is_software: bool

    @property
    def name(self) -> str:
        """Return the name of the DRA device."""
        return f"gpu-{self.index}"

    @property
    def type(self) -> str:
        """Return what jobs call such a GPU: V100 of "Tesla V100-SXM2-16GB"; all of a name without such a word."""
        found = _MODEL.search(self.product.upper() if " " not in self.product else self.product)
        if found is not None:
            return found[1]
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.product).strip("-._")[:64] or "gpu"

    @property
    def architecture(self) -> str:
        """Return the architecture of the model, as far as its name says it."""
        return next((name for pattern, name in _ARCHITECTURES if pattern.match(self.type)), _UNKNOWN)


def devices_of(gpus: Sequence[Gpu], watches: Sequence[GpuWatch]) -> list[GpuDevice]:
    """Return the GPUs of a node, with their health."""
    return [_device(index, gpu, watches[index] if index < len(watches) else None) for index, gpu in enumerate(gpus)]


def _device(index: int, gpu: Gpu, watch: GpuWatch | None) -> GpuDevice:
    called = gpu.names(index)
    return GpuDevice(
        index,
        next((name for name in called if name.startswith(UUID_PREFIX)), called[0]),
        _PLACE.sub("", gpu.name).strip()[:64] or _UNKNOWN,
        gpu.memory_bytes,
        GpuCondition.HEALTHY if watch is None else _CONDITIONS[watch.health],
        gpu.visible(index),
        any(name.startswith(SOFT_PREFIX) for name in gpu.called),
    )


class NodeLink:
    """Asks the node as an operator; every method raises `WorldError` if it does not answer or refuses."""

    def __init__(self, directories: Directories) -> None:
        """Use the node of these directories."""
        self.directories = directories

    def tenants(self) -> wire.TenantList:
        """Return the tenants and devices of the node."""
        answer = self._ask(wire.ListTenants(wire.VERSION))
        assert isinstance(answer, wire.TenantList)
        return answer

    def status(self) -> wire.NodeStatus:
        """Return the state of the daemon."""
        answer = self._ask(wire.GetStatus(wire.VERSION))
        assert isinstance(answer, wire.NodeStatus)
        return answer

    def activity(self) -> wire.Activity:
        """Return the counters of gates and ledgers."""
        answer = self._ask(wire.GetSnapshot(wire.VERSION))
        assert isinstance(answer, wire.Activity)
        return answer

    def issue_token(self, spec: TenantSpec) -> str:
        """Return the token of a pod's tenant."""
        answer = self._ask(wire.IssuePodToken(wire.VERSION, spec))
        assert isinstance(answer, wire.Token)
        return answer.token

    def revoke_token(self, token: str) -> None:
        """Let no process join with the token of a pod any more."""
        self._ask(wire.RevokePodToken(wire.VERSION, token))

    def answer_pod(self, pod: str, spec: TenantSpec | None, refusal: str = "") -> None:
        """Answer what the processes of a pod that wait may use."""
        self._ask(wire.AnswerPod(wire.VERSION, pod, spec, refusal))

    def announce(self, tenant: tuple[int, int], *, is_deleted: bool, grace_ns: int = 0) -> None:
        """Report that the pod of a tenant is being deleted, or that the node may end the tenant."""
        self._ask(wire.AnnounceDisruption(wire.VERSION, *tenant, is_deleted, grace_ns))

    def _ask(self, request: wire.Request) -> wire.Answer:
        with Connection(self.directories.operator_socket, _TIMEOUT_S) as connection:
            try:
                answer, _ = connection.ask(request)
            except PeerError as error:
                raise WorldError(f"the node does not understand the plugin: {error}; use the same version") from None
        if isinstance(answer, wire.Refusal):
            raise WorldError(f"the node refused: {answer.reject.detail}")
        return answer
