"""The kubelet plugin on a real cluster: claims, restarts, evictions and the device plugin, with software GPUs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant_lab.kubernetes.cluster import TestCluster
from cotenant_lab.kubernetes.images import PAUSE_IMAGE, PYTHON_IMAGE

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]

PODS = "/api/v1/namespaces/default/pods"
COTENANT = [sys.executable, "-m", "cotenant"]
CRD = Path(__file__).parents[2] / "deploy/chart/crds/gpunodes.yaml"
PROGRAM = """
import ctypes, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
print("init", cuda.cuInit(0))
print("context", cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
print("within", cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(256 << 20)))
print("beyond", cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4 << 30)))
time.sleep(int(sys.argv[1]))
"""


class GpuNodeProcesses:
    """The node daemon and the plugin on the first node of the cluster."""

    def __init__(self, cluster: TestCluster) -> None:
        self.cluster = cluster
        self.node = cluster.nodes[0]
        self.daemon = self.node.component("daemon", [*COTENANT, "node"])
        self.plugin = self.node.component("plugin", self.command("dra"))

    def command(self, mode: str) -> list[str]:
        """Return the command line of the plugin."""
        kubeconfig = str(self.cluster.kubeconfig)
        return [*COTENANT, "kubernetes", "plugin", f"--mode={mode}", f"--kubeconfig={kubeconfig}", "--node-name=node-0"]

    def tenants(self) -> list[dict[str, Any]]:
        """Return the tenants that the report of the node names."""
        found = self.cluster.get("/apis/cotenant.dev/v1alpha1/gpunodes/node-0").get("status", {}).get("tenants", [])
        return list(found)

    def wait_for_tenant(self, pod: str, state: str = "running") -> dict[str, Any]:
        """Wait until the report names the tenant of a pod."""
        uid = self.cluster.get(f"{PODS}/{pod}")["metadata"]["uid"]

        def find() -> list[dict[str, Any]]:
            return [one for one in self.tenants() if (one["podUid"], one["state"]) == (uid, state)]

        self.cluster.wait(f"the node reports the tenant of {pod}", lambda: bool(find()))
        return find()[0]


@pytest.fixture(scope="module")
def gpu_node(cluster: TestCluster) -> Iterator[GpuNodeProcesses]:
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.cotenant.dev"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.cotenant.dev"'}}]},
    }
    cluster.apply(CRD, device_class)
    processes = GpuNodeProcesses(cluster)
    processes.node.run([*COTENANT, "softgpu", "create", "--gpu", "v100", "--count", "2"])
    processes.daemon.start()
    processes.plugin.start()
    cluster.wait("the GPUs are published", lambda: len(slices(cluster)) == 1)
    yield processes
    processes.node.run([*COTENANT, "softgpu", "destroy"])


def slices(cluster: TestCluster) -> list[Any]:
    return list(cluster.get("/apis/resource.k8s.io/v1/resourceslices")["items"])


def claim(name: str, parameters: dict[str, Any], **capacity: str) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.cotenant.dev", "capacity": {"requests": capacity}}}
    config = [{"requests": ["gpu"], "opaque": {"driver": "gpu.cotenant.dev", "parameters": parameters}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request], "config": config}},
    }


def pod(name: str, *, seconds: int = 600, **spec: Any) -> dict[str, Any]:
    image = spec.pop("image", PYTHON_IMAGE)
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": [] if image == PAUSE_IMAGE else ["python3", "-c", PROGRAM, str(seconds)],
        "resources": spec.pop("resources", {"claims": [{"name": "gpu"}]}),
        "securityContext": {
            "runAsUser": 1234,
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    claims = [{"name": "gpu", "resourceClaimName": name}] if "claims" in container["resources"] else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": spec.pop("annotations", {})},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "resourceClaims": claims,
            "containers": [container],
            **spec,
        },
    }


def start(gpu_node: GpuNodeProcesses, name: str, parameters: dict[str, Any], **capacity: str) -> dict[str, Any]:
    """Start a pod with a claim and return its tenant."""
    gpu_node.cluster.apply(claim(name, parameters, **capacity), pod(name))
    return gpu_node.wait_for_tenant(name)


def remove(cluster: TestCluster, *names: str) -> None:
    for name in names:
        cluster.kubectl("delete", "pod", name, "--ignore-not-found", "--wait=true")
        cluster.kubectl("delete", "resourceclaim", name, "--ignore-not-found")


def test_pod_of_another_user_with_a_read_only_root_joins_with_its_claim(gpu_node: GpuNodeProcesses) -> None:
    cluster = gpu_node.cluster
    [resource_slice] = slices(cluster)
    assert [device["name"] for device in resource_slice["spec"]["devices"]] == ["gpu-0", "gpu-1"]
    tenant = start(gpu_node, "online", {"kind": "online", "slo": "50ms"}, memory="1Gi", share="30", offlinePlaces="0")
    assert (tenant["kind"], tenant["memoryBytes"]) == ("online", 1 << 30)
    cluster.wait("it has allocated", lambda: "beyond" in cluster.kubectl("logs", "online"))
    assert cluster.kubectl("logs", "online").splitlines()[:4] == ["init 0", "context 0", "within 0", "beyond 2"]
    [shown] = json.loads(gpu_node.node.run([*COTENANT, "ps", "--json"]))["tenants"]
    assert shown["kind"] == "online"
    remove(cluster, "online")
    cluster.wait("the claim is released", lambda: not list(gpu_node.node.cdi.glob("cotenant.dev-claim-*")))
    cluster.wait("the tenant has left", lambda: not gpu_node.tenants())


def test_pods_survive_restarts_of_plugin_daemon_and_kubelet(gpu_node: GpuNodeProcesses) -> None:
    cluster = gpu_node.cluster
    capacity = {"memory": "1Gi", "share": "0", "offlinePlaces": "1"}
    before = start(gpu_node, "steady", {"kind": "offline"}, **capacity)
    epoch = cluster.get("/apis/cotenant.dev/v1alpha1/gpunodes/node-0")["status"]["epoch"]
    gpu_node.plugin.kill()
    gpu_node.daemon.kill()
    gpu_node.daemon.start()
    gpu_node.plugin.start()
    path = "/apis/cotenant.dev/v1alpha1/gpunodes/node-0"
    cluster.wait("the new daemon reports", lambda: cluster.get(path)["status"]["epoch"] > epoch)
    gpu_node.node.kubelet.kill()
    gpu_node.node.kubelet.start()
    assert gpu_node.wait_for_tenant("steady") == before
    after = start(gpu_node, "later", {"kind": "offline"}, **capacity)
    assert after["gpus"] != before["gpus"], "each GPU has one offline place"
    status = cluster.get(f"{PODS}/steady")["status"]["containerStatuses"][0]
    assert (status["restartCount"], "running" in status["state"]) == (0, True)
    remove(cluster, "steady", "later")


def test_evicted_tenant_costs_its_job_no_retry(gpu_node: GpuNodeProcesses) -> None:
    cluster = gpu_node.cluster
    tenant = start(gpu_node, "victim", {"kind": "offline"}, memory="1Gi", share="0", offlinePlaces="1")
    seen: list[dict[str, Any]] = []

    def is_disrupted() -> bool:
        conditions = cluster.get(f"{PODS}/victim")["status"].get("conditions", [])
        seen[:] = [one for one in conditions if one["type"] == "DisruptionTarget"]
        return bool(seen)

    cluster.kubectl("patch", "pod", "victim", "--type=merge", '-p={"metadata":{"finalizers":["example.com/test"]}}')
    gpu_node.node.run([*COTENANT, "evict", tenant["name"]])
    cluster.wait("the pod is a target of disruption", is_disrupted)
    assert seen[0]["reason"] == "EvictionByEvictionAPI"
    path = f"{PODS}/victim"
    cluster.wait("it has ended", lambda: cluster.get(path)["status"]["phase"] in {"Succeeded", "Failed"})
    cluster.kubectl("patch", "pod", "victim", "--type=merge", '-p={"metadata":{"finalizers":null}}')
    remove(cluster, "victim")


def test_image_without_glibc_is_refused_with_a_reason(gpu_node: GpuNodeProcesses) -> None:
    cluster = gpu_node.cluster
    capacity = {"memory": "1Gi", "share": "0", "offlinePlaces": "1"}
    cluster.apply(claim("static", {"kind": "offline"}, **capacity), pod("static", image=PAUSE_IMAGE))

    def reasons() -> str:
        return cluster.kubectl("get", "events", "-o", "json", "--field-selector", "involvedObject.name=static")

    cluster.wait("the image is refused", lambda: "this image has no glibc" in reasons())
    remove(cluster, "static")


def test_device_plugin_lets_the_node_choose_the_gpu(gpu_node: GpuNodeProcesses) -> None:
    cluster = gpu_node.cluster
    gpu_node.plugin.kill()
    plugin = gpu_node.node.component("device-plugin", gpu_node.command("device-plugin"))
    plugin.start()

    def allocatable() -> str:
        return str(cluster.get("/api/v1/nodes/node-0")["status"]["allocatable"].get("cotenant.dev/gpu", "0"))

    cluster.wait("the kubelet offers the resource", lambda: allocatable() == "16")
    annotations = {"cotenant.dev/kind": "online", "cotenant.dev/slo": "50ms", "cotenant.dev/memory": "1GiB"}
    resources = {"limits": {"cotenant.dev/gpu": "1"}}
    cluster.apply(pod("placed", annotations=annotations, resources=resources))
    tenant = gpu_node.wait_for_tenant("placed")
    assert (tenant["kind"], tenant["memoryBytes"], len(tenant["gpus"])) == ("online", 1 << 30, 1)
    cluster.wait("it has allocated", lambda: "beyond 2" in cluster.kubectl("logs", "placed"))
    gpu_node.node.kubelet.kill()
    gpu_node.node.kubelet.start()
    cluster.wait("the restarted kubelet offers the resource", lambda: allocatable() == "16")
    assert gpu_node.wait_for_tenant("placed")["name"] == tenant["name"]
    cluster.kubectl("delete", "pod", "placed")
    plugin.kill()
    gpu_node.plugin.start()
