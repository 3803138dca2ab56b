"""ResourceSlices: the GPUs of the node as DRA devices, and whether the cluster supports what they need.

The fields are those of resource.k8s.io/v1 (k8s.io/api v0.35.4, resource/v1/types.go). The API server drops fields of
feature gates that are off, without an error: a dry run shows which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import CONFLICT, NOT_FOUND, ApiClient, ApiRequest, error_of, resource_path
from cotenant.cluster.kubernetes.plugin.claims import parse_quantity
from cotenant.cluster.kubernetes.plugin.driver import RESOURCE_API
from cotenant.cluster.kubernetes.plugin.node_link import GpuDevice
from cotenant.cluster.model.cluster import GpuCondition
from cotenant.errors import WorldError

TAINT_DISABLED: Final = f"{names.GROUP}/disabled"
"""No tenant can join the GPU."""
TAINT_NO_OFFLINE: Final = f"{names.GROUP}/no-offline"
"""The GPU admits no new offline tenants. Claims for online work tolerate it."""
_MIB: Final = 1 << 20
_PATH: Final = resource_path(RESOURCE_API, "resourceslices")
_EVERYWHERE: Final = "on kube-apiserver, kube-scheduler, kube-controller-manager and kubelet"
_GATES: Final = (
    ("allowMultipleAllocations", "DRAConsumableCapacity", "it is on by default from Kubernetes 1.36"),
    ("taints", "DRADeviceTaints", "it is on by default from Kubernetes 1.36"),
)
_PROBE: Final = GpuDevice(0, "probe", "probe", 1 << 30, GpuCondition.DISABLED, "0", is_software=True)


def device_of(gpu: GpuDevice, places: int) -> dict[str, Any]:
    """Return the DRA device of a GPU; `places` is the number of offline tenants that may share it."""
    memory = f"{gpu.memory_bytes // _MIB}Mi"
    device: dict[str, Any] = {
        "name": gpu.name,
        "allowMultipleAllocations": True,
        "attributes": {
            names.ATTRIBUTE_UUID: {"string": gpu.uuid},
            names.ATTRIBUTE_PRODUCT_NAME: {"string": gpu.product},
            names.ATTRIBUTE_ARCHITECTURE: {"string": gpu.architecture},
            names.ATTRIBUTE_STATE: {"string": gpu.condition.value},
            names.ATTRIBUTE_INDEX: {"int": gpu.index},
        },
        "capacity": {
            names.CAPACITY_MEMORY: _capacity(memory, memory, {"min": "1Mi", "step": "1Mi"}),
            names.CAPACITY_SHARE: _capacity("100", "100", {"min": "0", "step": "1"}),
            names.CAPACITY_OFFLINE_PLACES: _capacity(str(places), "0", {"min": "0", "max": str(places)}),
        },
    }
    if taints := _taints(gpu.condition):
        device["taints"] = taints
    return device


def _capacity(value: str, default: str, valid_range: Mapping[str, str]) -> dict[str, Any]:
    return {"value": value, "requestPolicy": {"default": default, "validRange": dict(valid_range)}}


def _taints(condition: GpuCondition) -> list[dict[str, str]]:
    """Return the taints of a condition; running pods stay, since the node itself ends what must end."""
    if condition is GpuCondition.HEALTHY:
        return []
    key = TAINT_DISABLED if condition is GpuCondition.DISABLED else TAINT_NO_OFFLINE
    return [{"key": key, "value": condition.value, "effect": "NoSchedule"}]


def missing_support(api: ApiClient, node: str) -> list[str]:
    """Return what the cluster lacks for the DRA driver, one sentence each; nothing is changed."""
    body = _slice(node, [device_of(_PROBE, 1)], 1, None)
    body["metadata"]["name"] = f"{node}-{names.DRIVER}-probe"
    request = ApiRequest("POST", _PATH, msgspec.json.encode(body), query={"dryRun": "All"})
    response = api.send(request)
    if response.status == NOT_FOUND:
        return [f"the API server does not serve {RESOURCE_API}: DRA needs Kubernetes 1.34 or later"]
    if not response.is_success:
        raise error_of(response, request, api.config.server)
    device = msgspec.json.decode(response.body)["spec"]["devices"][0]
    return [
        f"the API server drops {field} of devices: enable the feature gate {gate} {_EVERYWHERE} ({note})"
        for field, gate, note in _GATES
        if not device.get(field)
    ]


def _slice(node: str, devices: Sequence[Mapping[str, Any]], generation: int, owner: object) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": f"{node}-{names.DRIVER}"}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": RESOURCE_API,
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": {
            "driver": names.DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


class SlicePublisher:
    """Keeps the ResourceSlice of the node equal to its GPUs."""

    def __init__(
        self,
        api: ApiClient,
        node: str,
        places: int,
        owner: Callable[[], object],
        report: Callable[[str], None],
    ) -> None:
        """`owner` returns the reference to the Node, with which the slice is deleted."""
        self._api = api
        self._node = node
        self._places = places
        self._owner = owner
        self._report = report
        self._path = resource_path(RESOURCE_API, "resourceslices", name=f"{node}-{names.DRIVER}")

    def publish(self, gpus: Sequence[GpuDevice]) -> bool:
        """Create or update the slice where it differs; return whether it did. Raise `ApiError` if that fails."""
        devices = [device_of(gpu, self._places) for gpu in gpus if gpu.memory_bytes >= _MIB]
        request = ApiRequest("GET", self._path)
        response = self._api.send(request)
        if response.status == NOT_FOUND:
            self._api.create(_PATH, _slice(self._node, devices, 1, self._owner()))
        elif not response.is_success:
            raise error_of(response, request, self._api.config.server)
        else:
            present = msgspec.json.decode(response.body)
            if _comparable(present["spec"].get("devices") or ()) == _comparable(devices):
                return False
            generation = int(present["spec"]["pool"].get("generation", 0)) + 1
            changed = _slice(self._node, devices, generation, self._owner())
            changed["metadata"]["resourceVersion"] = present["metadata"]["resourceVersion"]
            self._replace(changed)
        self._report(f"published {', '.join(_summary(gpu) for gpu in gpus) or 'no GPU'} to the cluster")
        return True

    def _replace(self, changed: Mapping[str, Any]) -> None:
        request = ApiRequest("PUT", self._path, msgspec.json.encode(changed))
        response = self._api.send(request)
        if response.status == CONFLICT:
            raise WorldError("the ResourceSlice changed meanwhile; it is published again")
        if not response.is_success:
            raise error_of(response, request, self._api.config.server)

    def withdraw(self) -> None:
        """Delete the slice, because another plugin publishes the GPUs from now on."""
        response = self._api.send(ApiRequest("DELETE", self._path))
        if response.is_success:
            self._report("withdrew the ResourceSlice of the node")


def _summary(gpu: GpuDevice) -> str:
    return f"{gpu.name} ({gpu.type}, {gpu.condition.value})"


def _comparable(devices: Sequence[Mapping[str, Any]]) -> list[object]:
    """Return devices without what the API server adds or writes in another form."""
    return [
        (
            device.get("name"),
            bool(device.get("allowMultipleAllocations")),
            device.get("attributes"),
            {name: _numbers(capacity) for name, capacity in (device.get("capacity") or {}).items()},
            [(taint["key"], taint.get("value"), taint["effect"]) for taint in device.get("taints") or ()],
        )
        for device in devices
    ]


def _numbers(capacity: object) -> object:
    if isinstance(capacity, Mapping):
        return {key: _numbers(value) for key, value in capacity.items()}
    return parse_quantity(str(capacity), "capacity")
