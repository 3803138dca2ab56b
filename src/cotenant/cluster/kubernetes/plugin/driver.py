"""The DRA driver: prepares claims for the containers of a pod, and reverts that. Every call may be repeated."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from cotenant.cluster.kubernetes.api import ApiClient, ApiRequest, error_of, resource_path
from cotenant.cluster.kubernetes.plugin import protocol
from cotenant.cluster.kubernetes.plugin.claims import AllocatedDevice, GpuClaim, decode_claim, read_claim
from cotenant.cluster.kubernetes.plugin.edits import CdiDirectory, ContainerEdits, device_id, is_uid
from cotenant.cluster.kubernetes.plugin.grants import GrantDirectory
from cotenant.cluster.kubernetes.plugin.host_files import HostFiles
from cotenant.cluster.kubernetes.plugin.node_link import GpuDevice, NodeLink, devices_of
from cotenant.errors import ConfigError, CotenantError, WorldError
from cotenant.node.daemon.tokens import claimed_spec
from cotenant.softgpu.commands import home

RESOURCE_API: Final = "resource.k8s.io/v1"
NVIDIA_CDI_KIND: Final = "nvidia.com/gpu"
"""NVIDIA's container toolkit writes CDI specs of this kind, with the device nodes and the driver of each GPU."""
_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"


class ClaimName(NamedTuple):
    """A claim as the kubelet names it."""

    namespace: str
    uid: str
    name: str


class PreparedDevice(NamedTuple):
    """A device of a prepared claim, and what the container runtime adds for it."""

    device: AllocatedDevice
    cdi_ids: tuple[str, ...]


class ClaimPreparer:
    """Prepares claims; what it knows of a claim is in the CDI spec and the grant on disk."""

    def __init__(
        self,
        api: ApiClient,
        node: NodeLink,
        cdi: CdiDirectory,
        grants: GrantDirectory,
        files: HostFiles,
        report: Callable[[str], None],
    ) -> None:
        """`report` logs what an operator should know."""
        self._api = api
        self._node = node
        self._cdi = cdi
        self._grants = grants
        self._files = files
        self._report = report
        self._lock = threading.Lock()

    def prepare(self, name: ClaimName) -> list[PreparedDevice]:
        """Prepare a claim and return its devices; raise `CotenantError` that says why it cannot be."""
        _check_name(name)
        request = ApiRequest("GET", resource_path(RESOURCE_API, "resourceclaims", name.namespace, name.name))
        response = self._api.send(request)
        self._api.close()  # each thread of the server would keep a connection of its own
        if not response.is_success:
            raise error_of(response, request, self._api.config.server)
        claim = read_claim(decode_claim(response.body), name.uid)
        answer = self._node.tenants()
        gpus = {gpu.name: gpu for gpu in devices_of(answer.gpus, answer.devices)}
        missing = [one.device for one in claim.devices if one.device not in gpus]
        if missing:
            remedy = f"the node has {', '.join(gpus) or 'no GPU'}; delete the pod, so that it is placed anew"
            raise ConfigError("status.allocation.devices", missing, remedy, where=f"claim {name.namespace}/{name.name}")
        chosen = [gpus[one.device] for one in claim.devices]
        with self._lock:
            is_new = self._write(claim, chosen)
        if is_new:
            where = ", ".join(gpu.name for gpu in chosen)
            self._report(f"prepared claim {name.namespace}/{name.name} of pod {claim.pod_uid} on {where}")
        return [
            PreparedDevice(one, (device_id(name.uid), *_nvidia_ids(gpu)))
            for one, gpu in zip(claim.devices, chosen, strict=True)
        ]

    def _write(self, claim: GpuClaim, gpus: list[GpuDevice]) -> bool:
        """Write the grant before the spec, so that no container starts without; return whether anything changed."""
        pod = f"{claim.pod_uid}/{claim.uid}"
        token = self._node.issue_token(
            claim.parameters.spec(claim.name, pod, ",".join(gpu.uuid for gpu in gpus), claim.memory_bytes)
        )
        earlier = self._grants.token(claim.uid)
        if earlier and earlier != token:  # of an earlier pod of the same claim
            self._node.revoke_token(earlier)
        is_granted = self._grants.write(claim.uid, token, [gpu.uuid for gpu in gpus] if len(gpus) > 1 else ())
        edits = container_edits(self._files, self._node, self._grants.path(claim.uid), gpus)
        if len(gpus) > 1:
            edits.variables[_VISIBLE_DEVICES] = ",".join(gpu.visible for gpu in gpus)
        return self._cdi.write(claim.uid, edits) or is_granted

    def unprepare(self, name: ClaimName) -> None:
        """Revert the preparation of a claim; one that was never prepared is no error."""
        _check_name(name)
        with self._lock:
            token = self._grants.token(name.uid)
            is_new = bool(token) or self._cdi.has(name.uid)
            self._cdi.remove(name.uid)
            if token:
                try:
                    self._node.revoke_token(token)
                except WorldError as error:
                    # The token is useless without its pod, so the end of the pod must not wait for the node.
                    self._report(f"the token of claim {name.namespace}/{name.name} was not revoked: {error}")
            self._grants.remove(name.uid)
        if is_new:
            self._report(f"released claim {name.namespace}/{name.name}")

    def refresh_grants(self) -> None:
        """Renew the tokens of prepared claims if the node has another key than before, as when its files were lost."""
        with self._lock:
            for uid in self._grants.claims():
                token = self._grants.token(uid)
                spec = claimed_spec(token)
                if spec is None:
                    continue
                if self._grants.write(uid, self._node.issue_token(spec), self._grants.gpus(uid)):
                    self._report(f"renewed the token of claim {uid}")


def _check_name(name: ClaimName) -> None:
    if not is_uid(name.uid):
        raise ConfigError("uid", name.uid, "is not the uid of a claim")
    if not name.name or not name.namespace:
        raise ConfigError("name", f"{name.namespace}/{name.name}", "a claim has a namespace and a name")


def container_edits(
    files: HostFiles, node: NodeLink, claim_directory: Path, gpus: Iterable[GpuDevice]
) -> ContainerEdits:
    """Return what a container gets that uses these GPUs."""
    softgpu = home(node.directories) if any(gpu.is_software for gpu in gpus) else None
    if softgpu is not None:
        open_software_gpus(softgpu)
    return files.edits(node.directories.tenant_directory, claim_directory, softgpu=softgpu)


def _nvidia_ids(gpu: GpuDevice) -> tuple[str, ...]:
    return () if gpu.is_software else (f"{NVIDIA_CDI_KIND}={gpu.uuid}",)


def open_software_gpus(directory: Path) -> None:
    """Let containers of other users than root reach the software GPUs, which are created for one user."""
    with contextlib.suppress(OSError):
        directory.chmod(directory.stat().st_mode | 0o055)
        for socket in directory.glob("gpu*.sock"):
            socket.chmod(0o666)


class DraService:
    """The gRPC service that the kubelet calls."""

    def __init__(self, preparer: ClaimPreparer, report: Callable[[str], None]) -> None:
        """Answer with what the preparer does."""
        self._preparer = preparer
        self._report = report

    def prepare(self, request: Any, context: object) -> Any:
        """Prepare each claim of a request; an error concerns only its claim."""
        del context
        response = protocol.make(protocol.DRA_SERVICE, "NodePrepareResourcesResponse")
        for claim in request.claims:
            entry = response.claims[claim.uid]
            try:
                for one, ids in self._preparer.prepare(ClaimName(claim.namespace, claim.uid, claim.name)):
                    device = entry.devices.add(pool_name=one.pool, device_name=one.device, cdi_device_ids=ids)
                    device.request_names.append(one.request)
                    if one.share_id is not None:
                        device.share_id = one.share_id
            except CotenantError as error:
                del entry.devices[:]
                entry.error = self._failed("prepared", claim, error)
        return response

    def unprepare(self, request: Any, context: object) -> Any:
        """Revert the preparation of each claim of a request."""
        del context
        response = protocol.make(protocol.DRA_SERVICE, "NodeUnprepareResourcesResponse")
        for claim in request.claims:
            entry = response.claims[claim.uid]
            try:
                self._preparer.unprepare(ClaimName(claim.namespace, claim.uid, claim.name))
            except CotenantError as error:
                entry.error = self._failed("released", claim, error)
        return response

    def _failed(self, what: str, claim: Any, error: CotenantError) -> str:
        self._report(f"claim {claim.namespace}/{claim.name} was not {what}: {error}")
        return f"cotenant: {error}"

    def methods(self) -> dict[str, Callable[[Any, Any], Any]]:
        """Return the functions of the service by method."""
        return {"NodePrepareResources": self.prepare, "NodeUnprepareResources": self.unprepare}
