"""Spans of requests are in the timeline, and are written only while a reader is active."""

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("google.protobuf")
from cotenant.api import Model
from cotenant.serve.frontend.engine import Engine
from cotenant.serve.frontend.spans import SpanReader
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.protocol.oip.infer import InferError, InferRequest, RequestInput
from cotenant.serve.runtime.python import PythonModel
from cotenant.serve.runtime.runtime import CpuRuntime
from cotenant.serve.state.server import ServerSettings
from cotenant.trace.recording import RequestEnd
from tests.support.model_servers import Server, write_callables
from tests.support.trace_event_rules import check

pytestmark = pytest.mark.live

ROW = RequestInput("X", "FP32", (1, 1), np.zeros((1, 1), np.float32).tobytes())
SIDE = (TensorSpec("X", Datatype.FP32, (-1, 1)),)


class CountedReply:
    """A reply that is only counted."""

    streams = False

    def __init__(self, received: asyncio.Event) -> None:
        self._received = received

    def send_response(self, request: InferRequest, spec: ModelSpec, outputs: list[Any]) -> None:
        self._received.set()

    def send_error(self, error: InferError) -> None:
        self._received.set()

    def end(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("inline", [False, True])
def test_spans_are_written_only_while_a_reader_is_active(tmp_path: Path, inline: bool) -> None:
    async def main() -> None:
        engine = Engine(ServerSettings(units=1), CpuRuntime((0,)), asyncio.get_running_loop(), spans=tmp_path)
        sides = {"X": ("FP32", (1,))}
        model = Model(lambda tensors: tensors, name="m", inputs=sides, outputs=sides, inline=inline)
        engine.serve(PythonModel(ModelSpec("m", "1", "test", SIDE, SIDE, 4, slo_ns=60 * 10**9), model))

        async def send_request() -> None:
            received = asyncio.Event()
            engine.submit(InferRequest("m", "", "", (ROW,), ()), CountedReply(received))
            await asyncio.wait_for(received.wait(), 60)

        reader = SpanReader(tmp_path)
        await send_request()
        reader.read_new(follow=True)
        assert reader.servers()[0].requests == []
        await send_request()
        await send_request()
        reader.read_new(follow=True)
        (server,) = reader.servers()
        reader.close()
        engine.close()
        assert [request.end for request in server.requests] == [RequestEnd.ANSWERED] * 2
        assert [request.model for request in server.requests] == ["m", "m"]
        for request in server.requests:
            assert (
                request.arrived_ns <= request.chosen_ns <= request.began_ns <= request.ended_ns <= request.answered_ns
            )
            assert (request.run > 0) is not inline
        statistics = engine.statistics["m"]
        assert (statistics.offered, statistics.admitted, statistics.in_time) == (3, 3, 3)

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_server_requests_appear_in_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_DIRECTORY", str(tmp_path / "node"))
    models = tmp_path / "models"
    models.mkdir()
    write_callables(models)
    (models / "slow.toml").write_text('slo = "1min"\n')
    server = Server(models, "--cores", "1", "--trace", "always")

    def ask(model: str, name: str, shape: list[int]) -> int:
        tree = {"inputs": [{"name": name, "shape": shape, "datatype": "FP32", "data": [0.0]}]}
        request = urllib.request.Request(f"http://{server.http}/v2/models/{model}/infer", json.dumps(tree).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    assert [ask("slow", "SECONDS", [1, 1]), ask("slow", "SECONDS", [1, 1]), ask("fails", "X", [1])] == [200, 200, 500]
    file = tmp_path / "trace.json"
    command = [sys.executable, "-m", "cotenant", "trace", "--last", "-o", str(file), "--json"]
    summary = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    assert (summary["servers"], summary["requests"], summary["lost"]) == (1, 3, 0)
    trace = check(file.read_bytes())
    spans = [event for event in trace.traceEvents if event.ph == "X"]
    assert {span.name for span in spans if span.cat == "run"} == {"slow x1", "fails x1"}
    assert {span.args["end"] for span in spans if span.cat == "request"} == {"answered", "failed"}
    assert {"slow: queue", "slow: run", "slow: answer"} <= {span.name for span in spans}
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
        lines = page.read().decode().splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    labels = 'model="slow",version="1"'
    for word in ("offered", "admitted", "in_time"):
        assert values[f"cotenant_serve_{word}_total{{{labels}}}"] == 2
    assert values[f'cotenant_serve_attainment{{{labels},of="offered"}}'] == 1
    assert values[f'cotenant_serve_run_rows_bucket{{{labels},le="1"}}'] == 2
    assert values[f"cotenant_serve_units_in_use{{{labels}}}"] == 0
    assert values["cotenant_serve_units"] == 1
    assert values[f"cotenant_serve_answer_lag_seconds_count{{{labels}}}"] == 2
    assert values['cotenant_serve_clients{listener="metrics"}'] == 1
    server.stop()
