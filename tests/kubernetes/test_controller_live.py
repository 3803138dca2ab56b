"""The controller with a real API server, scheduler and controller manager; the test plays the nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cotenant.cluster.kubernetes import names
from cotenant_lab.kubernetes.api import ApiError
from cotenant_lab.kubernetes.cluster import TestControlPlane
from cotenant_lab.kubernetes.control_plane import CONTROLLER_MANAGER, SCHEDULER
from tests.support.kubernetes_objects import (
    CRD,
    DEVICE_CLASS,
    gated_pod,
    gpu_node_object,
    gpu_node_status,
    node_object,
    node_status,
    resource_slice,
)

pytestmark = pytest.mark.kubernetes

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
GPU_NODES = "/apis/cotenant.dev/v1alpha1/gpunodes"


class Plane:
    """A control plane with nodes that the test plays."""

    def __init__(self, plane: TestControlPlane, logs: Path) -> None:
        self.plane, self._logs = plane, logs
        self._numbers = 0
        self._nodes: dict[str, int] = {}
        self._is_over = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def close(self) -> None:
        self._is_over.set()
        self._beats.join()

    def _beat(self) -> None:
        """Report for the nodes: without that, the controller manager would taint them."""
        while not self._is_over.wait(5):
            for name, gpus in list(self._nodes.items()):
                with contextlib.suppress(ApiError):  # while the API server is restarted
                    self.plane.request("PATCH", f"/api/v1/nodes/{name}/status", node_status())
                    self.report(name, gpus)

    def add_node(self, name: str, gpus: int) -> None:
        request = self.plane.request
        request("POST", "/api/v1/nodes", node_object(name))
        request("PATCH", f"/api/v1/nodes/{name}/status", node_status())
        request("POST", GPU_NODES, gpu_node_object(name))
        request("POST", "/apis/resource.k8s.io/v1/resourceslices", resource_slice(name, gpus))
        self.report(name, gpus)
        self._nodes[name] = gpus

    def report(self, name: str, gpus: int, tenants: list[dict[str, Any]] | None = None) -> None:
        self.plane.request("PATCH", f"{GPU_NODES}/{name}/status", gpu_node_status(name, gpus, tenants))

    def pods(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.plane.get(PODS)["items"]
        return items

    def bound(self) -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in self.pods() if pod["spec"].get("nodeName")}

    def gated(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.pods() if pod["spec"].get("schedulingGates")]

    def end(self, name: str, phase: str = "Succeeded") -> None:
        self.plane.request("PATCH", f"{PODS}/{name}/status", {"status": {"phase": phase}})

    def condition(self, name: str) -> dict[str, Any]:
        conditions = self.plane.get(f"{PODS}/{name}")["status"].get("conditions", ())
        return next((each for each in conditions if each["type"] == names.CONDITION_PLACED), {})

    @contextlib.contextmanager
    def controller(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the controller as a process."""
        process = self.start_controller()
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0

    def start_controller(self) -> subprocess.Popen[bytes]:
        self._numbers += 1
        program = (
            "from cotenant.cluster.kubernetes.controller.main import ControllerOptions, serve_controller\n"
            f"serve_controller(ControllerOptions(kubeconfig={str(self.plane.kubeconfig)!r}, namespace='default',"
            " round_ns=10**9, requests_per_second=200, identity='controller'))\n"
        )
        with (self._logs / f"controller-{self._numbers}.log").open("wb") as log:
            return subprocess.Popen([sys.executable, "-c", program], stderr=log, env=os.environ)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    components = (SCHEDULER, CONTROLLER_MANAGER)
    with TestControlPlane(components=components, keep_logs=tmp_path / "logs") as made:
        made.kubectl("create", "-f", str(CRD))
        made.apply(DEVICE_CLASS)
        for path in (GPU_NODES, "/api/v1/namespaces/default/serviceaccounts/default"):
            made.wait(f"{path} is there", partial(_is_there, made, path))
        plane = Plane(made, tmp_path)
        yield plane
        plane.close()


def _is_there(made: TestControlPlane, path: str) -> bool:
    with contextlib.suppress(ApiError):
        made.get(path)
        return True
    return False


def test_pods_are_placed_by_the_scheduler_where_the_controller_decided(plane: Plane) -> None:
    plane.add_node("one", 2)
    plane.add_node("two", 2)
    for number in range(4):
        plane.plane.request("POST", PODS, gated_pod(f"pod-{number}"))
    with plane.controller():
        plane.plane.wait("all pods are bound", lambda: len(plane.bound()) == 4)
        claims = plane.plane.get(CLAIMS)["items"]
        for claim in claims:
            result = claim["status"]["allocation"]["devices"]["results"][0]
            uuid = claim["metadata"]["annotations"]["cotenant.dev/gpu-uuids"]
            assert f"GPU-{result['pool']}-{result['device'].removeprefix('gpu-')}" == uuid
            assert result["consumedCapacity"]["offlinePlaces"] == "1"
        plane.plane.request("POST", PODS, gated_pod("later"))
        plane.plane.wait("the waiting pod says why", lambda: plane.condition("later").get("status") == "False")
        assert plane.condition("later")["message"] == "None of 4 GPUs is open: 4 held"
        events = plane.plane.get("/api/v1/namespaces/default/events")["items"]
        assert any(event["message"] == "None of 4 GPUs is open: 4 held" for event in events)
        plane.end("pod-0")
        plane.plane.wait("the waiting pod is bound", lambda: "later" in plane.bound())
        plane.plane.wait("its condition is true", lambda: plane.condition("later").get("status") == "True")


def test_a_gang_is_placed_as_a_whole(plane: Plane) -> None:
    plane.add_node("one", 1)
    plane.add_node("two", 1)
    gang = {names.ANNOTATION_GANG: "train", names.ANNOTATION_GANG_SIZE: "2"}
    with plane.controller():
        plane.plane.request("POST", PODS, gated_pod("single"))
        plane.plane.wait("the single pod is bound", lambda: "single" in plane.bound())
        for number in range(2):
            plane.plane.request("POST", PODS, gated_pod(f"member-{number}", gang))
        plane.plane.wait("a member says why", lambda: plane.condition("member-0").get("status") == "False")
        assert sorted(plane.gated()) == ["member-0", "member-1"]
        plane.end("single")
        plane.plane.wait("the gang is bound", lambda: {"member-0", "member-1"} <= set(plane.bound()))
    assert set(plane.bound().values()) == {"one", "two"}
