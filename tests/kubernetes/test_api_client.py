"""The API client over HTTP: requests, errors, paged lists, watches, kubeconfig files and leader election."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import ApiClient, ApiError, ApiRequest, resource_path
from cotenant.cluster.kubernetes.api_config import load_api_config, plain_api_config
from cotenant.cluster.kubernetes.controller.election import DURATION_S, RENEW_WITHIN_S, Election
from cotenant.cluster.kubernetes.controller.objects import POD_SELECTOR, PODS, KubeNode, Pod
from cotenant.errors import ConfigError, WorldError
from cotenant.units.instant import SECOND_NS
from tests.support.kubernetes_api import FakeKubernetes, serve

pytestmark = pytest.mark.live


@pytest.fixture
def api() -> FakeKubernetes:
    return FakeKubernetes()


@pytest.fixture
def url(api: FakeKubernetes) -> Iterator[str]:
    with serve(api) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[ApiClient]:
    client = ApiClient(plain_api_config(url))
    yield client
    client.close()


def add_nodes(api: FakeKubernetes, count: int) -> None:
    for number in range(count):
        api.create("nodes", "", {"metadata": {"name": f"node-{number:03d}"}, "spec": {}})


@pytest.mark.parametrize(
    "arguments, path",
    [
        (("v1", "pods"), "/api/v1/pods"),
        (("v1", "pods", "default", "a", "eviction"), "/api/v1/namespaces/default/pods/a/eviction"),
        (("resource.k8s.io/v1", "resourceclaims", "ns"), "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims"),
        (("cotenant.dev/v1alpha1", "gpunodes", "", "n/1"), "/apis/cotenant.dev/v1alpha1/gpunodes/n%2F1"),
    ],
)
def test_paths(arguments: tuple[str, ...], path: str) -> None:
    assert resource_path(*arguments) == path


def test_lists_are_read_in_pages(api: FakeKubernetes, client: ApiClient) -> None:
    add_nodes(api, 23)
    listing = client.list("/api/v1/nodes", KubeNode, limit="5")
    assert [node.metadata.name for node in listing.items] == [f"node-{number:03d}" for number in range(23)]
    assert listing.resource_version == str(api.version)
    assert len([request for request in api.requests if request.method == "GET"]) == 5


def test_a_list_whose_version_expires_begins_anew(api: FakeKubernetes, client: ApiClient) -> None:
    add_nodes(api, 6)
    send = api.send

    def expire_after_the_first_page(request: ApiRequest) -> object:
        response = send(request)
        if len(api.requests) == 1:
            add_nodes_of = api.create("nodes", "", {"metadata": {"name": "node-new"}, "spec": {}})
            assert add_nodes_of
            api.compacted = api.version
        return response

    api.send = expire_after_the_first_page  # type: ignore[method-assign, assignment]
    listing = client.list("/api/v1/nodes", KubeNode, limit="4")
    assert len(listing.items) == 7


def test_errors_say_what_was_refused_and_why(api: FakeKubernetes, client: ApiClient) -> None:
    with pytest.raises(ApiError, match=r'GET /api/v1/nodes/none: nodes "none" not found \(status 404\)') as caught:
        client.get("/api/v1/nodes/none", KubeNode)
    assert caught.value.status == 404
    add_nodes(api, 1)
    with pytest.raises(ApiError, match="already exists"):
        client.create("/api/v1/nodes", {"metadata": {"name": "node-000"}, "spec": {}})


def test_a_server_that_is_down_is_named() -> None:
    client = ApiClient(plain_api_config("http://127.0.0.1:1"))
    with pytest.raises(ApiError, match=r"the Kubernetes API at http://127.0.0.1:1 does not answer: .*refused"):
        client.get("/api/v1/nodes", KubeNode)


def test_a_client_survives_a_restart_of_the_server(api: FakeKubernetes) -> None:
    with serve(api) as url:
        client = ApiClient(plain_api_config(url))
        add_nodes(api, 1)
        assert client.send(ApiRequest("GET", "/api/v1/nodes")).status == 200
    port = int(url.rpartition(":")[2])
    with serve(api, port):
        assert client.send(ApiRequest("GET", "/api/v1/nodes")).status == 200
    client.close()


def test_a_watch_reports_changes_and_an_expired_version(api: FakeKubernetes, client: ApiClient) -> None:
    labels = {names.LABEL_CLAIM: "c"}
    pod = {"metadata": {"name": "a", "labels": labels}, "spec": {}, "status": {"phase": "Pending"}}
    start = str(api.version)
    api.create("pods", "default", pod)
    api.create("pods", "default", {"metadata": {"name": "unrelated"}, "spec": {}})
    finished = json.loads(json.dumps(api.objects["pods"]["default", "a"]))
    finished["status"]["phase"] = "Succeeded"
    api.update("pods", ("default", "a"), finished)
    events = client.watch(PODS, start, **POD_SELECTOR)
    assert [next(events).type for _ in range(2)] == ["ADDED", "DELETED"]
    events.close()  # type: ignore[attr-defined]
    api.compacted = api.version
    with pytest.raises(ApiError) as caught:
        next(client.watch(PODS, start))
    assert caught.value.status == 410


def test_pods_decode_with_unknown_fields(api: FakeKubernetes, client: ApiClient) -> None:
    api.create("pods", "default", {"metadata": {"name": "a", "managedFields": [1]}, "spec": {"containers": [{}]}})
    assert client.get("/api/v1/namespaces/default/pods/a", Pod).status.phase == "Pending"


# -- kubeconfig ------------------------------------------------------------------------------------------------------


def write_kubeconfig(path: Path, user: dict) -> str:
    tree = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:8080/k8s/clusters/one"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(tree))
    return str(path)


def test_a_kubeconfig_gives_server_namespace_and_credentials(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    cases: dict[str, dict] = {
        "Bearer abc": {"token": "abc"},
        "Bearer from-file": {"tokenFile": "token"},
        "Basic " + base64.b64encode(b"me:pw").decode(): {"username": "me", "password": "pw"},
        "": {},
        "Bearer made": {"exec": {"command": "sh", "args": ["-c", 'echo \'{"status": {"token": "made"}}\'']}},
    }
    for header, user in cases.items():
        config = load_api_config(write_kubeconfig(tmp_path / "config", user))
        assert (config.host, config.port, config.path) == ("127.0.0.1", 8080, "/k8s/clusters/one")
        assert config.namespace == "team"
        assert config.authorization() == header


def test_wrong_kubeconfigs_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "config"
    with pytest.raises(WorldError, match="cannot read"):
        load_api_config(str(path))
    path.write_text("a: [")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_api_config(str(path))
    path.write_text("just text")
    with pytest.raises(ConfigError, match="is not a kubeconfig"):
        load_api_config(str(path))
    write_kubeconfig(path, {})
    with pytest.raises(ConfigError, match="has no such entry; it has: here"):
        load_api_config(str(path), context="there")
    with pytest.raises(WorldError, match="no Kubernetes API is configured"):
        load_api_config(environment={"HOME": str(tmp_path / "nowhere")})
    assert load_api_config(environment={"KUBECONFIG": str(path)}).namespace == "team"


# -- leader election -------------------------------------------------------------------------------------------------


def test_one_of_two_candidates_leads_and_the_other_takes_over(client: ApiClient) -> None:
    one = Election(client, "cotenant", "one", lambda: 0)
    other = Election(client, "cotenant", "other", lambda: 1)
    now = 0
    assert one.step(now)
    for _ in range(20):
        now += 2 * SECOND_NS
        one._unix_ns = lambda now=now: now  # type: ignore[misc]
        assert one.step(now)
        assert not other.step(now)
    assert other.holder == "one"
    # the leader is gone: the other takes over when it has seen no renewal for the duration of the Lease
    silent_since = now
    while not other.step(now):
        now += SECOND_NS
    assert now - silent_since == DURATION_S * SECOND_NS
    assert not one.step(now)


def test_a_released_lease_is_taken_at_once(client: ApiClient) -> None:
    one, other = (Election(client, "cotenant", name, lambda: 0) for name in ("one", "other"))
    assert one.step(0)
    assert not other.step(0)
    one.release()
    assert other.step(1)


def test_a_leader_that_cannot_renew_stops(api: FakeKubernetes) -> None:
    with serve(api) as url:
        client = ApiClient(plain_api_config(url))
        election = Election(client, "cotenant", "one", lambda: 0)
        assert election.step(0)
    assert election.step((RENEW_WITHIN_S - 1) * SECOND_NS)
    assert "does not answer" in election.problem
    assert not election.step(RENEW_WITHIN_S * SECOND_NS)
    client.close()
