"""Operation of a server: misbehaving clients, shutdown and Triton repositories."""

import contextlib
import json
import re
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
from cotenant_lab.bench.server.bench import CALLABLE, _Contender, _message
from cotenant_lab.loadgen.closed_loop import LoadSpec, put_under_load
from tests.support.model_servers import HELD, Server, add_and_subtract, make_models
from tests.support.node_in_process import until

pytestmark = pytest.mark.live

TRITON = """
name: "pair"
platform: "onnxruntime_onnx"
max_batch_size: 16
input [ { name: "A" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 3 ] } ]
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100 }
optimization { priority: PRIORITY_MAX }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    (folder / "identity.py").write_text(CALLABLE)
    for version in ("1", "3"):
        (folder / "pair" / version).mkdir(parents=True)
        add_and_subtract(folder / "pair" / version / "model.onnx")
    (folder / "pair" / "config.pbtxt").write_text(TRITON)
    (folder / "pair" / "cotenant.toml").write_text('slo = "5s"\npriority = 2\n')
    for version in ("1", "2", "4"):
        (folder / "chosen" / version).mkdir(parents=True)
    add_and_subtract(folder / "chosen" / "2" / "weights.onnx")
    add_and_subtract(folder / "chosen" / "4" / "model.onnx")
    chosen = 'default_model_filename: "weights.onnx" version_policy { specific { versions: 2 } }'
    (folder / "chosen" / "config.pbtxt").write_text(chosen)
    (folder / "odd" / "1").mkdir(parents=True)
    add_and_subtract(folder / "odd" / "1" / "model.onnx")
    (folder / "odd" / "config.pbtxt").write_text('input { name: "A" data_type: TYPE_INT8 dims: 3 }')
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    yield server
    server.terminate()
    code, log = server.ended()
    assert code == 0, log
    assert "Traceback" not in log, log
    assert "config.pbtxt of pair is only partly applied" in log


def ask(address: str, path: str, tree: Any = None) -> Any:
    body = None if tree is None else json.dumps(tree).encode()
    with urllib.request.urlopen(urllib.request.Request(f"http://{address}/{path}", body), timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def sleep_for(seconds: float) -> Any:
    return {"inputs": [{"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [seconds]}]}


def works(server: Server) -> bool:
    tree = {"inputs": [{"name": "IN", "shape": [1, 4], "datatype": "INT64", "data": [1, 2, 3, 4]}]}
    return bool(ask(server.http, "v2/models/id_int64/infer", tree)["outputs"][0]["data"] == [1, 2, 3, 4])


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 60)


@pytest.mark.parametrize("listener", ["http", "grpc"])
@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: a\r\nContent-Le"])
def test_vanishing_or_invalid_clients_do_not_affect_others(server: Server, listener: str, data: bytes) -> None:
    for _ in range(20):
        with connect(getattr(server, listener)) as client:
            client.sendall(data)
    assert works(server)


def test_client_that_never_reads_does_not_block_others(server: Server) -> None:
    requests = b"GET /v2/models/stats HTTP/1.1\r\nHost: a\r\n\r\n" * 200
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", int(server.http.rpartition(":")[2])))
        client.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 64 << 20:
                sent += client.send(requests)
        assert sent < 64 << 20, "a client may not fill the server's memory with answers it does not read"
        assert works(server)


def test_requests_on_one_connection_are_answered_in_order(server: Server) -> None:
    paths = ("v2/health/live", "v2/models/pair/ready", "v2", "v2/models/nobody", "v2/health/ready")
    with connect(server.http) as client:
        client.sendall(b"".join(f"GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n".encode() for path in paths[:-1]))
        client.sendall(f"GET /{paths[-1]} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        responses = b""
        while part := client.recv(65536):
            responses += part
    assert re.findall(rb"HTTP/1.1 (\d+)", responses) == [b"200", b"200", b"200", b"404", b"200"]


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("concurrency", [1, 6])
def test_load_generator_gets_answers(server: Server, kind: str, concurrency: int) -> None:
    port = int(getattr(server, kind).rpartition(":")[2])
    answers = put_under_load(LoadSpec(kind, port, concurrency, 0.1, _message(_Contender("", kind, "identity", ()))))
    assert answers.requests > 0
    assert 0 < answers.p50_us <= answers.p99_us


def test_triton_repository_is_served_with_its_config(server: Server) -> None:
    config = ask(server.http, "v2/models/pair/config")
    assert (config["max_batch_size"], config["dynamic_batching"]["preferred_batch_size"]) == (16, [4])
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    metadata = ask(server.http, "v2/models/pair/versions/3")
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["SUM"]
    rows = np.ones((2, 3), np.float32).tolist()
    inputs = [{"name": name, "shape": [2, 3], "datatype": "FP32", "data": rows} for name in "AB"]
    answer = ask(server.http, "v2/models/pair/infer", {"inputs": inputs, "id": "x"})
    assert answer["outputs"][0]["data"] == [2.0] * 6
    assert (answer["id"], answer["model_version"]) == ("x", "3")


def test_configured_file_and_version_are_served(server: Server) -> None:
    assert ask(server.http, "v2/models/chosen")["versions"] == ["2"]


def test_config_that_contradicts_its_model_is_unavailable(server: Server) -> None:
    states = {entry["name"]: entry for entry in ask(server.http, "v2/repository/index", {})}
    assert states["odd"]["state"] == "UNAVAILABLE"
    assert "'A'" in states["odd"]["reason"]
    assert "INT8" in states["odd"]["reason"]


def test_check_lists_settings_that_differ_from_triton(folder: Path) -> None:
    process = run("serve", "run", str(folder), "--check", "--json")
    differences = json.loads(process.stdout)
    assert any("optimization" in line for line in differences["pair"])
    by_policy = [
        line
        for line in differences["pair"]
        if "not used by dstack, the default policy, which chooses batches itself" in line
    ]
    assert [line.partition(":")[0].partition(".")[2] for line in by_policy] == [
        "max_queue_delay_microseconds",
        "preferred_batch_size",
    ]
    assert not any("left to the policy" in line for line in differences["chosen"])
    assert any("INT8" in line for line in differences["odd"])
    assert differences["both"] == []


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cotenant", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("no-such-folder",), "no-such-folder"),
        ((".", "--policy", "best"), "fifo"),
        ((".", "--tenants", "perhaps"), "auto or yes or no"),
        ((".", "--workers", "0"), "--workers"),
        ((".", "--http-port", "70000"), "70000"),
        ((".", "--body", "much"), "--body"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    process = run("serve", "run", *arguments)
    assert process.returncode == 2
    assert message in process.stderr
    assert process.stderr.count("\n") == 1


def test_plan_without_models_is_reported_in_one_line(tmp_path: Path) -> None:
    assert "--url" in run("serve", "plan", "http://127.0.0.1:1").stderr
    process = run("serve", "plan", str(tmp_path))
    assert process.returncode == 2
    assert "no models" in process.stderr
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize("package", ["onnxruntime", "google.protobuf"])
@pytest.mark.parametrize(
    "command,arguments", [("cotenant", ["serve", "run", "."]), ("cotenant_lab", ["bench", "server"])]
)
def test_missing_package_is_reported_by_name(package: str, command: str, arguments: list[str]) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None; from {command}.cli import main; sys.exit(main({arguments!r}))"
    )
    process = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)
    assert process.returncode == 69, process.stderr
    assert package in process.stderr
    assert process.stderr.count("\n") == 1


def test_metrics_have_triton_names(server: Server) -> None:
    assert works(server)
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
        lines = page.read().decode().splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    labels = '{model="id_int64",version="1"}'
    assert values[f"nv_inference_request_success{labels}"] >= 1
    assert values[f"nv_inference_count{labels}"] >= values[f"nv_inference_exec_count{labels}"] >= 1
    assert values["cotenant_serve_ready"] == 1


def test_active_request_is_answered_before_shutdown(tmp_path: Path) -> None:
    make_models(tmp_path)
    (tmp_path / HELD).touch()
    server = Server(tmp_path, "--cores", "1")
    body = json.dumps(sleep_for(0)).encode()
    head = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connect(server.http) as first, connect(server.http) as second:
        first.sendall(head + body)
        second.sendall(
            b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
        )  # its answer shows that the first was admitted
        assert second.recv(65536).startswith(b"HTTP/1.1 200")
        server.terminate()

        def is_ready() -> bool:
            second.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n")
            return not second.recv(65536).startswith(b"HTTP/1.1 503")

        until(lambda: not is_ready())
        second.sendall(head + body)
        refused = second.recv(65536)
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"Retry-After" in refused
        (tmp_path / HELD).unlink()
        assert first.recv(65536).startswith(b"HTTP/1.1 200")
    code, log = server.ended()
    assert code == 0, log
    with pytest.raises(OSError, match=r"refused|reset"):
        connect(server.http).close()
