"""Listeners: TLS, pipelined and compressed requests, slow clients and health checks."""

import contextlib
import gzip
import json
import queue
import re
import select
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("google.protobuf")
pytest.importorskip("tritonclient.grpc")
import grpc
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from cotenant.errors import ConfigError
from cotenant.serve.frontend.tls import tls_context, tls_files
from tests.support.model_servers import Server, identity

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("default")]  # third-party clients and their dependencies
CALLABLES = """
import numpy as np

from cotenant.api import Model


class Unwritable:
    def __str__(self):
        raise RuntimeError("on purpose")


odd = Model(
    lambda tensors: {"Y": np.array([Unwritable()], np.object_)},
    name="odd",
    inputs={"X": ("FP32", (1,))},
    outputs={"Y": ("BYTES", (1,))},
)


def _forever(tensors):
    while True:
        yield {"X": tensors["X"]}


endless = Model(_forever, name="endless", inputs={"X": ("FP32", (1,))}, outputs={"X": ("FP32", (1,))}, decoupled=True)
plain = Model(lambda tensors: tensors, name="plain", inputs={"X": ("FP32", (1,))}, outputs={"X": ("FP32", (1,))})
"""
LIVE_REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
INCOMPLETE_REQUEST = b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n"


def make_certificate(folder: Path) -> None:
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    subprocess.run(["openssl", "req", *kind, *files, *subject], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    identity(folder / "wide.onnx", "FP32", ["N", "M"])
    (folder / "odd.py").write_text(CALLABLES)
    (folder / "ends.py").write_text("raise SystemExit(3)")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder, "--cores", "1", "--body", "100KiB", "--request-memory", "1MiB")
    yield server
    server.stop()


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.http.rpartition(":")[2])), 60)


def receive_all(client: socket.socket) -> bytes:
    data = b""
    while part := client.recv(65536):
        data += part
    return data


def tensor(kind: Any, values: np.ndarray) -> Any:
    input_tensor = kind.InferInput("IN", list(values.shape), "FP32")
    input_tensor.set_data_from_numpy(values)
    return input_tensor


def test_tls_listener_serves_tls_clients_only(folder: Path, tmp_path: Path) -> None:
    make_certificate(tmp_path)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    server = Server(folder, "--cores", "1", "--tls-cert", cert, "--tls-key", key)
    values = np.arange(300_000, dtype=np.float32).reshape(3, -1)
    port = server.http.rpartition(":")[2]
    with triton_http.InferenceServerClient(f"localhost:{port}", ssl=True, ssl_options={"ca_certs": cert}) as client:
        answer = client.infer("wide", [tensor(triton_http, values)])
        np.testing.assert_array_equal(answer.as_numpy("OUT"), values)
    with triton_grpc.InferenceServerClient(
        f"localhost:{server.grpc.rpartition(':')[2]}", ssl=True, root_certificates=cert
    ) as client:
        np.testing.assert_array_equal(client.infer("wide", [tensor(triton_grpc, values)]).as_numpy("OUT"), values)
    with pytest.raises(OSError, match=r"."):
        urllib.request.urlopen(f"http://{server.http}/v2", timeout=60)
    server.stop()


def test_admin_listener_accepts_client_certificates_instead_of_a_token(folder: Path, tmp_path: Path) -> None:
    for name in ("server", "client", "stranger"):
        (tmp_path / name).mkdir()
        make_certificate(tmp_path / name)
    cert, key = str(tmp_path / "server" / "cert.pem"), str(tmp_path / "server" / "key.pem")
    control = ("--model-control", "explicit", "--admin-port", "0")
    authority = ("--admin-tls-clients", str(tmp_path / "client" / "cert.pem"))
    server = Server(folder, "--cores", "1", "--tls-cert", cert, "--tls-key", key, *control, *authority)

    def unload_status(name: str) -> int:
        context = ssl.create_default_context(cafile=cert)
        if name:
            context.load_cert_chain(tmp_path / name / "cert.pem", tmp_path / name / "key.pem")
        path = f"https://{server.admin}/v2/repository/models/wide/unload"
        with urllib.request.urlopen(urllib.request.Request(path, b"{}"), timeout=60, context=context) as answer:
            return int(answer.status)

    for name in ("", "stranger"):
        with pytest.raises(OSError, match=r"."):
            unload_status(name)
    with urllib.request.urlopen(
        f"https://{server.http}/v2/models/wide/ready", timeout=60, context=ssl.create_default_context(cafile=cert)
    ) as answer:
        assert answer.status == 200  # other ports need no certificate, and the model is still loaded
    assert unload_status("client") == 200
    server.stop()


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--tls-cert", "no.pem"), "--tls-key"),
        (("--tls-key", "no.pem"), "--tls-cert"),
        (("--tls-cert", "no.pem", "--tls-key", "no.pem"), "no.pem"),
    ],
)
def test_unusable_certificate_error_names_option_or_file(flags: tuple[str, ...], message: str) -> None:
    options = dict(zip(flags[::2], flags[1::2], strict=True))

    def use() -> None:
        files = tls_files(options.get("--tls-cert", ""), options.get("--tls-key", ""), "")
        assert files is not None
        tls_context(files, "h2")

    with pytest.raises(ConfigError, match=message):
        use()


def test_valid_pipelined_requests_are_answered_before_an_invalid_one_is_rejected(server: Server) -> None:
    with connect(server) as client:
        client.sendall(LIVE_REQUEST * 2 + b"NONSENSE\r\n\r\n" + LIVE_REQUEST)
        assert re.findall(rb"HTTP/1.1 (\d+)", receive_all(client)) == [b"200", b"200", b"400"]


def test_oversized_body_is_rejected_before_it_is_complete(server: Server) -> None:
    with connect(server) as client:
        client.sendall(b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n")
        with contextlib.suppress(ConnectionError):  # the server has closed its side and waits for a limited time
            client.sendall(bytes(50_000))
        assert receive_all(client).startswith(b"HTTP/1.1 413")


def test_total_size_of_incomplete_bodies_is_limited(server: Server) -> None:
    clients = [connect(server) for _ in range(12)]
    for client in clients:
        client.sendall(INCOMPLETE_REQUEST + bytes(89_999))
    answered, _, _ = select.select(clients, [], [], 60)
    refused = answered[0].recv(65536)
    for client in clients:
        client.close()
    assert refused.startswith(b"HTTP/1.1 429")
    assert b"\r\nRetry-After: 1\r\n" in refused
    values = np.arange(20_000, dtype=np.float32).reshape(1, -1)
    with triton_http.InferenceServerClient(server.http) as other_client:  # the budget of the other clients was returned
        np.testing.assert_array_equal(other_client.infer("wide", [tensor(triton_http, values)]).as_numpy("OUT"), values)


def test_large_request_and_response_bodies_are_compressed(server: Server) -> None:
    values = [float(number) for number in range(12_000)]
    tree = {"inputs": [{"name": "IN", "shape": [1, len(values)], "datatype": "FP32", "data": values}]}
    body = gzip.compress(json.dumps(tree).encode(), 0)
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    request = urllib.request.Request(f"http://{server.http}/v2/models/wide/infer", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        response = json.loads(gzip.decompress(answer.read()))
    assert response["outputs"][0]["data"] == values


def test_output_that_cannot_be_encoded_is_a_model_failure(server: Server) -> None:
    with triton_http.InferenceServerClient(server.http) as client:
        input_tensor = triton_http.InferInput("X", [1], "FP32")
        input_tensor.set_data_from_numpy(np.zeros(1, np.float32))
        with pytest.raises(triton_http.InferenceServerException, match="on purpose") as caught:
            client.infer("odd", [input_tensor])
    assert caught.value.status() == "500"


def test_cancelled_stream_is_stopped(server: Server) -> None:
    """The server has one core, so later requests would otherwise not be answered."""
    input_tensor = triton_grpc.InferInput("X", [1], "FP32")
    input_tensor.set_data_from_numpy(np.zeros(1, np.float32))
    received: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: received.put(error))
        client.async_stream_infer("endless", [input_tensor])
        for _ in range(200):  # more than the flow control allows
            assert received.get(timeout=60) is None
        client.stop_stream(cancel_requests=True)
        assert client.infer("plain", [input_tensor]).as_numpy("X").tolist() == [0.0]


def test_model_file_that_calls_exit_is_unavailable(server: Server) -> None:
    request = urllib.request.Request(f"http://{server.http}/v2/repository/index", b"{}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        states = {entry["name"]: entry for entry in json.loads(answer.read())}
    assert states["ends"]["state"] == "UNAVAILABLE"
    assert "SystemExit" in states["ends"]["reason"]
    assert states["plain"]["state"] == "READY"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{server.http}/v2/models/ends/ready")
    assert caught.value.code == 404
    caught.value.close()


def test_metrics_port_serves_metrics_only(server: Server) -> None:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
        assert b"cotenant_serve_ready 1" in page.read()
    for path, body in (("v2/models/wide/infer", b"{}"), ("v2/repository/index", b"{}"), ("v2", None)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{server.metrics}/{path}", body)
        assert caught.value.code == 404
        caught.value.close()


def test_open_file_limit_is_raised_up_to_the_hard_limit() -> None:
    """Runs in a process of its own with a low limit."""
    program = (
        "import resource; from cotenant.serve.frontend.server import allow_files; few = resource.RLIMIT_NOFILE; "
        "resource.setrlimit(few, (64, 256)); print(allow_files(100), resource.getrlimit(few), allow_files(999))"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "100 (100, 256) 256"


def test_grpc_health_check_service_is_answered(server: Server) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=60) == b"\x08\x01"
        assert check(b"\x0a\x1e" + b"inference.GRPCInferenceService", timeout=60) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\x0a\x05other", timeout=60)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
