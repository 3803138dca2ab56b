"""Workloads on an installed product: pods and Jobs that ask for a GPU, and what Kubernetes and the node say of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from cotenant_lab.kubernetes.api import ApiError
from cotenant_lab.kubernetes.installation import CLAIMS, Installation
from cotenant_lab.kubernetes.product_images import TRAINING_IMAGE

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PLACED = "cotenant.dev/Placed"


def train(steps: int, *more: str) -> list[str]:
    """Return the command of a training run."""
    return ["python3", "train.py", "--steps", str(steps), *more]


BUSY = train(10**9, "--kernel-us", "1000")
"""A program that always has work for the GPU."""
RESTRICTED = {
    "runAsUser": 1234,
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context of a container with the fewest rights."""


def pod_template(command: Sequence[str], annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    """Return metadata and spec of a pod; names of annotations are without the prefix."""
    container = {"name": "main", "image": spec.pop("image", TRAINING_IMAGE), "command": list(command)}
    container |= spec.pop("container", {})
    return {
        "metadata": {"annotations": {f"cotenant.dev/{name}": value for name, value in annotations.items()}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container], **spec},
    }


class Product:
    """The installed product, and the workloads of one test."""

    def __init__(self, installation: Installation) -> None:
        """Use this installation."""
        self.installation = installation
        self.cluster = installation.cluster

    # -- workloads ---------------------------------------------------------------------------------------------------

    def pod(self, name: str, command: Sequence[str], annotations: dict[str, str], **spec: Any) -> None:
        """Create a pod."""
        made = pod_template(command, annotations, **spec)
        made["metadata"]["name"] = name
        self.cluster.request("POST", PODS, {"apiVersion": "v1", "kind": "Pod", **made})

    def create_text(self, body: dict[str, Any]) -> str:
        """Create an object with kubectl, and return what that printed: warnings, or why it was refused."""
        return self.cluster.kubectl("create", "-f", "-", stdin=json.dumps(body), check=False)

    def job(self, name: str, command: Sequence[str], annotations: dict[str, str], **spec: Any) -> None:
        """Create a Job; `job` among the keywords has fields of its own spec."""
        job = {"backoffLimit": 0, **spec.pop("job", {}), "template": pod_template(command, annotations, **spec)}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job}
        self.cluster.request("POST", JOBS, body)

    def clear(self) -> None:
        """Delete all workloads, and wait until the node has no tenant."""
        kubectl = self.cluster.kubectl
        kubectl("delete", "deployments,jobs", "--all", "--wait=false")
        kubectl("delete", "pods", "--all", "--wait=true")
        self.wait("the claims are gone", lambda: not self.cluster.get(CLAIMS)["items"])
        self.wait("the node has no tenant", lambda: not self.installation.tenants())

    def delete(self, *names: str) -> None:
        """Delete pods and wait for their end."""
        self.cluster.kubectl("delete", "pods", *names, "--wait=true")

    # -- what Kubernetes says ----------------------------------------------------------------------------------------

    def get(self, name: str) -> Any:
        """Return a pod; None if there is none."""
        try:
            return self.cluster.get(f"{PODS}/{name}")
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    def pods_of(self, job: str) -> list[Any]:
        """Return the pods of a Job, oldest first."""
        found = self.cluster.get(PODS, labelSelector=f"batch.kubernetes.io/job-name={job}")["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def phase(self, name: str) -> str:
        """Return the phase of a pod."""
        return str((self.get(name) or {"status": {}})["status"].get("phase", ""))

    def condition(self, name: str, kind: str = PLACED) -> Any:
        """Return a condition of a pod; None if it has none of this type."""
        pod = self.get(name) or {"status": {}}
        return next((one for one in pod["status"].get("conditions", ()) if one["type"] == kind), None)

    def gate(self, name: str) -> list[str]:
        """Return the scheduling gates of a pod."""
        return [gate["name"] for gate in self.get(name)["spec"].get("schedulingGates", ())]

    def events(self, name: str) -> list[Any]:
        """Return the events of a pod."""
        query = {"fieldSelector": f"involvedObject.name={name}"}
        return list(self.cluster.get("/api/v1/namespaces/default/events", **query)["items"])

    def gpu_of(self, name: str) -> str:
        """Return the device that is allocated to the claim of a pod; empty: none yet."""
        claim = self.get(name)["metadata"]["labels"]["cotenant.dev/claim"]
        for one in self.cluster.get(CLAIMS)["items"]:
            if one["metadata"]["name"] == claim:
                results = one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
                return ",".join(result["device"] for result in results)
        return ""

    def logs(self, name: str) -> str:
        """Return what a pod printed."""
        return self.cluster.kubectl("logs", name, check=False)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, what: str, is_true: Callable[[], bool], timeout_s: float = 120) -> None:
        """Wait until a condition holds."""
        self.cluster.wait(what, is_true, timeout_s)

    def wait_running(self, *names: str) -> None:
        """Wait until pods run and are tenants of the node; a pod that ended is an error."""
        for name in names:
            self.wait(f"{name} is a tenant", lambda name=name: self._is_running(name))  # type: ignore[misc]

    def _is_running(self, name: str) -> bool:
        assert self.phase(name) not in {"Succeeded", "Failed"}, self.logs(name)
        return self.tenant_state(name) == "running"

    def tenant_state(self, name: str) -> str:
        """Return the state of the tenant of a pod; empty: its node reports none."""
        return str((self.installation.tenant_of(name) or {}).get("state", ""))

    def wait_phase(self, name: str, *phases: str) -> None:
        """Wait until a pod is in one of these phases."""
        self.wait(f"{name} is {' or '.join(phases)}", lambda: self.phase(name) in phases)

    # -- commands ----------------------------------------------------------------------------------------------------

    def cotenant(self, *words: str) -> Any:
        """Run a command of cotenant on this machine with the administrator's kubeconfig; return its JSON."""
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of cotenant on this machine with the administrator's kubeconfig."""
        command = [sys.executable, "-m", "cotenant", *words, "--kubeconfig", str(self.cluster.kubeconfig)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def counters(self, gpu: str) -> dict[str, Any]:
        """Return the counters of a software GPU by the name of its device, such as gpu-0."""
        return self.installation.counters(int(gpu.removeprefix("gpu-")))
