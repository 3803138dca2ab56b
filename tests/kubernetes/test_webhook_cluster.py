"""The webhook with a real API server: objects of the chart, rights, translation, outage and expired certificates."""

import base64
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotenant.cli import main
from cotenant.cluster.kubernetes.api import STRATEGIC_PATCH, ApiClient, ApiError
from cotenant.cluster.kubernetes.api_config import load_api_config
from cotenant.cluster.kubernetes.webhook.certificate_source import CONFIGURATIONS
from cotenant.cluster.kubernetes.webhook.certificates import make_certificates, validity_of
from cotenant.runner.clock import unix_ns
from cotenant_lab.errors import RunFailedError
from cotenant_lab.kubernetes.cluster import TestControlPlane
from tests.support.chart import CHART, render

pytestmark = pytest.mark.kubernetes

ACCOUNT = "system:serviceaccount:cotenant:cotenant-webhook"
SECRET = "/api/v1/namespaces/cotenant/secrets/cotenant-webhook-certificate"
PODS = "/api/v1/namespaces/default/pods"
GPU_NODES = "/apis/cotenant.dev/v1alpha1/gpunodes"
EMPTY_STATUS = {"epoch": 1, "observedAt": "2026-01-01T00:00:00Z", "gpus": [], "tenants": []}
DAY_NS = 86_400 * 10**9


class WebhookProcess:
    """`cotenant kubernetes webhook` at a port of this machine, with the rights that the chart grants."""

    def __init__(self, plane: TestControlPlane) -> None:
        self._plane = plane
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._kubeconfig = plane.kubeconfig_for(ACCOUNT, ["system:serviceaccounts", "system:authenticated"])
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        flags = ["--kubeconfig", str(self._kubeconfig), "--address", "127.0.0.1", "--port", str(self.port)]
        flags += ["--namespace", "cotenant", "--service", "localhost"]
        self._process = subprocess.Popen([sys.executable, "-m", "cotenant", "kubernetes", "webhook", *flags])
        self._plane.wait("the webhook translates pods", self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None
        try:
            found = self._plane.request("POST", PODS, pod("probe", {"kind": "offline"}), dryRun="All")
        except RunFailedError:
            return False
        return "schedulingGates" in found["spec"]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(60)


@pytest.fixture(scope="module")
def plane() -> Iterator[TestControlPlane]:
    with TestControlPlane() as made:
        made.apply(CHART / "crds" / "gpunodes.yaml")
        for namespace in ("cotenant", "default"):
            if namespace != "default":
                made.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            metadata = {"name": "default", "namespace": namespace}
            made.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        made.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(render()))
        yield made


@pytest.fixture(scope="module")
def webhook(plane: TestControlPlane) -> Iterator[WebhookProcess]:
    process = WebhookProcess(plane)
    for plural in CONFIGURATIONS:  # no Service has an address without kube-proxy
        path = f"/apis/admissionregistration.k8s.io/v1/{plural}/cotenant"
        configuration = plane.get(path)
        for each in configuration["webhooks"]:
            route = each["clientConfig"].pop("service")["path"]
            each["clientConfig"]["url"] = f"https://localhost:{process.port}{route}"
        plane.request("PUT", path, configuration)
    plane.apply({"apiVersion": "cotenant.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n0"}})
    status = {**EMPTY_STATUS, "allocation": "claim"}
    plane.request("PATCH", f"{GPU_NODES}/n0/status", {"status": status})
    process.start()
    yield process
    process.end()


def pod(name: str, annotations: dict[str, str] | None = None, limits: dict[str, Any] | None = None) -> Any:
    marks = {f"cotenant.dev/{key}": value for key, value in (annotations or {}).items()}
    container = {"name": "main", "image": "pause", "resources": {"limits": limits or {}}}
    metadata = {"name": name, "namespace": "default", "annotations": marks}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def create(plane: TestControlPlane, value: Any, **query: str) -> Any:
    return plane.request("POST", PODS, value, **query)


def test_every_variant_of_the_chart_is_accepted(plane: TestControlPlane) -> None:
    kinds = {"PodMonitor", "Certificate", "Issuer"}
    for values in ({"allocation": "device-plugin"}, {"monitoring.dashboard.enabled": True, "node.config": "[node]"}):
        objects = [each for each in render(values) if each["kind"] not in kinds]
        plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(objects))


def test_pods_are_translated_and_accepted(plane: TestControlPlane, webhook: WebhookProcess) -> None:
    online = create(plane, pod("online", {"slo": "50ms", "memory": "4GiB"}))
    claim = online["metadata"]["labels"]["cotenant.dev/claim"]
    assert online["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": claim}]
    assert "schedulingGates" not in online["spec"]
    hami = create(plane, pod("hami", limits={"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}))
    assert hami["metadata"]["annotations"]["cotenant.dev/memory"] == "3000MiB"
    resources = hami["spec"]["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "gpu"}]
    assert not resources.get("limits")
    assert "resourceClaims" not in create(plane, pod("plain"))["spec"]


def test_what_cannot_be_honoured_is_refused_with_the_field(plane: TestControlPlane, webhook: WebhookProcess) -> None:
    for value, message in (
        (pod("bad", {"slo": "fast"}), "metadata.annotations[cotenant.dev/slo] = 'fast'"),
        (pod("bad", limits={"nvidia.com/gpumem-percentage": 50}), "no GPU has been reported yet"),
        (pod("bad", {"colour": "red"}), "is not an annotation of cotenant"),
    ):
        text = plane.kubectl("create", "-f", "-", stdin=json.dumps(value), check=False)
        assert message in text


def test_a_dry_run_leaves_nothing(plane: TestControlPlane, webhook: WebhookProcess) -> None:
    assert create(plane, pod("dry", {"kind": "offline"}), dryRun="All")["spec"]["schedulingGates"]
    assert "NotFound" in plane.kubectl("get", "pod", "dry", check=False)


def test_annotations_cannot_change(plane: TestControlPlane, webhook: WebhookProcess) -> None:
    create(plane, pod("fixed", {"slo": "50ms"}))
    text = plane.kubectl("annotate", "--overwrite", "pod", "fixed", "cotenant.dev/slo=10ms", check=False)
    assert "cannot change after the pod was created" in text
    plane.kubectl("annotate", "--overwrite", "pod", "fixed", "team=a")


def test_evictions_of_jobs_are_ignored(plane: TestControlPlane, webhook: WebhookProcess) -> None:
    template = {
        "metadata": {"annotations": {"cotenant.dev/memory": "1GiB"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "pause"}]},
    }
    value = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {"template": template}}
    plane.apply(value)
    spec = plane.get("/apis/batch/v1/namespaces/default/jobs/train")["spec"]
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    assert spec["podReplacementPolicy"] == "Failed"
    template["spec"]["restartPolicy"] = "OnFailure"  # type: ignore[index]
    value["metadata"] = {"name": "warned"}
    text = plane.kubectl("create", "-f", "-", stdin=json.dumps(value), check=False)
    assert "Warning: spec.template.spec.restartPolicy = OnFailure" in text


def test_claims_are_validated(plane: TestControlPlane, webhook: WebhookProcess) -> None:
    opaque = {"driver": "gpu.cotenant.dev", "parameters": {"kind": "sometimes"}}
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.cotenant.dev"}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "mine"},
        "spec": {"devices": {"requests": [request], "config": [{"opaque": opaque}]}},
    }
    text = plane.kubectl("create", "-f", "-", stdin=json.dumps(claim), check=False)
    assert "spec.devices.config[0].opaque.parameters.kind = 'sometimes'" in text
    opaque["parameters"] = {"kind": "online"}
    plane.apply(claim)


def test_the_check_finds_the_webhook_good(
    plane: TestControlPlane, webhook: WebhookProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--kubeconfig", str(plane.kubeconfig), "--kubelet-dir", str(tmp_path / "none"), "--json"]
    assert main(["kubernetes", "check", *flags]) == 1  # the only report of a node is old
    results = json.loads(capsys.readouterr().out)["results"]
    levels = {(result["check"], result["level"]) for result in results}
    for check in ("API access", "features", "CRD", "webhook", "webhook certificate"):
        assert (check, "good") in levels
        assert (check, "bad") not in levels, results
    assert ("nodes", "bad") in levels


def test_an_outage_refuses_pods_that_ask_for_a_gpu_and_no_others(
    plane: TestControlPlane, webhook: WebhookProcess
) -> None:
    before = plane.get(SECRET)["data"]
    webhook.end(signal.SIGKILL)
    text = plane.kubectl("create", "-f", "-", stdin=json.dumps(pod("late", {"slo": "50ms"})), check=False)
    assert "failed calling webhook" in text
    create(plane, pod("other"))
    webhook.start()
    assert plane.get(SECRET)["data"] == before
    assert create(plane, pod("late", {"slo": "50ms"}))["spec"]["resourceClaims"]


def test_pods_that_an_ignored_outage_left_untranslated_are_explained(
    plane: TestControlPlane, webhook: WebhookProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    for plural in CONFIGURATIONS:
        _set_failure_policy(plane, plural, "Ignore")
    webhook.end(signal.SIGKILL)
    created = create(plane, pod("ignored", {"slo": "50ms"}))
    assert "resourceClaims" not in created["spec"]
    assert main(["explain", "pod", "ignored", "--kubeconfig", str(plane.kubeconfig), "-n", "default", "--json"]) == 0
    explained = capsys.readouterr().out
    assert "does not use a GPU of cotenant" in explained
    assert "webhook.failurePolicy is Ignore" in explained
    for plural in CONFIGURATIONS:
        _set_failure_policy(plane, plural, "Fail")
    webhook.start()


def _set_failure_policy(plane: TestControlPlane, plural: str, policy: str) -> None:
    path = f"/apis/admissionregistration.k8s.io/v1/{plural}/cotenant"
    configuration = plane.get(path)
    for each in configuration["webhooks"]:
        each["failurePolicy"] = policy
    plane.request("PUT", path, configuration)


def test_an_expired_certificate_is_replaced(plane: TestControlPlane, webhook: WebhookProcess) -> None:
    webhook.end()
    expired = make_certificates(("localhost",), unix_ns() - 500 * DAY_NS)
    encoded = [base64.b64encode(content).decode() for content in expired]
    secret = plane.get(SECRET)
    secret["data"] = dict(zip(("ca.crt", "ca.key", "tls.crt", "tls.key"), encoded, strict=True))
    plane.request("PUT", SECRET, secret)
    webhook.start()
    renewed = base64.b64decode(plane.get(SECRET)["data"]["tls.crt"])
    assert validity_of(renewed).until_ns > unix_ns() + 300 * DAY_NS


def node_client(plane: TestControlPlane, node: str) -> ApiClient:
    """Return a client with the token of a pod of the DaemonSet on a node."""
    plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    value = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"plugin-{node}", "namespace": "cotenant"},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "cotenant-node",
            "containers": [{"name": "main", "image": "pause"}],
        },
    }
    made = plane.request("POST", "/api/v1/namespaces/cotenant/pods", value)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    tokens = "/api/v1/namespaces/cotenant/serviceaccounts/cotenant-node/token"
    token = plane.request("POST", tokens, request)["status"]["token"]
    config = yaml.safe_load(plane.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = plane.directory / f"plugin-{node}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return ApiClient(load_api_config(str(path)))


def test_a_plugin_writes_only_the_objects_of_its_own_node(plane: TestControlPlane) -> None:
    plane.wait("the policy is in force", lambda: _is_refused(plane))
    client = node_client(plane, "n1")
    body = {"apiVersion": "cotenant.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n1"}}
    client.create(GPU_NODES, body)
    client.patch(f"{GPU_NODES}/n1/status", {"status": EMPTY_STATUS})
    with pytest.raises(ApiError, match="plugin of node 'n1' may not write the objects of node 'n2'"):
        client.create(GPU_NODES, {**body, "metadata": {"name": "n2"}})
    pool = {"name": "n2", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.cotenant.dev", "nodeName": "n2", "pool": pool, "devices": []}
    slice_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "n2-gpu.cotenant.dev"},
        "spec": spec,
    }
    with pytest.raises(ApiError, match="may not write the objects of node 'n2'"):
        client.create("/apis/resource.k8s.io/v1/resourceslices", slice_)
    spec["nodeName"] = pool["name"] = "n1"
    client.create("/apis/resource.k8s.io/v1/resourceslices", slice_)
    client.delete("/apis/resource.k8s.io/v1/resourceslices/n2-gpu.cotenant.dev")
    mark = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByCotenant", "message": "test"}
    pods = "/api/v1/namespaces/cotenant/pods"
    client.patch(f"{pods}/plugin-n1/status", {"status": {"conditions": [mark]}}, STRATEGIC_PATCH)
    node_client(plane, "n2").close()
    with pytest.raises(ApiError, match="may not write the objects of node 'n2'"):
        client.patch(f"{pods}/plugin-n2/status", {"status": {"conditions": [mark]}}, STRATEGIC_PATCH)
    client.close()


def _is_refused(plane: TestControlPlane) -> bool:
    """Return whether the policy already refuses a plugin whose token names no node."""
    groups = ["system:serviceaccounts", "system:authenticated"]
    account = plane.kubeconfig_for("system:serviceaccount:cotenant:cotenant-node", groups)
    client = ApiClient(load_api_config(str(account)))
    body = {"apiVersion": "cotenant.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n9"}}
    try:
        client.create(GPU_NODES, body, dryRun="All")
    except ApiError as error:
        return "may not write" in str(error)
    finally:
        client.close()
    time.sleep(0.5)
    return False
