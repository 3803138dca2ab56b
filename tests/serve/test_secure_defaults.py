"""Secure defaults: model control, tokens, origins, listing, readiness, exit codes and logs of a running server."""

import contextlib
import gzip
import json
import os
import socket
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
import onnx
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from tests.support.model_servers import BEARER, TOKEN, Server, explicit_control, identity
from tests.support.node_in_process import until

pytestmark = pytest.mark.live

EXECUTED = "executed"
"""The Python file below creates this file when it is executed."""
CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


def python_model(folder: Path, name: str, *, literal: bool = True) -> str:
    value = repr(name) if literal else f"''.join([{name!r}])"
    spec = 'inputs={"X": ("FP32", (1,))}, outputs={"X": ("FP32", (1,))}'
    return (
        f"import pathlib\nfrom cotenant.api import Model\n\n"
        f"pathlib.Path({str(folder / EXECUTED)!r}).touch()\n"
        f"model = Model(lambda tensors: tensors, name={value}, {spec})\n"
    )


def constant(path: Path, value: float, side: int = 64) -> None:
    """Write a model with external weights that returns its input times a constant."""
    weights = numpy_helper.from_array(np.eye(side, dtype=np.float32) * value, "W")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", side]) for name in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("MatMul", ["IN", "W"], ["OUT"])], "g", ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9)
    data = f"{path.stem}.data"
    (path.parent / data).unlink(missing_ok=True)
    onnx.save_model(model, str(path), save_as_external_data=True, location=data, size_threshold=0)


def fetch(address: str, path: str, tree: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
    body = None if tree is None else tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    request = urllib.request.Request(f"http://{address}/{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers), json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), json.loads(error.read() or b"null")


def infer(server: Server, model: str, values: list[float], **headers: str) -> tuple[int, dict[str, str], Any]:
    tree = {"inputs": [{"name": "IN", "shape": [1, len(values)], "datatype": "FP32", "data": values}]}
    return fetch(server.http, f"v2/models/{model}/infer", tree, **headers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secure")
    identity(folder / "same.onnx", "FP32")
    constant(folder / "times.onnx", 2.0)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    log = folder.parent / "access.log"
    server = Server(folder, *explicit_control(folder), "--access-log", str(log), "--connections", "64")
    yield server
    server.stop()


def test_truncated_weights_affect_no_loaded_model(server: Server, folder: Path) -> None:
    values = [1.0] * 64
    assert infer(server, "times", values)[2]["outputs"][0]["data"] == [2.0] * 64
    os.truncate(folder / "times.data", 0)
    for _ in range(3):
        assert infer(server, "times", values)[2]["outputs"][0]["data"] == [2.0] * 64
    status, _, error = fetch(server.admin, "v2/repository/models/times/load", {}, **BEARER)
    assert (status, "failed to load" in error["error"]) == (400, True)
    assert infer(server, "times", values)[2]["outputs"][0]["data"] == [2.0] * 64
    constant(folder / "times.onnx", 3.0)
    assert fetch(server.admin, "v2/repository/models/times/load", {}, **BEARER)[0] == 200
    assert infer(server, "times", values)[2]["outputs"][0]["data"] == [3.0] * 64
    constant(folder / "times.onnx", 2.0)
    assert fetch(server.admin, "v2/repository/models/times/load", {}, **BEARER)[0] == 200


@pytest.mark.parametrize("protocol", list(CLIENTS))
def test_clients_cannot_control_models(server: Server, protocol: str) -> None:
    with CLIENTS[protocol].InferenceServerClient(getattr(server, protocol)) as client:
        for action in (client.unload_model, client.load_model):
            with pytest.raises(InferenceServerException, match="admin listener only"):
                action("same", headers=BEARER)
        with pytest.raises(InferenceServerException, match="admin listener only"):
            client.update_log_settings({"log_info": False})
        assert client.is_model_ready("same")
    with CLIENTS[protocol].InferenceServerClient(server.admin) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}):
            with pytest.raises(InferenceServerException, match="requires a token"):
                client.unload_model("same", headers=headers)
        assert client.is_server_ready()
        client.unload_model("same", headers=BEARER)
        assert not client.is_model_ready("same", headers=BEARER)
        client.load_model("same", headers=BEARER)
        assert client.is_model_ready("same", headers=BEARER)


def test_listing_executes_no_code(server: Server, folder: Path) -> None:
    for literal in (True, False):
        path = folder / f"added_{literal}.py"
        path.write_text(python_model(folder, f"new_{literal}", literal=literal))
        status, _, index = fetch(server.http, "v2/repository/index", {})
        listed = {entry["name"]: entry["state"] for entry in index}
        assert listed[f"new_{literal}" if literal else path.stem] == "UNAVAILABLE"
        assert (status, (folder / EXECUTED).exists()) == (200, False)
        assert fetch(server.admin, f"v2/repository/models/new_{literal}/load", {}, **BEARER)[0] == 200
        assert (folder / EXECUTED).exists()
        (folder / EXECUTED).unlink()
        path.unlink()


@pytest.mark.parametrize("origin", ["https://example.org", "null", "http://127.0.0.1:8000"])
def test_requests_of_web_pages_are_refused(server: Server, origin: str) -> None:
    for path, tree in (
        ("v2/repository/models/same/unload", {}),
        ("v2/models/same/infer", {}),
        ("v2/models/same", None),
    ):
        for address in (server.http, server.admin):
            status, headers, error = fetch(address, path, tree, Origin=origin, **BEARER)
            assert (status, "--allow-origin" in error["error"]) == (403, True)
            assert "Access-Control-Allow-Origin" not in headers
    assert infer(server, "same", [1.0] * 4)[0] == 200


def test_idle_connections_lock_no_client_out(server: Server) -> None:
    host, port = server.http.split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(300):  # of which 64 are allowed
            stack.enter_context(socket.create_connection((host, int(port)), 60))
        assert infer(server, "same", [1.0] * 4)[0] == 200
        assert fetch(server.http, "v2/health/ready")[0] == 200
        assert fetch(server.metrics, "v2/health/live")[0] == 200


def test_large_json_is_decoded_in_another_process(server: Server, folder: Path) -> None:
    identity(folder / "large.onnx", "FP32", ["N", "M"])
    assert fetch(server.admin, "v2/repository/models/large/load", {}, **BEARER)[0] == 200
    values = [index * 0.5 for index in range(200_000)]
    tree = {"inputs": [{"name": "IN", "shape": [1, len(values)], "datatype": "FP32", "data": values}]}
    body = json.dumps(tree).encode()
    for content, headers in ((body, {}), (gzip.compress(body), {"Content-Encoding": "gzip"})):
        status, _, answer = fetch(server.http, "v2/models/large/infer", content, **headers)
        assert (status, answer["outputs"][0]["data"]) == (200, values)
    tree["inputs"][0]["data"] = [*values[:-1], "x"]
    status, _, answer = fetch(server.http, "v2/models/large/infer", tree)
    assert (status, "element 199999" in answer["error"]) == (400, True)
    status, _, answer = fetch(server.http, "v2/models/large/infer", b'{"inputs": [' + b"1," * 200_000)
    assert (status, "not a valid inference request" in answer["error"]) == (400, True)


def test_log_and_trace_settings_are_answered(server: Server) -> None:
    with tritonclient.http.InferenceServerClient(server.admin) as http_client:
        assert http_client.get_log_settings(headers=BEARER)["log_info"] is True
        assert http_client.update_log_settings({"log_info": False}, headers=BEARER)["log_info"] is False
        http_client.update_log_settings({"log_info": True}, headers=BEARER)
        assert http_client.get_trace_settings(headers=BEARER)["trace_level"] == ["OFF"]
        changed = http_client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]}, headers=BEARER)
        assert changed["trace_level"] == ["TIMESTAMPS"]
        with pytest.raises(InferenceServerException, match="cannot be changed"):
            http_client.update_log_settings({"log_file": "/tmp/x"}, headers=BEARER)
    with tritonclient.grpc.InferenceServerClient(server.admin) as grpc_client:
        settings = grpc_client.get_trace_settings(headers=BEARER, as_json=True)["settings"]
        assert settings["trace_level"]["value"] == ["TIMESTAMPS"]
        grpc_client.update_trace_settings(settings={"trace_level": ["OFF"]}, headers=BEARER)
        settings = grpc_client.get_log_settings(headers=BEARER, as_json=True)["settings"]
        assert settings["log_error"]["bool_param"] is True
    status, _, settings = fetch(server.http, "v2/models/same/trace/setting")
    assert (status, settings["trace_level"]) == (200, ["OFF"])
    assert fetch(server.http, "v2/logging")[2]["log_format"] == "default"


def test_access_log_has_a_line_for_each_request(server: Server, folder: Path) -> None:
    path = folder.parent / "access.log"
    fetch(server.http, "v2/models/logged-by-http")
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.is_server_live()
    path.rename(path.with_suffix(".1"))  # as logrotate does
    fetch(server.http, "v2/models/logged-after-rotation")
    until(lambda: path.exists() and "logged-after-rotation" in path.read_text())
    lines = [json.loads(line) for file in (path.with_suffix(".1"), path) for line in file.read_text().splitlines()]
    by_target = {line["target"]: line for line in lines}
    assert by_target["/v2/models/logged-by-http"]["status"] == 404
    assert by_target["/inference.GRPCInferenceService/ServerLive"]["protocol"] == "grpc"
    assert all(line["client"] == "127.0.0.1" and line["seconds"] >= 0 for line in lines)


def test_token_protects_everything_but_health(tmp_path: Path) -> None:
    models = tmp_path / "models"
    identity(models / "same.onnx", "FP32")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    server = Server(models, "--token-file", str(token), "--allow-origin", "https://example.org", "--host", "0.0.0.0")
    try:
        _check_token(server)
    finally:
        server.terminate()
        code, log = server.ended()
    assert (code, "clear text" in log) == (0, True)


def _check_token(server: Server) -> None:
    assert fetch(server.http, "v2/health/ready")[0] == 200
    assert fetch(server.metrics, "v2/health/live")[0] == 200
    for address, path in ((server.http, "v2/models/same"), (server.metrics, "metrics"), (server.http, "metrics")):
        status, headers, _ = fetch(address, path)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    status, headers, _ = infer(server, "same", [1.0] * 4, Origin="https://example.org", **BEARER)
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://example.org")
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="requires a token"):
            client.get_model_metadata("same")
        assert client.get_model_metadata("same", headers=BEARER).name == "same"


def test_listening_on_the_network_without_a_token_is_warned_about(tmp_path: Path) -> None:
    identity(tmp_path / "models" / "same.onnx", "FP32")
    server = Server(tmp_path / "models", "--host", "0.0.0.0")
    assert server.admin.endswith(":-1")
    assert fetch(server.http, "v2/repository/models/same/unload", {})[0] == 403
    server.terminate()
    assert "everyone who reaches 0.0.0.0 may use the models" in server.ended()[1]


def run_until_exit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cotenant", "serve", "run", str(folder), "--http-port", "0", "--grpc-port", "0"]
    environ = {**os.environ, "COTENANT_DIRECTORY": f"{folder}-node"}
    command += ["--metrics-port", "0", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_server_whose_models_are_all_broken_exits_or_is_not_ready(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "broken.onnx").write_bytes(b"no model at all")
    ended = run_until_exit(folder)
    assert ended.returncode == 1
    assert "failed to load 'broken'" in ended.stderr
    assert "no model could be loaded" in ended.stderr
    server = Server(folder, "--model-control", "poll", "--poll-interval", "50ms")
    assert fetch(server.http, "v2/health/ready")[0] == 503
    assert fetch(server.http, "v2/health/live")[0] == 200
    identity(folder / "broken.onnx", "FP32")  # repaired
    until(lambda: fetch(server.http, "v2/health/ready")[0] == 200)
    assert infer(server, "broken", [1.0] * 4)[0] == 200
    constant(folder / "added.onnx", 2.0)
    until(lambda: infer(server, "added", [1.0] * 64)[0] == 200)
    constant(folder / "added.onnx", 3.0)  # changed: replaced without a failed request
    answers = []

    def is_replaced() -> bool:
        status, _, tree = infer(server, "added", [1.0] * 64)
        answers.append((status, tree["outputs"][0]["data"][0]))
        return answers[-1] == (200, 3.0)

    until(is_replaced)
    assert set(answers) <= {(200, 2.0), (200, 3.0)}
    (folder / "added.onnx").unlink()
    until(lambda: infer(server, "added", [1.0] * 64)[0] == 404)
    assert fetch(server.http, "v2/repository/models/broken/unload", {})[0] == 403
    server.terminate()
    code, log = server.ended()
    assert code == 0
    for line in ("loaded 'broken'", "loaded 'added'", "reloaded 'added'", "unloaded 'added'"):
        assert line in log


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--model-control", "always"), "choose one of none, explicit, poll"),
        (("--token-file", "/nonexistent"), "--token-file = '/nonexistent'"),
        (("--admin-tls-clients", "ca.pem", "--model-control", "explicit"), "name the certificate with --tls-cert"),
        (("--idle-timeout", "soon"), "--idle-timeout"),
        (("--client-connections", "0"), "choose 1 to 1000000"),
        (("--access-log", "/nonexistent/log"), "--access-log = '/nonexistent/log'"),
    ],
)
def test_unusable_options_are_refused_with_their_name(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    save_model = tmp_path / "models" / "same.onnx"
    identity(save_model, "FP32")
    ended = run_until_exit(save_model.parent, *flags)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert message in ended.stderr
