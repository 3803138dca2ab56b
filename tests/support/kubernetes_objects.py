"""Nodes, GPUs and gated pods for a real API server without kubelets: the test writes what a node would write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cotenant.cluster.kubernetes import names
from cotenant.runner.clock import rfc3339, unix_ns

GIB = 1 << 30
CRD = Path(__file__).resolve().parents[2] / "deploy" / "chart" / "crds" / "gpunodes.yaml"
DEVICE_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": names.DEVICE_CLASS},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{names.DRIVER}"'}}]},
}


def node_object(name: str) -> dict[str, Any]:
    """Return a Node with the labels and resources that the scheduler needs; it has no kubelet."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
    }


def node_status() -> dict[str, Any]:
    """Return the status of a ready node."""
    return {
        "status": {
            "capacity": {"cpu": "64", "memory": "256Gi", "pods": "500"},
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "500"},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Test",
                    "message": "by the test",
                    "lastHeartbeatTime": rfc3339(unix_ns()),
                }
            ],
        }
    }


def gpu_node_object(name: str) -> dict[str, Any]:
    """Return a GpuNode without status."""
    return {"apiVersion": "cotenant.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}}


def gpu_node_status(name: str, gpus: int, tenants: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the status of a GpuNode whose GPUs have no online work."""
    return {
        "status": {
            "epoch": 1,
            "version": "test",
            "observedAt": rfc3339(unix_ns()),
            "gpus": [
                {
                    "uuid": f"GPU-{name}-{index}",
                    "index": index,
                    "type": "V100",
                    "memoryBytes": 32 * GIB,
                    "freeBytes": 32 * GIB,
                    "offerPpm": 1_000_000,
                    "condition": "healthy",
                    "online": [],
                }
                for index in range(gpus)
            ],
            "tenants": tenants or [],
        }
    }


def resource_slice(name: str, gpus: int) -> dict[str, Any]:
    """Return the ResourceSlice that the DRA driver of a node publishes."""
    capacity = {
        "memory": ("32Gi", "32Gi", {"min": "1Mi", "step": "1Mi"}),
        "share": ("100", "100", {"min": "0", "step": "1"}),
        "offlinePlaces": ("1", "0", {"min": "0", "max": "1"}),
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-gpus"},
        "spec": {
            "driver": names.DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"gpu-{index}",
                    "attributes": {"uuid": {"string": f"GPU-{name}-{index}"}, "index": {"int": index}},
                    "allowMultipleAllocations": True,
                    "capacity": {
                        key: {"value": value, "requestPolicy": {"default": default, "validRange": valid}}
                        for key, (value, default, valid) in capacity.items()
                    },
                }
                for index in range(gpus)
            ],
        },
    }


def gated_pod(name: str, annotations: dict[str, str] | None = None, owner: str = "training") -> dict[str, Any]:
    """Return an offline pod as the webhook leaves it."""
    claim = names.claim_name(name, f"{abs(hash(name)):010x}"[:10])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {names.LABEL_CLAIM: claim, "job": owner},
            "annotations": {names.ANNOTATION_KIND: "offline", **(annotations or {})},
        },
        "spec": {
            "schedulingGates": [{"name": names.GATE}],
            "resourceClaims": [{"name": names.POD_CLAIM, "resourceClaimName": claim}],
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "resources": {"claims": [{"name": names.POD_CLAIM}], "requests": {"cpu": "100m"}},
                }
            ],
        },
    }
