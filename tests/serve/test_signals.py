"""A server handles signals in every phase."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("google.protobuf")
from tests.support.model_servers import HELD, Server, write_callables
from tests.support.node_in_process import until

pytestmark = pytest.mark.live

SLOW = """
import pathlib
import time

from cotenant.api import Model

home = pathlib.Path(__file__).parent
if (home / "seen").exists():  # the first import only lists the models
    (home / "loading").touch()
    time.sleep(600)
(home / "seen").touch()
m = Model(lambda tensors: tensors, name="m", inputs={"X": ("FP32", (1,))}, outputs={"X": ("FP32", (1,))})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_model_loading_stops_the_server(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "slow.py").write_text(SLOW)
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--cores", "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "cotenant", "serve", "run", str(tmp_path / "models"), *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COTENANT_DIRECTORY": str(tmp_path / "node")},
    )
    until((tmp_path / "models" / "loading").exists)
    process.send_signal(number)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert b"stopped while models were loading" in log
    assert b"Traceback" not in log


def test_second_signal_abandons_active_requests(tmp_path: Path) -> None:
    write_callables(tmp_path)
    (tmp_path / HELD).touch()
    server = Server(tmp_path, "--cores", "1", "--drain", "10min")
    tree = {"inputs": [{"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [0]}]}
    body = json.dumps(tree).encode()
    head = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    port = int(server.http.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), 60) as first,
        socket.create_connection(("127.0.0.1", port), 60) as second,
    ):

        def is_ready() -> bool:
            second.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n")
            return second.recv(65536).startswith(b"HTTP/1.1 200")

        first.sendall(head + body)
        assert is_ready()  # its answer shows that the first was admitted
        server.terminate()
        until(lambda: not is_ready())
        server.terminate()
        code, log = server.ended()
    assert code == 75, log
    assert "second stop signal" in log
    assert "Traceback" not in log
