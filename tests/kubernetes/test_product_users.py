"""What users of a cluster do with pods and Jobs on the installed product, beyond creating them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.cluster.kubernetes.api import ApiClient, ApiError
from cotenant.cluster.kubernetes.api_config import load_api_config
from cotenant_lab.kubernetes.installation import CLAIMS
from tests.support.product import BUSY, JOBS, PODS, RESTRICTED, Product, pod_template, train

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

OFFLINE = {"kind": "offline", "memory": "1GiB"}
DEVICES_QUOTA = "gpu.cotenant.dev.deviceclass.resource.k8s.io/devices"


def claims(product: Product) -> list[str]:
    """Return the names of the pods that own claims."""
    return sorted(
        owner["name"]
        for claim in product.cluster.get(CLAIMS)["items"]
        for owner in claim["metadata"].get("ownerReferences", ())
    )


def phases(product: Product, job: str) -> list[str]:
    return sorted(pod["status"].get("phase", "") for pod in product.pods_of(job))


def test_an_indexed_job_is_suspended_while_one_pod_waits_and_resumed(product: Product) -> None:
    fields = {"completions": 3, "parallelism": 3, "completionMode": "Indexed"}
    product.job("indexed", train(100_000), OFFLINE, job=fields)
    product.wait("two of three run", lambda: phases(product, "indexed") == ["Pending", "Running", "Running"])
    product.cluster.request("PATCH", f"{JOBS}/indexed", {"spec": {"suspend": True}})
    product.wait("its pods are gone", lambda: not product.pods_of("indexed"))
    product.wait("its claims are gone", lambda: not claims(product))
    product.pod("other", train(1), OFFLINE)
    product.wait_phase("other", "Succeeded")
    product.cluster.request("PATCH", f"{JOBS}/indexed", {"spec": {"suspend": False}})
    product.wait("two run again", lambda: phases(product, "indexed") == ["Pending", "Running", "Running"])
    assert not product.cluster.get(f"{JOBS}/indexed")["status"].get("failed")


def test_a_quota_on_devices_counts_pods_that_run_and_is_a_reason_to_wait(product: Product) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "default"}}
    product.cluster.apply({**quota, "spec": {"hard": {DEVICES_QUOTA: "1"}}})
    try:
        path = "/api/v1/namespaces/default/resourcequotas/gpus"
        product.wait("the quota is in force", lambda: bool(product.cluster.get(path)["status"].get("hard")))
        product.pod("first", train(100_000), OFFLINE)
        product.wait_running("first")
        product.pod("second", train(1), OFFLINE)
        product.pod("service", BUSY, {"kind": "online", "memory": "1GiB", "share": "10%"})

        def reason(name: str) -> str:
            return str((product.condition(name) or {}).get("message"))

        for name in ("second", "service"):
            product.wait(f"{name} waits", lambda name=name: "exceeded quota: gpus" in reason(name))  # type: ignore[misc]
        product.delete("first")
        product.wait("one of them runs", lambda: len(claims(product)) == 1)
        product.delete("service")
        product.wait_phase("second", "Succeeded")
        product.wait("a finished pod counts no more", lambda: not claims(product))
    finally:
        product.cluster.kubectl("delete", "resourcequota", "gpus")


@pytest.fixture
def team(product: Product) -> Iterator[str]:
    product.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    account = "/api/v1/namespaces/team/serviceaccounts"
    product.wait("it has an account", lambda: bool(product.cluster.get(account)["items"]))
    yield "team"
    product.cluster.kubectl("delete", "namespace", "team", "--wait=true", "--ignore-not-found")


def test_a_namespace_is_deleted_with_pods_that_run_and_wait(product: Product, team: str) -> None:
    pods = f"/api/v1/namespaces/{team}/pods"
    for name in ("one", "two", "three"):
        made = pod_template(train(100_000), OFFLINE)
        made["metadata"]["name"] = name
        product.cluster.request("POST", pods, {"apiVersion": "v1", "kind": "Pod", **made})
    product.wait("two of three run", lambda: len(product.installation.tenants()) == 2)
    product.cluster.kubectl("delete", "namespace", team, "--wait=true")
    assert not claims(product)
    product.pod("next", train(1), OFFLINE)
    product.wait_phase("next", "Succeeded")


def test_a_user_who_may_only_create_pods_gets_a_gpu_and_cannot_change_its_claim(product: Product) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "pods"}}
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "patch", "update"]}
    subject = {"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}
    bound = {"kind": "Role", "name": "pods", "apiGroup": "rbac.authorization.k8s.io"}
    product.cluster.apply({**role, "rules": [rule]})
    product.cluster.apply({**role, "kind": "RoleBinding", "subjects": [subject], "roleRef": bound})
    config = product.cluster.kubeconfig_for("ann", ["system:authenticated"])
    client = ApiClient(load_api_config(str(config)))
    made = pod_template(BUSY, OFFLINE, container={"securityContext": RESTRICTED})
    made["metadata"]["name"] = "own"
    client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **made})
    product.wait_running("own")
    for change in (
        {"annotations": {"cotenant.dev/memory": "8GiB"}},
        {"annotations": {"cotenant.dev/priority": "0"}},
        {"labels": {"cotenant.dev/claim": "other"}},
    ):
        with pytest.raises(ApiError, match="cannot change after the pod was created"):
            client.patch(f"{PODS}/own", {"metadata": change})
    with pytest.raises(ApiError, match="forbidden"):
        client.get(CLAIMS, dict[str, Any])
    client.close()
    tenant = product.installation.tenant_of("own")
    assert tenant is not None
    assert tenant["memoryBytes"] == 1 << 30


def test_two_gpus_of_a_service_are_two_gpus(product: Product) -> None:
    product.pod("wide", BUSY, {"kind": "online", "gpus": "2", "memory": "1GiB", "share": "20%"})
    product.wait_running("wide")
    assert sorted(product.gpu_of("wide").split(",")) == ["gpu-0", "gpu-1"]
    tenant = product.installation.tenant_of("wide")
    assert tenant is not None
    assert len(set(tenant["gpus"])) == 2


def test_init_containers_and_a_sidecar_run_with_the_container_that_uses_the_gpu(product: Product) -> None:
    limits = {"resources": {"limits": {"cotenant.dev/gpu": 1}}}
    made = pod_template(train(20), OFFLINE, container=limits)
    main = made["spec"]["containers"][0]
    warm = {**main, "name": "warm", "command": train(5)}
    proxy = {"name": "proxy", "image": main["image"], "command": ["python3", "-c", "import time; time.sleep(600)"]}
    made["spec"]["initContainers"] = [warm, {**proxy, "restartPolicy": "Always"}]
    made["metadata"]["name"] = "several"
    product.cluster.request("POST", PODS, {"apiVersion": "v1", "kind": "Pod", **made})
    product.wait_phase("several", "Succeeded")
    for container in ("warm", "main"):
        assert "training begins" in product.cluster.kubectl("logs", "several", "-c", container)


def test_a_gate_of_another_controller_keeps_a_pod_from_taking_a_gpu(product: Product) -> None:
    product.pod("queued", train(1), OFFLINE, schedulingGates=[{"name": "example.org/queue"}])
    product.wait("it says why it waits", lambda: (product.condition("queued") or {}).get("reason") == "OtherGates")
    assert not claims(product)
    remove = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    product.cluster.kubectl("patch", "pod", "queued", "--type=json", "-p", json.dumps(remove))
    product.wait_phase("queued", "Succeeded")
