"""Connections of the test cluster that adapters use: API server to webhook, and pods to this machine."""

from __future__ import annotations

import base64
import socket
from pathlib import Path
from typing import Any

import pytest

from cotenant_lab.kubernetes.api import ApiError
from cotenant_lab.kubernetes.cluster import TestCluster
from cotenant_lab.kubernetes.images import PYTHON_IMAGE

pytestmark = pytest.mark.kubernetes

REFUSING_SERVER = """
import http.server, json, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        uid = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]["uid"]
        response = {"uid": uid, "allowed": False, "status": {"message": "refused by the test"}}
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
server = http.server.ThreadingHTTPServer(("", 8443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
NAME = {"name": "refuse", "labels": {"app": "refuse"}}


def encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def objects_of_webhook(cluster: TestCluster) -> list[dict[str, Any]]:
    files = cluster.control_plane.authority.issue("refuse", "refuse", hosts=["refuse.default.svc"])
    container = {
        "name": "server",
        "image": PYTHON_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", REFUSING_SERVER],
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
    }
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "tls", "secret": {"secretName": "refuse"}}],
    }
    port = {"port": 443, "targetPort": 8443}
    webhook = {
        "name": "refuse.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "objectSelector": {"matchLabels": {"refused": "yes"}},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "clientConfig": {
            "caBundle": encoded(cluster.control_plane.authority.files.certificate),
            "service": {"namespace": "default", "name": "refuse"},
        },
    }
    secret = {"tls.crt": encoded(files.certificate), "tls.key": encoded(files.key)}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": NAME, "data": secret},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": NAME,
            "spec": {"selector": NAME["labels"], "ports": [port]},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": NAME, "spec": spec},
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": NAME,
            "webhooks": [webhook],
        },
    ]


def test_api_server_calls_the_webhook_of_a_service(cluster: TestCluster) -> None:
    objects = objects_of_webhook(cluster)
    try:
        cluster.apply(*objects)
        cluster.kubectl("wait", "--for=condition=Ready", "pod/refuse", "--timeout=100s")
        path = "/api/v1/namespaces/default/configmaps"
        answers: list[str] = []

        def is_refused() -> bool:
            made = {"metadata": {"name": "wanted", "labels": {"refused": "yes"}}}
            try:
                cluster.request("POST", path, made, dryRun="All")
            except ApiError as error:
                answers.append(str(error))
            return bool(answers) and "refused by the test" in answers[-1]

        cluster.wait(f"the webhook refuses the ConfigMap (answers: {answers})", is_refused)
        cluster.request("POST", path, {"metadata": {"name": "other"}}, dryRun="All")  # which the selector leaves out
    finally:
        for made in objects:
            cluster.kubectl("delete", made["kind"], "refuse", "--ignore-not-found")


def test_pod_reaches_a_listener_of_this_machine(cluster: TestCluster) -> None:
    with socket.create_server((cluster.machine_address, 0)) as server:
        address, port = server.getsockname()
        program = f"import socket; socket.create_connection(('{address}', {port})).sendall(b'from the pod')"
        container = {"name": "main", "image": PYTHON_IMAGE, "command": ["python3", "-c", program]}
        spec = {"restartPolicy": "Never", "containers": [container]}
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "caller"}, "spec": spec})
        server.settimeout(100)
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100) == b"from the pod"
    cluster.kubectl("delete", "pod", "caller")
