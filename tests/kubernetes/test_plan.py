"""`cotenant cluster plan` of a Kubernetes cluster: the state that its objects imply, and what a round would decide."""

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cotenant.cli import main
from cotenant.cluster.kubernetes import names
from cotenant.cluster.snapshot import decode_snapshot
from cotenant.runner.clock import rfc3339, unix_ns
from cotenant.units.instant import SECOND_NS
from cotenant_lab.kubernetes.api import ApiError
from cotenant_lab.kubernetes.cluster import TestControlPlane
from tests.support.api_server import FakeApi, fake_api
from tests.support.kubernetes_objects import CRD, gated_pod, gpu_node_object, gpu_node_status, node_object


def put_node(api: FakeApi, name: str, gpus: int, **status: Any) -> None:
    reported = gpu_node_status(name, gpus)["status"] | status
    api.put(f"/api/v1/nodes/{name}", node_object(name))
    api.put(f"/apis/cotenant.dev/v1alpha1/gpunodes/{name}", gpu_node_object(name) | {"status": reported})


def put_pod(api: FakeApi, name: str, **annotations: str) -> None:
    pod = gated_pod(name, {f"{names.GROUP}/{key.replace('_', '-')}": value for key, value in annotations.items()})
    pod["metadata"] |= {"namespace": "team", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    api.put(f"/api/v1/pods/{name}", pod)


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    with fake_api() as (api, client):
        put_node(api, "n1", 1)
        put_node(api, "n2", 1, observedAt=rfc3339(unix_ns() - 3600 * SECOND_NS))
        foreign = {"podUid": "uid-own-claim", "name": "x", "kind": "offline", "gpus": ["GPU-n3-0"]}
        put_node(api, "n3", 1, tenants=[foreign])
        put_pod(api, "first", memory="4GiB")
        put_pod(api, "second", memory="64GiB")
        put_pod(api, "member", gang="g", gang_size="2")
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k"}}],
            "clusters": [{"name": "k", "cluster": {"server": client.config.server}}],
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        yield api, ["--kubeconfig", str(tmp_path / "kubeconfig")]


def test_plan_of_a_cluster_names_places_and_reasons_and_changes_nothing(cluster: Any, capsys: Any) -> None:
    api, flags = cluster
    assert main(["cluster", "plan", "--json", *flags]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [(row["job"], row["node"], row["gpus"]) for row in plan["placed"]] == [("team/first@uid-first", "n1", [0])]
    why = {row["job"].partition("@")[0]: row["why"] for row in plan["waiting"]}
    assert why["team/second"] == "none of 1 open GPU is suitable: 1 with too little memory free"
    assert why["team/member"] == "only 1 of the 2 members of its gang team/g exist"
    idle = {row["node"]: row["why"] for row in plan["idle"]}
    assert idle == {"n2": "of a silent node", "n3": "with an unwanted attempt that must end first"}
    assert {method for method, _ in api.requests} == {"GET"}


def test_saved_state_gives_the_same_plan(cluster: Any, tmp_path: Path, capsys: Any) -> None:
    _, flags = cluster
    file = tmp_path / "now.json"
    assert main(["cluster", "plan", "--json", "--save", str(file), *flags]) == 0
    live = json.loads(capsys.readouterr().out)
    assert main(["cluster", "plan", "--json", str(file)]) == 0
    saved = json.loads(capsys.readouterr().out)
    assert saved["placed"] == live["placed"]
    assert saved["waiting"] == live["waiting"]
    state, _ = decode_snapshot(file.read_bytes(), "now.json")
    assert {job.report.spec.gang for job in state.jobs} == {"", "team/g"}


def test_a_state_that_cannot_be_written_is_refused(cluster: Any, capsys: Any) -> None:
    _, flags = cluster
    assert main(["cluster", "plan", "--save", "/nowhere/now.json", *flags]) == 2
    assert "--save = '/nowhere/now.json': cannot be written" in capsys.readouterr().err


@pytest.mark.kubernetes
def test_plan_of_a_real_api_server(capsys: Any) -> None:
    gpu_nodes = "/apis/cotenant.dev/v1alpha1/gpunodes"
    metadata = {"name": "default", "namespace": "default"}
    with TestControlPlane() as plane:
        plane.kubectl("create", "-f", str(CRD))
        plane.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        plane.wait(f"{gpu_nodes} is there", partial(_is_there, plane, gpu_nodes))
        plane.request("POST", "/api/v1/nodes", node_object("one"))
        # A new node is tainted as not ready, and here is no controller manager that removes that.
        plane.request("PATCH", "/api/v1/nodes/one", {"spec": {"taints": None}})
        plane.request("POST", gpu_nodes, gpu_node_object("one"))
        plane.request("PATCH", f"{gpu_nodes}/one/status", gpu_node_status("one", 2))
        for number in range(3):
            plane.request("POST", "/api/v1/namespaces/default/pods", gated_pod(f"pod-{number}"))
        assert main(["cluster", "plan", "--json", "--kubeconfig", str(plane.kubeconfig)]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert sorted(row["gpus"] for row in plan["placed"]) == [[0], [1]]
        assert [row["why"] for row in plan["waiting"]] == ["every suitable GPU is better used for another job"]
        pods = plane.get("/api/v1/namespaces/default/pods")["items"]
        assert all(pod["spec"]["schedulingGates"] for pod in pods)


def _is_there(plane: TestControlPlane, path: str) -> bool:
    with contextlib.suppress(ApiError):
        plane.get(path)
        return True
    return False
