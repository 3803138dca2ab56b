"""The HTTPS server of the webhook: answers, limits, and certificates that change while it runs."""

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.cluster.kubernetes.webhook import server as server_module
from cotenant.cluster.kubernetes.webhook.certificate_source import ServerPair
from cotenant.cluster.kubernetes.webhook.certificates import WebhookCertificates, make_certificates
from cotenant.cluster.kubernetes.webhook.main import Webhook, WebhookOptions, certificate_source, service_names
from cotenant.cluster.kubernetes.webhook.server import BODY_LIMIT, WebhookServer
from cotenant.errors import PeerError, WorldError
from cotenant.runner.clock import unix_ns
from tests.support.admission_reviews import answer_of, patch_of, review_of
from tests.support.api_server import fake_api

HOST = "cotenant-webhook.cotenant.svc"
CERTIFICATES = make_certificates((HOST,), unix_ns())


def decide(body: bytes) -> bytes:
    if body == b"bad":
        raise PeerError("not a review")
    return b"answer to " + body


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    made = WebhookServer(("127.0.0.1", 0), {"/mutate": decide}, pair_of(CERTIFICATES))
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def pair_of(certificates: WebhookCertificates) -> ServerPair:
    return ServerPair(certificates.certificate, certificates.key)


class Connection(http.client.HTTPSConnection):
    """A connection that expects the name of the Service, as the API server does."""

    def __init__(self, server: WebhookServer, authorities: bytes) -> None:
        super().__init__("127.0.0.1", server.server_address[1], timeout=60)
        self._authorities = authorities

    def connect(self) -> None:
        context = ssl.create_default_context(cadata=self._authorities.decode())
        plain = socket.create_connection((self.host, self.port), timeout=60)
        self.sock = context.wrap_socket(plain, server_hostname=HOST)


def post(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, bytes]:
    connection.request("POST", path, body)
    response = connection.getresponse()
    return response.status, response.read()


def test_requests_of_one_connection_are_answered_in_turn(server: WebhookServer) -> None:
    connection = Connection(server, CERTIFICATES.authorities)
    assert post(connection, "/mutate?timeout=10s", b"one") == (200, b"answer to one")
    assert post(connection, "/mutate", b"bad") == (400, b"not a review")
    assert post(connection, "/mutate", b"two") == (200, b"answer to two")
    connection.close()


def test_bodies_and_paths_are_limited(server: WebhookServer) -> None:
    for path, headers, status in (
        ("/other", {"Content-Length": "0"}, 404),
        ("/mutate", {"Content-Length": str(BODY_LIMIT + 1)}, 413),
        ("/mutate", {"Content-Length": "9" * 30}, 413),
        ("/mutate", {"Content-Length": "-1"}, 411),
        ("/mutate", {}, 411),
    ):
        connection = Connection(server, CERTIFICATES.authorities)
        connection.putrequest("POST", path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == status
        assert response.getheader("Connection") == "close"
        connection.close()


def test_probes_report_an_expired_certificate(server: WebhookServer) -> None:
    def get(path: str) -> int:
        connection = Connection(server, CERTIFICATES.authorities)
        connection.request("GET", path)
        status = connection.getresponse().status
        connection.close()
        return status

    assert (get("/healthz"), get("/readyz"), get("/")) == (200, 200, 404)
    server.is_ready = False
    assert (get("/healthz"), get("/readyz")) == (200, 503)


def test_a_new_certificate_is_used_for_new_connections(server: WebhookServer) -> None:
    before = Connection(server, CERTIFICATES.authorities)
    assert post(before, "/mutate", b"1")[0] == 200
    renewed = make_certificates((HOST,), unix_ns())
    server.use(pair_of(renewed))
    after = Connection(server, renewed.authorities)
    assert post(after, "/mutate", b"2")[0] == 200
    assert post(before, "/mutate", b"3")[0] == 200
    with pytest.raises(ssl.SSLError):
        Connection(server, CERTIFICATES.authorities).connect()
    before.close()
    after.close()


def test_a_certificate_that_does_not_load_is_refused_and_the_old_one_stays(server: WebhookServer) -> None:
    with pytest.raises(WorldError, match="cannot be used"):
        server.use(ServerPair(b"x", b"y"))
    connection = Connection(server, CERTIFICATES.authorities)
    assert post(connection, "/mutate", b"1")[0] == 200
    connection.close()


def test_peers_that_do_not_speak_tls_delay_no_other_peer(
    server: WebhookServer, capfd: pytest.CaptureFixture[str]
) -> None:
    address: Any = ("127.0.0.1", server.server_address[1])
    silent = [socket.create_connection(address) for _ in range(20)]
    with socket.create_connection(address) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        connection = Connection(server, CERTIFICATES.authorities)
        assert post(connection, "/mutate", b"1")[0] == 200
        connection.close()
    for each in silent:
        each.close()
    assert capfd.readouterr().err == ""


def test_connections_beyond_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS_LIMIT", 1)
    limited = WebhookServer(("127.0.0.1", 0), {"/mutate": decide}, pair_of(CERTIFICATES))
    thread = threading.Thread(target=limited.serve_forever, daemon=True)
    thread.start()
    held = Connection(limited, CERTIFICATES.authorities)
    assert post(held, "/mutate", b"1")[0] == 200
    with pytest.raises((ssl.SSLError, ConnectionError)):
        Connection(limited, CERTIFICATES.authorities).connect()
    held.close()
    limited.shutdown()
    limited.server_close()
    thread.join()


def test_the_webhook_follows_the_sizes_of_gpus_and_its_certificate() -> None:
    options = WebhookOptions("127.0.0.1", 0)
    lines: list[str] = []
    with fake_api() as (api, client):
        source = certificate_source(client, options)
        webhook = Webhook(client, options, source, lines.append)
        webhook.refresh()
        assert "cannot refresh the webhook configurations" in lines[0]
        assert webhook.needs_refresh
        for plural in ("mutating", "validating"):
            path = f"/apis/admissionregistration.k8s.io/v1/{plural}webhookconfigurations/cotenant"
            api.put(path, {"metadata": {"name": "cotenant"}, "webhooks": [{"clientConfig": {}}]})
        status = {"gpus": [{"memoryBytes": 16 << 30}]}
        api.put("/apis/cotenant.dev/v1alpha1/gpunodes/n1", {"metadata": {"name": "n1"}, "status": status})
        webhook.refresh()
        assert lines[-1] == "the webhook configurations could be refreshed again"
        assert not webhook.needs_refresh
        limits = {"nvidia.com/gpumem-percentage": 25}
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"limits": limits}}]}}
        answer = answer_of(webhook.server.routes["/mutate"](review_of("Pod", pod)))
        assert answer["allowed"]
        assert "4GiB" in str(patch_of(answer))
        webhook.server.server_close()


def test_new_pods_get_what_the_nodes_report() -> None:
    lines: list[str] = []
    options = WebhookOptions("127.0.0.1", 0, allocation=None)
    pod = {
        "metadata": {"name": "p", "annotations": {"cotenant.dev/kind": "offline"}},
        "spec": {"containers": [{"name": "main"}]},
    }
    with fake_api() as (api, client):
        webhook = Webhook(client, options, certificate_source(client, options), lines.append)

        def answer_with(*allocations: str) -> dict[str, Any]:
            for number, allocation in enumerate(allocations):
                tree = {"metadata": {"name": f"n{number}"}, "status": {"allocation": allocation}}
                api.put(f"/apis/cotenant.dev/v1alpha1/gpunodes/n{number}", tree)
            webhook.refresh()
            return answer_of(webhook.server.routes["/mutate"](review_of("Pod", pod)))

        refused = answer_with()
        assert not refused["allowed"]
        assert "no node has reported yet" in refused["status"]["message"]
        assert webhook.needs_refresh
        by_plugin = answer_with("device-plugin", "")
        assert "cotenant.dev/gpu" in str(patch_of(by_plugin))
        assert "schedulingGates" not in str(patch_of(by_plugin))
        [warning] = by_plugin["warnings"]
        assert "so the device plugin allocates the GPU of this pod, without a placement round" in warning
        by_claim = answer_with("device-plugin", "claim")
        assert "schedulingGates" in str(patch_of(by_claim))
        assert "warnings" not in by_claim
        webhook.server.server_close()
    assert lines[-1] == "the nodes allocate GPUs by claim, and so do new pods"


def test_the_certificate_names_the_service_as_the_api_server_calls_it() -> None:
    names = service_names(WebhookOptions(service="hook", namespace="gpu"))
    assert names[0] == "hook.gpu.svc"
    with pytest.raises(WorldError, match="--service"):
        service_names(WebhookOptions(service=""))
