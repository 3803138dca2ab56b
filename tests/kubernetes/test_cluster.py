"""The test cluster itself: nodes become Ready, pods run, components restart, and nothing is left afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cotenant_lab.kubernetes import leftovers
from cotenant_lab.kubernetes.cluster import TestCluster, TestControlPlane
from cotenant_lab.kubernetes.images import PYTHON_IMAGE

pytestmark = pytest.mark.kubernetes

PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, *command: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": PYTHON_IMAGE, "imagePullPolicy": "Never", "command": list(command)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def wait_for_phase(cluster: TestCluster, name: str, phase: str) -> None:
    cluster.wait(f"pod {name} is {phase}", lambda: cluster.get(f"{PODS}/{name}")["status"].get("phase") == phase)


def test_node_is_ready_and_has_the_built_version(cluster: TestCluster) -> None:
    items = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    assert [node["metadata"]["name"] for node in items] == ["node-0"]
    assert cluster.nodes[0].is_ready()
    assert items[0]["status"]["nodeInfo"]["kubeletVersion"] == cluster.get("/version")["gitVersion"] != "v0.0.0"


def test_pod_runs_and_its_log_is_read(cluster: TestCluster) -> None:
    cluster.apply(pod("greeting", "python3", "-c", "import ssl, sqlite3; print('hello', 6 * 7)"))
    wait_for_phase(cluster, "greeting", "Succeeded")
    assert cluster.kubectl("logs", "greeting") == "hello 42\n"
    cluster.kubectl("delete", "pod", "greeting")


def test_pod_of_another_user_with_the_default_seccomp_profile_runs(cluster: TestCluster) -> None:
    context = {"runAsUser": 1234, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    cluster.apply(pod("user", "sh", "-c", "id -u; grep Seccomp: /proc/self/status", securityContext=context))
    wait_for_phase(cluster, "user", "Succeeded")
    assert cluster.kubectl("logs", "user").split() == ["1234", "Seccomp:", "2"]
    cluster.kubectl("delete", "pod", "user")


def test_pod_reaches_the_api_server_with_its_service_account(cluster: TestCluster) -> None:
    program = """
import os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=folder + "ca.crt")
address = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}/version"
request = urllib.request.Request(address, headers={"Authorization": "Bearer " + open(folder + "token").read()})
print(urllib.request.urlopen(request, context=context).status)
"""
    cluster.apply(pod("client", "python3", "-c", program))
    wait_for_phase(cluster, "client", "Succeeded")
    assert cluster.kubectl("logs", "client") == "200\n"
    cluster.kubectl("delete", "pod", "client")


def test_running_pod_survives_restarts_of_kubelet_and_api_server(cluster: TestCluster) -> None:
    node = cluster.nodes[0]
    cluster.apply(pod("steady", "sleep", "3600"))
    wait_for_phase(cluster, "steady", "Running")
    before = cluster.get(f"{PODS}/steady")["status"]["containerStatuses"][0]
    node.kubelet.kill()
    assert not node.kubelet.is_running
    node.kubelet.start()
    cluster.restart_apiserver()
    cluster.apply(pod("later", "true"))
    wait_for_phase(cluster, "later", "Succeeded")
    assert cluster.kubectl("exec", "steady", "--", "echo", "alive") == "alive\n"
    after = cluster.get(f"{PODS}/steady")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
    cluster.kubectl("delete", "pod", "steady", "later")


def test_two_nodes_leave_nothing_behind() -> None:
    with TestCluster(2) as cluster:
        directory = cluster.directory
        assert sorted(node.name for node in cluster.nodes) == ["node-0", "node-1"]
        assert cluster.leftovers()  # what is there now is what must be gone afterwards
    assert cluster.leftovers() == []
    assert not directory.exists()


def test_cluster_of_a_killed_process_ends_and_is_removed() -> None:
    command = [sys.executable, "-m", "cotenant_lab.kubernetes", "up"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip().removeprefix("export KUBECONFIG=")).parent
        assert any(text.startswith("process") for text in leftovers.find(directory))
        process.kill()
    kinds = {text.split()[0] for text in leftovers.find(directory)}
    assert kinds <= {"directory", "cgroup"}
    subprocess.run([*command[:-1], "remove"], check=True)
    assert leftovers.find(directory) == []


def test_control_plane_without_nodes_accepts_claims_with_capacity() -> None:
    device = {
        "name": "gpu-0",
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "16Gi"}},
        "taints": [{"key": "example.com/unhealthy", "effect": "NoSchedule"}],
    }
    resource_slice = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "one"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "node-0",
            "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }
    with TestControlPlane() as control_plane:
        control_plane.apply(resource_slice)
        control_plane.restart_apiserver()
        stored = control_plane.get("/apis/resource.k8s.io/v1/resourceslices/one")["spec"]["devices"][0]
        assert stored["allowMultipleAllocations"] is True  # without the feature gates these fields are dropped
        assert stored["taints"][0]["key"] == "example.com/unhealthy"
    assert control_plane.leftovers() == []
