"""`Installation`: the product on a test cluster, installed with its Helm chart as a user installs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cotenant.errors import SetupError
from cotenant_lab.errors import RunFailedError
from cotenant_lab.kubernetes.api import ApiError
from cotenant_lab.kubernetes.cluster import TestCluster, helm
from cotenant_lab.kubernetes.images import PACKAGES_DIRECTORY

DEPLOY: Final = Path(__file__).resolve().parents[4] / "deploy"
CHART: Final = DEPLOY / "chart"
EXAMPLES: Final = DEPLOY / "examples"
NAMESPACE: Final = "cotenant"
RELEASE: Final = "cotenant"
GPU_NODES: Final = "/apis/cotenant.dev/v1alpha1/gpunodes"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS: Final = "/apis/resource.k8s.io/v1/resourceclaims"
_WAIT_S: Final = 240.0
_FILES: Final = ("run-cotenant", "var-lib-cotenant", "usr-local-cotenant")
"""Folders of a node in which the product keeps files."""
_CLUSTER_OBJECTS: Final = (
    "crds,deviceclasses,resourceslices,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,"
    "validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings"
)
_DEFAULTS: Final[dict[str, Any]] = {
    "controller": {"replicas": 1, "round": "2s"},
    "webhook": {"replicas": 1},
    "node": {"softwareGpus": {"count": 2, "type": "v100"}},
}
"""Values for a small cluster: one replica of each part, frequent rounds, two software GPUs on each node."""


def _silent(_: str) -> None:
    """Report nothing."""


class Installation:
    """The chart on a cluster whose nodes have the images of `write_product_images`."""

    def __init__(
        self,
        cluster: TestCluster,
        values: Mapping[str, Any] | None = None,
        *,
        report: Callable[[str], None] = _silent,
    ) -> None:
        """Describe the installation; `values` are merged into those for a small cluster."""
        if not (CHART / "Chart.yaml").is_file():
            raise SetupError(f"{CHART} is missing: run from a checkout of the project, which contains the chart")
        self.cluster = cluster
        self.values = _merged(_DEFAULTS, values or {})
        self._report = report

    def __enter__(self) -> Self:
        """Install and wait until everything is ready; remove it if that fails."""
        try:
            self.install()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove everything."""
        self.remove()

    # -- helm --------------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Run `helm install` and wait until pods can be created."""
        self._report("helm install")
        self._helm("install", "--create-namespace")
        self.wait_ready()

    def upgrade(self, values: Mapping[str, Any]) -> None:
        """Run `helm upgrade` with values that are merged into the present ones, and wait until all pods are new."""
        self.values = _merged(self.values, values)
        self._report("helm upgrade")
        self._helm("upgrade")
        for kind, name in (("daemonset", "node"), *(("deployment", name) for name in self._deployments())):
            words = ("rollout", "status", f"{kind}/{RELEASE}-{name}", f"--timeout={_WAIT_S:.0f}s")
            self.cluster.kubectl("-n", NAMESPACE, *words, timeout_s=_WAIT_S + 10)
        self.wait_ready()

    def remove(self) -> None:
        """Remove everything in the order that docs/how-to/kubernetes.md describes, and the files of the nodes."""
        self._report("helm uninstall")
        kubectl = self.cluster.kubectl
        kubectl("delete", "deployments,jobs", "--all", "-n", "default", "--wait=true", check=False)
        kubectl("delete", "pods", "--all", "-n", "default", "--wait=true", "--timeout=60s", check=False, timeout_s=90)
        kubectl("delete", "resourceclaims", "--all", "-n", "default", "--timeout=60s", check=False, timeout_s=90)
        flags = ["--namespace", NAMESPACE, "--ignore-not-found", "--wait", "--timeout=120s"]
        helm("uninstall", RELEASE, *flags, kubeconfig=self.cluster.kubeconfig)
        kubectl("delete", "crd", "gpunodes.cotenant.dev", "--ignore-not-found")
        kubectl("delete", "resourceslices", "--field-selector", "spec.driver=gpu.cotenant.dev")
        # The namespace has the certificate, the Lease and the predictions.
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s", timeout_s=150)
        for node in self.cluster.nodes:
            command = "rm -rf /run/cotenant/* /run/cotenant/.[!.]* /var/lib/cotenant/* /usr/local/cotenant/*"
            node.run(["sh", "-c", f"{command} /usr/local/cotenant/.[!.]* /var/run/cdi/cotenant.dev-*"])

    def leftovers(self) -> list[str]:
        """Return what is left of the product on the cluster: objects, files and processes of the nodes."""
        found = [line for line in self._objects() if "cotenant" in line]
        for node in self.cluster.nodes:
            files = [path for folder in _FILES for path in (node.directory / folder).iterdir()]
            files += node.cdi.glob("cotenant.dev-*")
            found += [f"{node.name}: file {path}" for path in files]
            processes = node.run(["ps", "-eo", "args"]).splitlines()
            found += [f"{node.name}: process {line}" for line in processes if PACKAGES_DIRECTORY in line]
        return found

    def _objects(self) -> list[str]:
        objects = self.cluster.kubectl("get", _CLUSTER_OBJECTS, "-o", "name").splitlines()
        return objects + self.cluster.kubectl("get", "namespaces,resourceclaims", "-A", "-o", "name").splitlines()

    def _helm(self, command: str, *flags: str) -> None:
        values = self.cluster.directory / "values.json"
        values.write_text(json.dumps(self.values))
        words = (command, RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", str(values), *flags)
        helm(*words, kubeconfig=self.cluster.kubeconfig)

    # -- readiness ---------------------------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait until the GPUs are offered, the controller leads, and the webhook translates pods."""
        self._report("waiting for the parts of the product")
        nodes = [node.name for node in self.cluster.nodes]
        gpus = int(self.values["node"]["softwareGpus"]["count"])
        self._wait("every node reports its GPUs", lambda: all(len(self.gpus(node)) == gpus for node in nodes))
        if self.uses_claims:
            self._wait("every node publishes its GPUs", lambda: len(self._published()) == gpus * len(nodes))
            self._wait("a controller leads", lambda: bool(self.leader()))
        else:
            places = str(gpus * int(self.values["node"].get("places", 8)))
            self._wait("every kubelet offers places", lambda: all(self._places(node) == places for node in nodes))
        self._wait("the webhook translates pods", self.webhook_answers)

    @property
    def uses_claims(self) -> bool:
        """Return whether GPUs are allocated by claims."""
        allocation = self.values.get("allocation", "auto")
        return allocation == "claim" or (allocation == "auto" and self.cluster.has_gates)

    def webhook_answers(self) -> bool:
        """Return whether a pod that asks for a GPU is translated, in a dry run."""
        container = {"name": "main", "image": "none"}
        if not self.uses_claims:
            container |= {"resources": {"limits": {"cotenant.dev/gpu": "1"}}}  # type: ignore[dict-item]
        metadata = {"name": "probe", "annotations": {"cotenant.dev/kind": "online", "cotenant.dev/slo": "50ms"}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        try:
            found = self.cluster.request("POST", "/api/v1/namespaces/default/pods", pod, dryRun="All")
        except ApiError:
            return False
        return "cotenant.dev/kind" in found["metadata"].get("labels", {})

    def leader(self) -> str:
        """Return the name of the controller that holds the Lease; empty: none."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/cotenant-controller"
        return str(self._get(path).get("spec", {}).get("holderIdentity") or "")

    def _published(self) -> list[Any]:
        slices = self._get(SLICES).get("items", [])
        return [device for one in slices for device in one["spec"].get("devices") or ()]

    def _places(self, node: str) -> str:
        allocatable = self._get(f"/api/v1/nodes/{node}").get("status", {}).get("allocatable", {})
        return str(allocatable.get("cotenant.dev/gpu", ""))

    def _deployments(self) -> list[str]:
        return ["webhook"] if self.values.get("allocation") == "device-plugin" else ["webhook", "controller"]

    def _wait(self, what: str, is_true: Callable[[], bool]) -> None:
        try:
            self.cluster.wait(what, is_true, _WAIT_S)
        except RunFailedError as error:
            raise RunFailedError(f"{error}\n{self.describe()}") from None

    def describe(self) -> str:
        """Return states, reports of nodes, waiting reasons, events and logs, for a message of a failed test."""
        kubectl = self.cluster.kubectl
        texts = [kubectl("get", "pods", "-A", "-o", "wide", check=False)]
        texts.append(kubectl("get", "gpunodes", "-o", "jsonpath={.items[*].status}", check=False))
        waiting = '{range .items[*]}{.metadata.name}{" "}{.status.conditions[?(@.status=="False")].message}{"\\n"}{end}'
        texts.append(kubectl("get", "pods", "-o", f"jsonpath={waiting}", check=False))
        columns = "custom-columns=OBJECT:.involvedObject.name,REASON:.reason,MESSAGE:.message"
        texts.append(
            "\n".join(kubectl("-n", NAMESPACE, "get", "events", "-o", columns, check=False).splitlines()[-30:])
        )
        for part in ("node", "softgpu", "controller", "webhook"):
            selector = f"app.kubernetes.io/component={part}"
            words = ("logs", "-l", selector, "--all-containers", "--prefix", "--tail=25")
            texts.append(kubectl("-n", NAMESPACE, *words, check=False))
        return "\n".join(texts)

    # -- what the product shows --------------------------------------------------------------------------------------

    def status(self, node: str = "node-0") -> dict[str, Any]:
        """Return the report of a node."""
        return dict(self._get(f"{GPU_NODES}/{node}").get("status", {}))

    def gpus(self, node: str = "node-0") -> list[Any]:
        """Return the GPUs of a node."""
        return list(self.status(node).get("gpus", []))

    def tenants(self, node: str = "node-0") -> list[Any]:
        """Return the tenants of a node."""
        return list(self.status(node).get("tenants", []))

    def tenant_of(self, pod: str, namespace: str = "default") -> dict[str, Any] | None:
        """Return the tenant of a pod on any node; None: its node reports none."""
        uid = self._get(f"/api/v1/namespaces/{namespace}/pods/{pod}").get("metadata", {}).get("uid")
        tenants = (tenant for node in self.cluster.nodes for tenant in self.tenants(node.name))
        return next((tenant for tenant in tenants if tenant["podUid"] == uid), None)

    def in_node(self, *command: str, node: int = 0, container: str = "daemon", check: bool = True) -> str:
        """Run a command in a container of the DaemonSet on a node, as `kubectl exec` does."""
        pods = self.pods("node")
        name = next(pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName") == f"node-{node}")
        return self.cluster.kubectl("-n", NAMESPACE, "exec", name, "-c", container, "--", *command, check=check)

    def counters(self, gpu: int = 0, node: int = 0) -> dict[str, Any]:
        """Return the counters of a software GPU."""
        return dict(json.loads(self.in_node("cotenant", "softgpu", "inspect", str(gpu), "--json", node=node)))

    def pods(self, component: str) -> list[Any]:
        """Return the pods of a part: node, softgpu, controller or webhook."""
        selector = f"app.kubernetes.io/component={component}"
        return list(self.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=selector)["items"])

    def _get(self, path: str) -> dict[str, Any]:
        """Return an object, or an empty one if there is none."""
        try:
            return dict(self.cluster.get(path))
        except ApiError:
            return {}


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with changes; objects are merged, anything else is replaced."""
    result = dict(base)
    for key, value in changes.items():
        present = result.get(key)
        if isinstance(value, Mapping) and isinstance(present, Mapping):
            result[key] = _merged(present, value)
        else:
            result[key] = value
    return result
