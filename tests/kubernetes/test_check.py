"""`cotenant kubernetes check`: each broken part of a cluster is found, with a remedy."""

import base64
import copy
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cotenant.cluster.kubernetes.api import ApiClient
from cotenant.cluster.kubernetes.api_config import plain_api_config
from cotenant.cluster.kubernetes.check import CheckOptions, check_cluster, time_ns, version_of
from cotenant.cluster.kubernetes.check_node import NodePaths, check_node
from cotenant.cluster.kubernetes.check_result import CheckResult
from cotenant.cluster.kubernetes.webhook.certificates import make_certificates
from cotenant.node.client.doctor import Level
from cotenant.runner.clock import rfc3339
from tests.support.admission_reviews import mutated
from tests.support.api_server import FakeApi, fake_api

NOW_NS = 1_800_000_000 * 10**9
DAY_NS = 86_400 * 10**9
CERTIFICATES = make_certificates(("cotenant-webhook.cotenant.svc",), NOW_NS)
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
DRA = "/apis/resource.k8s.io/v1"


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def put_cluster(api: FakeApi) -> None:
    """Fill an API with everything that a working installation has."""
    now = rfc3339(NOW_NS)
    data = dict(zip(("ca.crt", "ca.key", "tls.crt", "tls.key"), map(encoded, CERTIFICATES), strict=True))
    webhooks = [{"name": "pods", "clientConfig": {"caBundle": encoded(CERTIFICATES.authorities)}}]
    crd_status = {"conditions": [{"type": "Established", "status": "True"}]}
    objects: dict[str, dict[str, Any]] = {
        "/version": {"gitVersion": "v1.35.0"},
        DRA: {"kind": "APIResourceList"},
        f"{DRA}/deviceclasses/gpu.cotenant.dev": {},
        f"{DRA}/resourceslices/n1": {"spec": {"driver": "gpu.cotenant.dev", "nodeName": "n1"}},
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpunodes.cotenant.dev": {
            "spec": {"versions": [{"name": "v1alpha1", "served": True}]},
            "status": crd_status,
        },
        "/apis/cotenant.dev/v1alpha1/gpunodes/n1": {
            "metadata": {"name": "n1"},
            "status": {"observedAt": now, "gpus": [{}, {}]},
        },
        "/api/v1/nodes/n1": {
            "metadata": {"name": "n1"},
            "status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.4"}, "allocatable": {}},
        },
        "/apis/coordination.k8s.io/v1/namespaces/cotenant/leases/cotenant-controller": {
            "spec": {"holderIdentity": "controller-1", "renewTime": now}
        },
        "/api/v1/namespaces/cotenant/secrets/cotenant-webhook-certificate": {"data": data},
        f"{ADMISSION}/mutatingwebhookconfigurations/cotenant": {"webhooks": webhooks},
        f"{ADMISSION}/validatingwebhookconfigurations/cotenant": {"webhooks": copy.deepcopy(webhooks)},
    }
    for path, value in objects.items():
        api.put(path, value)
    api.dry_run = lambda path, body: (201, mutated("Pod", body) if path.endswith("/pods") else body)


def problems(api: FakeApi, client: ApiClient, tmp_path: Path, now_ns: int = NOW_NS) -> list[CheckResult]:
    """Return the results that are not good; those of this machine are left out."""
    options = CheckOptions(paths=NodePaths(kubelet=str(tmp_path / "none")))
    results = [result for result in check_cluster(client, options, now_ns) if result.check != "this machine"]
    assert len(results) >= 1
    return [result for result in results if result.level is not Level.GOOD]


def test_a_working_installation_has_no_problem(tmp_path: Path) -> None:
    with fake_api() as (api, client):
        put_cluster(api)
        assert problems(api, client, tmp_path) == []
        assert not [method for method, path in api.requests if method != "GET" and "check" in path]


def strip(field: str) -> Callable[[str, Any], tuple[int, Any]]:
    """Return an API server whose feature gate for a field of devices is off."""

    def answer(path: str, body: Any) -> tuple[int, Any]:
        if path.endswith("/pods"):
            return 201, mutated("Pod", body)
        body["spec"]["devices"][0].pop(field)
        return 201, body

    return answer


Break = Callable[[FakeApi], Any]
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpunodes.cotenant.dev"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/cotenant/leases/cotenant-controller"
NODE = "/api/v1/nodes/n1"
SECRET = "/api/v1/namespaces/cotenant/secrets/cotenant-webhook-certificate"
GPU_NODE = "/apis/cotenant.dev/v1alpha1/gpunodes/n1"
MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations/cotenant"
BROKEN: list[tuple[str, Break, str]] = [
    ("features", lambda api: api.put("/version", {"gitVersion": "v1.31.2+k3s1"}), "Kubernetes 1.31 has no stable"),
    ("features", lambda api: api.objects.pop(DRA), "the API group resource.k8s.io/v1 is not served"),
    ("features", lambda api: setattr(api, "dry_run", strip("taints")), "DRADeviceTaints is off"),
    (
        "features",
        lambda api: setattr(api, "dry_run", strip("allowMultipleAllocations")),
        "DRAConsumableCapacity is off",
    ),
    ("CRD", lambda api: api.objects.pop(CRD), "customresourcedefinitions/gpunodes.cotenant.dev"),
    ("CRD", lambda api: api.put(CRD, {"spec": {"versions": []}}), "does not serve version v1alpha1"),
    ("CRD", lambda api: api.objects[CRD].pop("status"), "is not established"),
    ("CRD", lambda api: api.objects.pop(f"{DRA}/deviceclasses/gpu.cotenant.dev"), "no DeviceClass"),
    ("nodes", lambda api: api.objects.pop(GPU_NODE), "no node has reported a GPU"),
    ("nodes", lambda api: api.objects[GPU_NODE]["status"].pop("observedAt"), "no report for 180s of: n1"),
    (
        "kubelet plugin",
        lambda api: api.objects.pop(f"{DRA}/resourceslices/n1"),
        "not registered with the kubelet of: n1",
    ),
    (
        "container runtime",
        lambda api: api.objects[NODE]["status"].update(nodeInfo={"containerRuntimeVersion": "containerd://1.6.20"}),
        "containerd://1.6.20 on n1 does not support CDI",
    ),
    (
        "container runtime",
        lambda api: api.objects[NODE]["status"].update(nodeInfo={"containerRuntimeVersion": "containerd://1.7.27"}),
        "off by default before 2.0",
    ),
    ("controller", lambda api: api.objects.pop(LEASE), "leases/cotenant-controller"),
    ("controller", lambda api: api.objects[LEASE]["spec"].pop("renewTime"), "has not renewed the Lease"),
    ("webhook", lambda api: api.objects.pop(MUTATING), "mutatingwebhookconfigurations/cotenant"),
    ("webhook certificate", lambda api: api.put(MUTATING, {"webhooks": [{"name": "pods"}]}), "has no caBundle"),
    (
        "webhook certificate",
        lambda api: api.objects[MUTATING]["webhooks"][0]["clientConfig"].update(
            caBundle=encoded(make_certificates(("a",), NOW_NS).authorities)
        ),
        "has a caBundle that does not match",
    ),
    ("webhook", lambda api: setattr(api, "dry_run", lambda _, body: (201, body)), "are not translated"),
    (
        "webhook",
        lambda api: setattr(
            api, "dry_run", lambda path, body: (500, {"message": "no endpoints"}) if "pods" in path else (201, body)
        ),
        "no endpoints",
    ),
    ("webhook", lambda api: api.put(MUTATING, {"webhooks": 7}), "webhooks = 7: must be a list"),
]


@pytest.mark.parametrize("check, breaking, what", BROKEN, ids=[what for _, _, what in BROKEN])
def test_each_broken_part_is_found_with_a_remedy(check: str, breaking: Break, what: str, tmp_path: Path) -> None:
    with fake_api() as (api, client):
        put_cluster(api)
        breaking(api)
        found = problems(api, client, tmp_path)
    assert [result.check for result in found if what in result.what] == [check]
    assert all(result.remedy for result in found)


def test_missing_feature_gates_are_no_problem_where_the_device_plugin_is_used(tmp_path: Path) -> None:
    with fake_api() as (api, client):
        put_cluster(api)
        api.objects[GPU_NODE]["status"]["allocation"] = "device-plugin"
        api.dry_run = strip("taints")
        found = problems(api, client, tmp_path)
    assert [(result.level, result.what) for result in found] == [
        (Level.NOTE, "the feature gate DRADeviceTaints is off, so the device plugin is used")
    ]


def test_an_expired_certificate_is_found(tmp_path: Path) -> None:
    with fake_api() as (api, client):
        put_cluster(api)
        found = problems(api, client, tmp_path, NOW_NS + 400 * DAY_NS)
    assert "the certificate expired 35 days ago" in [result.what for result in found]


def test_remedies_name_the_objects_of_the_examined_release(tmp_path: Path) -> None:
    options = CheckOptions(namespace="gpu", configuration="lab-cotenant", paths=NodePaths(str(tmp_path / "none")))
    with fake_api() as (api, client):
        put_cluster(api)
        api.objects[GPU_NODE]["status"].pop("observedAt")
        api.objects["/api/v1/namespaces/gpu/secrets/lab-cotenant-webhook-certificate"] = api.objects.pop(SECRET)
        for plural in ("mutating", "validating"):
            api.put(f"{ADMISSION}/{plural}webhookconfigurations/lab-cotenant", {"webhooks": [{"name": "pods"}]})
        api.put(LEASE.replace("namespaces/cotenant", "namespaces/gpu"), {"spec": {}})
        api.dry_run = lambda _, body: (500, {"message": "no endpoints"}) if body["kind"] == "Pod" else (201, body)
        found = list(check_cluster(client, options, NOW_NS + 400 * DAY_NS))
    commands = {result.remedy.partition(": ")[2] for result in found if result.level is Level.BAD}
    assert commands == {
        "kubectl -n gpu logs -l app.kubernetes.io/component=node -c plugin",
        "kubectl -n gpu logs deployment/lab-cotenant-controller",
        "kubectl -n gpu logs deployment/lab-cotenant-webhook",
        "kubectl -n gpu delete secret lab-cotenant-webhook-certificate",
    }


def test_missing_rights_are_named_and_are_no_problem_of_the_installation(tmp_path: Path) -> None:
    with fake_api() as (api, client):
        put_cluster(api)
        api.refuse["/api/v1/nodes"] = 403
        found = problems(api, client, tmp_path)
    remedy = "use a kubeconfig with these rights, for example that of a cluster administrator"
    assert {(result.level, result.remedy) for result in found} == {(Level.NOTE, remedy)}


def test_the_device_plugin_needs_no_controller(tmp_path: Path) -> None:
    with fake_api() as (api, client):
        put_cluster(api)
        for path in (f"{DRA}/deviceclasses/gpu.cotenant.dev", LEASE):
            api.objects.pop(path)
        found = problems(api, client, tmp_path)
    assert [(result.check, result.level) for result in found] == [("CRD", Level.NOTE), ("controller", Level.NOTE)]


def test_an_api_that_does_not_answer_ends_the_check_of_the_cluster(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = ApiClient(plain_api_config(f"http://127.0.0.1:{unused.getsockname()[1]}"))
        found = list(check_cluster(client, CheckOptions(paths=NodePaths(kubelet=str(tmp_path / "x"))), NOW_NS))
    assert [(result.check, result.level) for result in found] == [
        ("API access", Level.BAD),
        ("this machine", Level.NOTE),
    ]


def node_results(paths: NodePaths) -> dict[str, list[CheckResult]]:
    found: dict[str, list[CheckResult]] = {}
    for result in check_node(paths):
        found.setdefault(result.check, []).append(result)
    return found


def test_a_node_with_sockets_cdi_and_containerd_has_no_problem(short_path: Path) -> None:
    registry, cdi = short_path / "plugins_registry", short_path / "cdi"
    registry.mkdir()
    cdi.mkdir()
    (cdi / "cotenant.dev-claim-1.json").write_text(json.dumps({"kind": "cotenant.dev/gpu", "devices": []}))
    config = short_path / "config.toml"
    config.write_text('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n')
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(registry / "gpu.cotenant.dev-reg.sock"))
        listener.listen()
        found = node_results(NodePaths(str(short_path), str(cdi), (str(config),)))
    assert {result.level for results in found.values() for result in results} == {Level.GOOD}
    assert set(found) == {"kubelet plugin", "CDI", "container runtime"}


def test_the_problems_of_a_node_are_found(short_path: Path) -> None:
    config = short_path / "config.toml"
    found: dict[str, list[CheckResult]] = {}
    for text, level, what in (
        ('[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false', Level.BAD, "enable_cdi = false"),
        ("version = 2", Level.NOTE, "does not set enable_cdi"),
        ("version = 3", Level.GOOD, "leaves CDI on"),
        ("version = [", Level.BAD, "cannot be read"),
    ):
        config.write_text(text)
        found = node_results(NodePaths(str(short_path), str(short_path / "cdi"), (str(config),)))
        [runtime] = found["container runtime"]
        assert runtime.level is level
        assert what in runtime.what
    assert "there is no" in found["CDI"][0].what
    assert "no socket of gpu.cotenant.dev" in found["kubelet plugin"][0].what
    (short_path / "cdi").mkdir()
    (short_path / "cdi" / "cotenant.dev-claim-1.json").write_text("{")
    (short_path / "plugins_registry").mkdir()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(short_path / "plugins_registry" / "gpu.cotenant.dev-reg.sock"))
    found = node_results(NodePaths(str(short_path), str(short_path / "cdi"), ()))
    assert "is not a CDI specification" in found["CDI"][0].what
    assert "does not answer: Connection refused" in found["kubelet plugin"][0].what


def test_versions_and_times_of_the_api_are_read() -> None:
    assert [version_of(text) for text in ("v1.34.1+k3s1", "1.7.27~ds1", "", "x")] == [(1, 34), (1, 7), (0, 0), (0, 0)]
    assert time_ns("1970-01-01T00:00:01Z") == 10**9
    assert time_ns("1970-01-01T00:00:01.500000Z") == 1_500_000_000
    assert [time_ns(text) for text in (None, "", "yesterday", 7)] == [0, 0, 0, 0]
