"""Requests that the controller sends: claims, patches, evictions, conditions and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import JSON_PATCH, STRATEGIC_PATCH, ApiRequest, resource_path
from cotenant.cluster.kubernetes.controller.mapping import timestamp_of
from cotenant.cluster.kubernetes.controller.objects import (
    CLAIM_GPUS,
    CLAIM_NODE,
    HOSTNAME_LABEL,
    RESOURCE_API,
    Claim,
    Pod,
)
from cotenant.cluster.kubernetes.plugin.parameters import parse_parameters
from cotenant.cluster.kubernetes.quantity import whole_number
from cotenant.cluster.model.cluster import GANG_LIMIT
from cotenant.errors import ConfigError
from cotenant.node.model.tenant import PRIORITY_HIGHEST, PRIORITY_LOWEST
from cotenant.units.text import parse_share, parse_size

COMPONENT: Final = "cotenant-controller"
_MEBIBYTE: Final = 1 << 20
_MESSAGE_LIMIT: Final = 1000
"""The API accepts 1024 bytes in the message of an event."""
_EVENT_PREFIX: Final = 230
"""Characters of a pod's name that begin the name of an event, which has at most 253."""
_PPM_PER_PERCENT: Final = 10_000
WHOLE_PERCENT: Final = 100
TAINT_NO_OFFLINE: Final = f"{names.GROUP}/no-offline"
"""Taint of a device that admits no new offline tenants; claims for online work tolerate it."""


class PinnedGpus(NamedTuple):
    """GPUs to which a claim is pinned."""

    node: str
    uuids: tuple[str, ...]
    memory_bytes: int
    """Memory on each, for a pod that names none."""


class OnlineNeed(NamedTuple):
    """What the claim of an online pod asks for."""

    gpus: int
    memory_bytes: int
    """On each GPU; 0: all."""
    share_percent: int


def online_need(pod: Pod) -> OnlineNeed:
    """Return what the claim of an online pod asks for; raise `ConfigError` for an annotation that cannot be read."""
    share = pod.metadata.annotations.get(names.ANNOTATION_SHARE)
    percent = -(-parse_share(share, field=names.ANNOTATION_SHARE) // _PPM_PER_PERCENT) if share else WHOLE_PERCENT
    memory_mib = -(-_memory_bytes(pod) // _MEBIBYTE)
    return OnlineNeed(_gpu_count(pod), memory_mib * _MEBIBYTE, percent)


def create_claim(pod: Pod, pinned: PinnedGpus | None) -> ApiRequest:
    """Return the request that creates the claim of a pod; without `pinned`, kube-scheduler chooses the GPUs.

    Raises `ConfigError` for an annotation that cannot be read.
    """
    meta = pod.metadata
    requests = _pinned_requests(pod, pinned) if pinned is not None else _open_requests(pod)
    metadata: dict[str, Any] = {
        "name": pod.claim_name,
        "namespace": meta.namespace,
        "labels": {names.LABEL_POD_UID: meta.uid},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}],
    }
    if pinned is not None:
        metadata["annotations"] = {CLAIM_NODE: pinned.node, CLAIM_GPUS: ",".join(pinned.uuids)}
    parameters = {"driver": names.DRIVER, "parameters": claim_parameters(pod)}
    body = {
        "apiVersion": RESOURCE_API,
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": requests, "config": [{"opaque": parameters}], **_constraints(pod, pinned)}},
    }
    path = resource_path(RESOURCE_API, "resourceclaims", meta.namespace)
    return ApiRequest("POST", path, msgspec.json.encode(body))


def claim_parameters(pod: Pod) -> dict[str, Any]:
    """Return the parameters of the DRA driver from the annotations of a pod; `ConfigError` if it would refuse them."""
    annotations = pod.metadata.annotations
    parameters: dict[str, Any] = {"kind": annotations.get(names.ANNOTATION_KIND) or "online"}
    if priority := annotations.get(names.ANNOTATION_PRIORITY):
        parameters["priority"] = whole_number(priority, names.ANNOTATION_PRIORITY, PRIORITY_HIGHEST, PRIORITY_LOWEST)
    for key, annotation in (
        ("slo", names.ANNOTATION_SLO),
        ("share", names.ANNOTATION_SHARE),
        ("task", names.ANNOTATION_TASK),
    ):
        if text := annotations.get(annotation):
            parameters[key] = text
    try:
        parse_parameters(parameters)
    except ConfigError as error:
        raise ConfigError(f"{names.GROUP}/{error.field}", error.value, error.remedy) from None
    return parameters


def _pinned_requests(pod: Pod, pinned: PinnedGpus) -> list[dict[str, Any]]:
    """Return a request for each GPU, so that each is allocated exactly once."""
    memory_mib = -(-_memory_bytes(pod) // _MEBIBYTE) or pinned.memory_bytes // _MEBIBYTE
    capacity = {
        names.CAPACITY_MEMORY: f"{max(1, memory_mib)}Mi",
        names.CAPACITY_SHARE: "0",
        names.CAPACITY_OFFLINE_PLACES: "1",
    }
    return [
        _request(f"gpu-{number}", capacity, {"selectors": [{"cel": {"expression": _is_uuid(uuid)}}]})
        for number, uuid in enumerate(pinned.uuids)
    ]


def _open_requests(pod: Pod) -> list[dict[str, Any]]:
    annotations = pod.metadata.annotations
    capacity: dict[str, str] = {}
    more: dict[str, Any] = {"allocationMode": "ExactCount"}
    if memory_bytes := _memory_bytes(pod):
        capacity[names.CAPACITY_MEMORY] = f"{-(-memory_bytes // _MEBIBYTE)}Mi"
    if pod.is_offline:
        capacity |= {names.CAPACITY_SHARE: "0", names.CAPACITY_OFFLINE_PLACES: "1"}
    else:
        more["tolerations"] = [{"key": TAINT_NO_OFFLINE, "operator": "Exists"}]
        if annotations.get(names.ANNOTATION_SHARE):
            capacity[names.CAPACITY_SHARE] = str(online_need(pod).share_percent)
    return [_request("gpu", capacity, {**more, "count": _gpu_count(pod)})]


def _constraints(pod: Pod, pinned: PinnedGpus | None) -> dict[str, Any]:
    """Return the constraint that several GPUs differ.

    kube-scheduler may otherwise allocate one GPU several times to the same claim, since it admits several allocations.
    """
    if pinned is not None or _gpu_count(pod) == 1:
        return {}
    return {"constraints": [{"distinctAttribute": f"{names.DRIVER}/{names.ATTRIBUTE_UUID}"}]}


def _gpu_count(pod: Pod) -> int:
    gpus = pod.metadata.annotations.get(names.ANNOTATION_GPUS) or "1"
    return whole_number(gpus, names.ANNOTATION_GPUS, 1, GANG_LIMIT)


def _request(name: str, capacity: dict[str, str], more: dict[str, Any]) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": names.DEVICE_CLASS, **more}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    return {"name": name, "exactly": exactly}


def _is_uuid(uuid: str) -> str:
    """Return the CEL expression that selects one GPU."""
    quoted = msgspec.json.encode(uuid).decode()
    return f'device.attributes["{names.DRIVER}"].{names.ATTRIBUTE_UUID} == {quoted}'


def _memory_bytes(pod: Pod) -> int:
    memory = pod.metadata.annotations.get(names.ANNOTATION_MEMORY, "")
    return parse_size(memory, field=names.ANNOTATION_MEMORY) if memory else 0


def read_claim(pod: Pod) -> ApiRequest:
    """Return the request that reads the claim of a pod."""
    return ApiRequest("GET", resource_path(RESOURCE_API, "resourceclaims", pod.metadata.namespace, pod.claim_name))


def delete_claim(claim: Claim) -> ApiRequest:
    """Return the request that deletes exactly this claim."""
    meta = claim.metadata
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": meta.uid}}
    path = resource_path(RESOURCE_API, "resourceclaims", meta.namespace, meta.name)
    return ApiRequest("DELETE", path, msgspec.json.encode(options))


def read_pod(pod: Pod) -> ApiRequest:
    """Return the request that reads a pod."""
    return ApiRequest("GET", resource_path("v1", "pods", pod.metadata.namespace, pod.metadata.name))


def read_owner(claim: Claim) -> ApiRequest:
    """Return the request that reads the pod for which a claim was created."""
    return ApiRequest("GET", resource_path("v1", "pods", claim.metadata.namespace, claim.owner))


def release_pod(pod: Pod, hostname: str) -> ApiRequest:
    """Return the request that removes the gate and sets the node in one step.

    A node selector can be added only while the pod is gated, and never be changed. One request for both leaves no
    moment at which a gated pod has the selector of an earlier decision.
    """
    gate = next(index for index, gate in enumerate(pod.spec.scheduling_gates) if gate.name == names.GATE)
    operations: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        {"op": "test", "path": f"/spec/schedulingGates/{gate}/name", "value": names.GATE},
        {"op": "remove", "path": f"/spec/schedulingGates/{gate}"},
    ]
    if not pod.spec.node_selector:
        operations.append({"op": "add", "path": "/spec/nodeSelector", "value": {HOSTNAME_LABEL: hostname}})
    elif pod.spec.node_selector.get(HOSTNAME_LABEL) != hostname:
        label = HOSTNAME_LABEL.replace("/", "~1")
        operations.append({"op": "add", "path": f"/spec/nodeSelector/{label}", "value": hostname})
    path = resource_path("v1", "pods", pod.metadata.namespace, pod.metadata.name)
    return ApiRequest("PATCH", path, msgspec.json.encode(operations), JSON_PATCH)


def evict_pod(pod: Pod) -> ApiRequest:
    """Return the request that evicts exactly this pod."""
    meta = pod.metadata
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta.name, "namespace": meta.namespace},
        "deleteOptions": {"preconditions": {"uid": meta.uid}},
    }
    return ApiRequest("POST", resource_path("v1", "pods", meta.namespace, meta.name, "eviction"), _json(body))


def set_condition(pod: Pod, *, is_placed: bool, reason: str, message: str, unix_time_ns: int) -> ApiRequest:
    """Return the request that sets the condition that says whether the pod is placed, or why not."""
    condition = {
        "type": names.CONDITION_PLACED,
        "status": "True" if is_placed else "False",
        "reason": reason,
        "message": message[:_MESSAGE_LIMIT],
        "lastTransitionTime": timestamp_of(unix_time_ns),
    }
    body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
    path = resource_path("v1", "pods", pod.metadata.namespace, pod.metadata.name, "status")
    return ApiRequest("PATCH", path, _json(body), STRATEGIC_PATCH)


def create_event(pod: Pod, *, reason: str, message: str, unix_time_ns: int) -> ApiRequest:
    """Return the request that creates an event about a pod."""
    meta, instant = pod.metadata, timestamp_of(unix_time_ns)
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta.name[:_EVENT_PREFIX].rstrip('-.')}.{unix_time_ns:x}", "namespace": meta.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
        },
        "type": "Normal",
        "reason": reason,
        "message": message[:_MESSAGE_LIMIT],
        "firstTimestamp": instant,
        "lastTimestamp": instant,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
    }
    return ApiRequest("POST", resource_path("v1", "events", meta.namespace), _json(body))


def _json(body: object) -> bytes:
    return msgspec.json.encode(body)


def device_positions(claim: Claim, indices: dict[int, int]) -> Sequence[int]:
    """Return the positions of the GPUs that are allocated to a claim; `indices` maps device indices to positions."""
    allocation = claim.status.allocation
    results = [] if allocation is None else allocation.devices.results
    numbers = [result.device.removeprefix("gpu-") for result in results if result.driver == names.DRIVER]
    return [indices[int(text)] for text in numbers if text.isdecimal() and int(text) in indices]
