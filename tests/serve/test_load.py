"""The load generator sends every request on time and counts each in exactly one outcome."""

import gzip
import json
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from cotenant.errors import ConfigError, WorldError
from cotenant.serve.commands.load import LoadArguments, offer_load
from cotenant.serve.load import open_loop
from cotenant.serve.load.connections import ConnectionPool, Endpoint, endpoint_of, open_connections
from cotenant.serve.load.open_loop import (
    ClosedLoopSource,
    LoadGenerator,
    LoadReport,
    MeasureWindow,
    OpenLoopSource,
    RequestSource,
)
from cotenant.serve.model.goodput import Goodput
from cotenant.serve.protocol.grpc.client import length_prefixed
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from tests.support.model_servers import Server, identity
from tests.support.node_in_process import until

pytestmark = pytest.mark.live

CALLABLES = """
import time

from cotenant.api import Model


def _nap(tensors):
    time.sleep(0.02)
    return tensors


def _fails(tensors):
    raise RuntimeError("on purpose")


slow = Model(_nap, name="slow", inputs={"X": ("FP32", (1,))}, outputs={"X": ("FP32", (1,))})
fails = Model(_fails, name="fails", inputs={"X": ("FP32", (1,))}, outputs={"X": ("FP32", (1,))})
"""

ARGUMENTS = LoadArguments("", (), "poisson", "", "300ms", "0ms", (), "60s", False, 1, (), 64, 0)
MS = MILLISECOND_NS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    identity(folder / "wide.onnx", "FP32", ["N", "M"])
    identity(folder / "words.onnx", "BYTES")
    (folder / "callables.py").write_text(CALLABLES)
    (folder / "slow.toml").write_text("queue = 1\n")
    model_server = Server(folder)
    yield model_server
    model_server.stop()


def offered(report: LoadReport, model: str) -> Goodput:
    goodput = next(candidate for candidate in report.models if candidate.model == model)
    assert goodput.offered == goodput.answered + goodput.refused + goodput.failed + goodput.expired + goodput.unsent
    assert goodput.in_time <= goodput.answered
    return goodput


@pytest.mark.parametrize("arrival", ["poisson", "bursty", "constant"])
@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_every_request_is_answered(server: Server, kind: str, arrival: str) -> None:
    url = f"{kind}://{getattr(server, kind)}"
    arguments = msgspec.structs.replace(
        ARGUMENTS,
        url=url,
        models=("wide=200", "words=100"),
        arrival=arrival,
        shape=("IN:5000",),
        slo=("1h",),
        tell_slo=True,
    )
    report = offer_load(arguments, lambda _: None)
    for model in ("wide", "words"):
        goodput = offered(report, model)
        assert goodput.offered == goodput.answered == goodput.in_time > 0
    assert sum(report.statuses.values()) == sum(goodput.offered for goodput in report.models)
    second_report = offer_load(arguments, lambda _: None)
    assert [goodput.offered for goodput in second_report.models] == [goodput.offered for goodput in report.models]


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_rejections_and_failures_are_counted_separately(server: Server, kind: str) -> None:
    url = f"{kind}://{getattr(server, kind)}"
    arguments = msgspec.structs.replace(ARGUMENTS, url=url, models=("slow=300", "fails=30"), slo=("slow=1ms",))
    report = offer_load(arguments, lambda _: None)
    assert offered(report, "fails").failed == offered(report, "fails").offered > 0
    slow = offered(report, "slow")
    assert slow.refused > 0  # a queue of one, runs of 20 ms, and requests every 3 ms
    assert slow.failed == 0
    assert slow.admitted == slow.answered + slow.refused_late
    statuses = ("INTERNAL", "RESOURCE_EXHAUSTED") if kind == "grpc" else ("500", "429")
    assert report.statuses[statuses[0]] == offered(report, "fails").failed
    assert report.statuses[statuses[1]] == slow.refused


def test_invalid_arguments_are_rejected_with_reason(server: Server) -> None:
    url = f"http://{server.http}"
    for change, message in (
        ({"models": ("nope",)}, "has no such model"),
        ({"models": ("wide",)}, "--shape"),
        ({"models": ("slow=-1",)}, "--model"),
        ({"models": ("slow", "slow")}, "twice"),
        ({"models": ("slow",), "slo": ("other=3ms",)}, "choose among slow"),
        ({"models": ("slow",), "tell_slo": True}, "--slo"),
        ({"models": ("slow",), "arrival": "trace"}, "--trace"),
        ({"models": ("slow",), "trace": "x"}, "--arrival"),
        ({"models": ("slow",), "arrival": "trace", "trace": "/nowhere.csv.gz"}, "--trace"),
        ({"models": ("slow",), "shape": ("x",)}, "--shape"),
        ({"models": ("slow",), "shape": ("Y:3",)}, "no requested model has an input"),
        ({"models": ("slow",), "rows": 0}, "--rows"),
    ):
        with pytest.raises(ConfigError, match=message):
            offer_load(msgspec.structs.replace(ARGUMENTS, **{"url": url, **change}), lambda _: None)
    for url_text in ("ftp://x:1", "http://x", "x:0", ""):
        with pytest.raises(ConfigError, match="URL"):
            endpoint_of(url_text)
    assert endpoint_of("[::1]:80").authority == "[::1]:80"
    with pytest.raises(WorldError, match="check that it speaks http"):
        offer_load(msgspec.structs.replace(ARGUMENTS, url=server.grpc, models=("wide",)), lambda _: None)


def test_load_command_prints_json(server: Server) -> None:
    arguments = (
        "load",
        f"grpc://{server.grpc}",
        "--model",
        "words=50",
        "--duration",
        "200ms",
        "--warm-up",
        "0ms",
        "--json",
    )
    process = subprocess.run(
        [sys.executable, "-m", "cotenant", *arguments], capture_output=True, timeout=120, check=True
    )
    (goodput,) = json.loads(process.stdout.splitlines()[-1])["models"]
    assert goodput["offered"] == goodput["answered"] > 0


class ScriptedServer:
    """An HTTP server with scripted responses: b"" closes the connection, None waits."""

    def __init__(self, answers: list[bytes | None]) -> None:
        self._answers = iter(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.held: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._client, args=(client,), daemon=True).start()

    def _client(self, client: socket.socket) -> None:
        while client.recv(1000):
            with self._lock:
                answer = next(self._answers, b"")
            if answer is None:
                self.held.append(client)
                return
            if not answer:
                break
            client.sendall(answer)
        client.close()

    def close(self) -> None:
        self._listener.close()
        for client in self.held:
            client.close()


class SteppedLoadGenerator(LoadGenerator):
    """A load test whose clock stops while a response is in transit; a response takes a millisecond."""

    def __init__(
        self, scripted: ScriptedServer, pool: ConnectionPool, targets: list[tuple[str, int]], window: MeasureWindow
    ) -> None:
        super().__init__(pool, targets, window)
        self._scripted = scripted
        self._at_ns = 0

    def run(self, source: RequestSource, on_progress: Callable[[float], None] = lambda _: None) -> LoadReport:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(open_loop, "monotonic_ns", lambda: self._at_ns)
            patch.setattr(open_loop, "select", self)
            return super().run(source, on_progress)

    def select(self, ready: Sequence[int], _w: object, _x: object, timeout_s: float) -> None:
        """Replacement of the select module: wait, or advance the clock if there is nothing to wait for."""
        while self._is_awaited():
            if select.select(ready, (), (), 0.01)[0]:
                self._at_ns += MS
                return
        self._at_ns += round(timeout_s * SECOND_NS)

    def _is_awaited(self) -> bool:
        unanswered = len(self._scripted.held) - self._statuses.get("expired", 0)
        return len(self._in_flight) - len(self._backlog) > unanswered


def response(status: int, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d x\r\nContent-Length: 2\r\n%s\r\nok" % (status, headers)


def test_each_outcome_of_a_request_is_counted_separately() -> None:
    answers = [
        response(200),
        response(503),
        response(429),
        response(500),
        b"",
        response(200, b"Connection: close\r\n"),
        None,
        response(200),
    ]
    scripted = ScriptedServer(answers)
    pool = open_connections(Endpoint("http", "127.0.0.1", scripted.port), [b"x"], 4)
    sends = iter([(index * 40 * MS, 0) for index in range(len(answers))])
    window = MeasureWindow(0, SECOND_NS, 200 * MS)
    report = SteppedLoadGenerator(scripted, pool, [("m", 0)], window).run(OpenLoopSource(sends))
    pool.close()
    scripted.close()
    goodput = offered(report, "m")
    assert (goodput.answered, goodput.refused, goodput.failed, goodput.expired, goodput.unsent) == (3, 2, 2, 1, 0)
    assert report.statuses == {"200": 3, "429": 1, "500": 1, "503": 1, "broken connection": 1, "expired": 1}


def test_wait_for_a_connection_counts_as_latency() -> None:
    scripted = ScriptedServer([None, response(200)])
    pool = open_connections(Endpoint("http", "127.0.0.1", scripted.port), [b"x"], 1)
    window = MeasureWindow(0, 9 * SECOND_NS, SECOND_NS)
    sends = iter([(0, 0), (800 * MS, 0), (800 * MS, 0)])
    report = SteppedLoadGenerator(scripted, pool, [("m", 900 * MS)], window).run(OpenLoopSource(sends))
    pool.close()
    scripted.close()
    goodput = offered(report, "m")
    assert (goodput.answered, goodput.expired, goodput.failed) == (1, 1, 1)
    assert goodput.late_sends >= 1


def test_closed_loop_clients_alternate_between_models() -> None:
    scripted = ScriptedServer([response(200)] * 1000)
    pool = open_connections(Endpoint("http", "127.0.0.1", scripted.port), [b"x", b"y"], 8)
    window = MeasureWindow(0, 100 * MS, SECOND_NS)
    report = SteppedLoadGenerator(scripted, pool, [("x", 0), ("y", 0)], window).run(ClosedLoopSource(2, 2, 100 * MS))
    pool.close()
    scripted.close()
    counts = [offered(report, name).offered for name in ("x", "y")]
    assert abs(counts[0] - counts[1]) <= 2
    assert min(counts) > 1


def test_trace_arrivals_are_replayed(server: Server, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl.gz"
    trace.write_bytes(gzip.compress(b"".join(b'{"timestamp": %d}\n' % (index * index) for index in range(50))))
    arguments = msgspec.structs.replace(
        ARGUMENTS, url=server.http, models=("words=100",), arrival="trace", trace=str(trace)
    )
    assert offered(offer_load(arguments, lambda _: None), "words").answered == 30


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_grpc_client_works_with_the_grpc_aio_server() -> None:
    """A grpc.aio server, whose windows are smaller than the messages and whose headers are encoded differently."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as grpc does, so that the port stays reserved
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "cotenant_lab.competitors.bare_grpc", str(port)])
    try:
        until(lambda: process.poll() is not None or listens(port))
        messages = [length_prefixed(b"a" * 300_000), length_prefixed(b"b")]
        pool = open_connections(Endpoint("grpc", "127.0.0.1", port), messages, 2)
        sends = iter([(index * 2 * MS, index % 2) for index in range(100)])
        report = LoadGenerator(pool, [("large", 0), ("small", 0)], MeasureWindow(0, SECOND_NS, 90 * SECOND_NS)).run(
            OpenLoopSource(sends)
        )
        pool.close()
    finally:
        process.kill()
        process.wait()
        reserved.close()
    assert [offered(report, name).answered for name in ("large", "small")] == [50, 50]
