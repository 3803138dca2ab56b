"""The control plane without nodes: real scheduler and controllers over objects that a test writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cotenant_lab.kubernetes.api import ApiClient, ApiError
from cotenant_lab.kubernetes.cluster import TestControlPlane
from cotenant_lab.kubernetes.control_plane import CONTROLLER_MANAGER, SCHEDULER

pytestmark = pytest.mark.kubernetes

DRIVER = "gpu.example.com"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def control_plane() -> Iterator[TestControlPlane]:
    with TestControlPlane(components=[SCHEDULER, CONTROLLER_MANAGER]) as made:
        yield made
    assert made.leftovers() == []


def node() -> dict[str, Any]:
    capacity = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    conditions = [{"type": "Ready", "status": "True", "reason": "Test", "message": "written by a test"}]
    status = {"capacity": capacity, "allocatable": capacity, "conditions": conditions}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "fake"}, "status": status}


def device_objects() -> list[dict[str, Any]]:
    device = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "16Gi"}}}
    pool = {"name": "fake", "generation": 1, "resourceSliceCount": 1}
    slice_spec = {"driver": DRIVER, "nodeName": "fake", "pool": pool, "devices": [device]}
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    group = "resource.k8s.io/v1"
    return [
        {"apiVersion": group, "kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": {"selectors": selectors}},
        {"apiVersion": group, "kind": "ResourceSlice", "metadata": {"name": "fake"}, "spec": slice_spec},
    ]


def claim_and_pod(name: str, memory: str) -> list[dict[str, Any]]:
    exactly = {"deviceClassName": DRIVER, "capacity": {"requests": {"memory": memory}}}
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    pod = {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}], "containers": [container]}
    return [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": claim},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod},
    ]


def scheduled(control_plane: TestControlPlane, name: str) -> dict[str, Any]:
    conditions: list[dict[str, Any]] = control_plane.get(f"{PODS}/{name}")["status"].get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})


def test_scheduler_counts_the_memory_of_claims(control_plane: TestControlPlane) -> None:
    control_plane.request("POST", "/api/v1/nodes", node())
    control_plane.request("PATCH", "/api/v1/nodes/fake/status", {"status": node()["status"]})
    control_plane.apply(*device_objects())
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    control_plane.wait("the service account exists", lambda: bool(control_plane.get(accounts)["items"]))
    control_plane.apply(*claim_and_pod("first", "10Gi"))
    control_plane.wait("first is bound", lambda: scheduled(control_plane, "first").get("status") == "True")
    control_plane.apply(*claim_and_pod("second", "10Gi"), *claim_and_pod("third", "6Gi"))
    control_plane.wait("third is bound", lambda: scheduled(control_plane, "third").get("status") == "True")
    control_plane.wait("second waits", lambda: scheduled(control_plane, "second").get("reason") == "Unschedulable")
    control_plane.kubectl("delete", "pod", "first", "--grace-period=0", "--force")
    control_plane.kubectl("delete", "resourceclaim", "first", "--wait=false")
    control_plane.wait("second is bound", lambda: scheduled(control_plane, "second").get("status") == "True")


def test_rights_of_a_user_are_those_of_its_role(control_plane: TestControlPlane) -> None:
    user = ApiClient(control_plane.kubeconfig_for("system:serviceaccount:default:reader"))
    with pytest.raises(ApiError, match="cannot list resource") as caught:
        user.get("/api/v1/nodes")
    assert caught.value.code == 403
    control_plane.kubectl("create", "clusterrole", "reader", "--verb=list", "--resource=nodes")
    subject = "--user=system:serviceaccount:default:reader"
    control_plane.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=reader", subject)
    control_plane.wait("the role counts", lambda: may_list(user))
    with pytest.raises(ApiError, match="cannot delete resource"):
        user.request("DELETE", "/api/v1/nodes/none")


def may_list(user: ApiClient) -> bool:
    try:
        user.get("/api/v1/nodes")
    except ApiError:
        return False
    return True
