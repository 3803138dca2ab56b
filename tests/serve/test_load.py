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
from cotenant.serve.load import open_loop as load_room
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

GIVEN = LoadArguments("", (), "poisson", "", "300ms", "0ms", (), "60s", False, 1, (), 64, 0)
MS = MILLISECOND_NS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    identity(folder / "wide.onnx", "FP32", ["N", "M"])
    identity(folder / "words.onnx", "BYTES")
    (folder / "callables.py").write_text(CALLABLES)
    (folder / "slow.toml").write_text("queue = 1\n")
    made = Server(folder)
    yield made
    made.stop()


def offered(loaded: LoadReport, model: str) -> Goodput:
    found = next(one for one in loaded.models if one.model == model)
    assert found.offered == found.answered + found.refused + found.failed + found.expired + found.unsent
    assert found.in_time <= found.answered
    return found


@pytest.mark.parametrize("arrival", ["poisson", "bursty", "constant"])
@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_every_request_is_answered(server: Server, kind: str, arrival: str) -> None:
    url = f"{kind}://{getattr(server, kind)}"
    given = msgspec.structs.replace(
        GIVEN,
        url=url,
        models=("wide=200", "words=100"),
        arrival=arrival,
        shape=("IN:5000",),
        slo=("1h",),
        tell_slo=True,
    )
    loaded = offer_load(given, lambda _: None)
    for model in ("wide", "words"):
        found = offered(loaded, model)
        assert found.offered == found.answered == found.in_time > 0
    assert sum(loaded.statuses.values()) == sum(one.offered for one in loaded.models)
    again = offer_load(given, lambda _: None)
    assert [one.offered for one in again.models] == [one.offered for one in loaded.models]


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_refusals_and_failures_are_counted_apart(server: Server, kind: str) -> None:
    url = f"{kind}://{getattr(server, kind)}"
    given = msgspec.structs.replace(GIVEN, url=url, models=("slow=300", "fails=30"), slo=("slow=1ms",))
    loaded = offer_load(given, lambda _: None)
    assert offered(loaded, "fails").failed == offered(loaded, "fails").offered > 0
    slow = offered(loaded, "slow")
    assert slow.refused > 0  # a queue of one, runs of 20 ms, and requests every 3 ms
    assert slow.failed == 0
    assert slow.admitted == slow.answered + slow.refused_late
    said = ("INTERNAL", "RESOURCE_EXHAUSTED") if kind == "grpc" else ("500", "429")
    assert loaded.statuses[said[0]] == offered(loaded, "fails").failed
    assert loaded.statuses[said[1]] == slow.refused


def test_what_cannot_be_asked_is_said_in_a_sentence(server: Server) -> None:
    url = f"http://{server.http}"
    for change, word in (
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
        with pytest.raises(ConfigError, match=word):
            offer_load(msgspec.structs.replace(GIVEN, **{"url": url, **change}), lambda _: None)
    for wrong in ("ftp://x:1", "http://x", "x:0", ""):
        with pytest.raises(ConfigError, match="URL"):
            endpoint_of(wrong)
    assert endpoint_of("[::1]:80").authority == "[::1]:80"
    with pytest.raises(WorldError, match="check that it speaks http"):
        offer_load(msgspec.structs.replace(GIVEN, url=server.grpc, models=("wide",)), lambda _: None)


def test_the_command_answers_in_json(server: Server) -> None:
    words = (
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
    done = subprocess.run([sys.executable, "-m", "cotenant", *words], capture_output=True, timeout=120, check=True)
    (found,) = json.loads(done.stdout.splitlines()[-1])["models"]
    assert found["offered"] == found["answered"] > 0


class Scripted:
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
        for one in self.held:
            one.close()


class Patient(LoadGenerator):
    """A load test whose clock stops while a response is in transit; a response takes a millisecond."""

    def __init__(
        self, scripted: Scripted, wire: ConnectionPool, targets: list[tuple[str, int]], window: MeasureWindow
    ) -> None:
        super().__init__(wire, targets, window)
        self._scripted = scripted
        self._at_ns = 0

    def run(self, source: RequestSource, look: Callable[[float], None] = lambda _: None) -> LoadReport:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(load_room, "monotonic_ns", lambda: self._at_ns)
            patch.setattr(load_room, "select", self)
            return super().run(source, look)

    def select(self, ready: Sequence[int], _w: object, _x: object, timeout_s: float) -> None:
        """Replacement of the select module: wait, or advance the clock if there is nothing to wait for."""
        while self._is_awaited():
            if select.select(ready, (), (), 0.01)[0]:
                self._at_ns += MS
                return
        self._at_ns += round(timeout_s * SECOND_NS)

    def _is_awaited(self) -> bool:
        held = len(self._scripted.held) - self._statuses.get("expired", 0)
        return len(self._under) - len(self._backlog) > held


def said(status: int, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d x\r\nContent-Length: 2\r\n%s\r\nok" % (status, more)


def test_each_outcome_of_a_request_is_counted_separately() -> None:
    answers = [said(200), said(503), said(429), said(500), b"", said(200, b"Connection: close\r\n"), None, said(200)]
    scripted = Scripted(answers)
    wire = open_connections(Endpoint("http", "127.0.0.1", scripted.port), [b"x"], 4)
    sends = iter([(place * 40 * MS, 0) for place in range(len(answers))])
    window = MeasureWindow(0, SECOND_NS, 200 * MS)
    loaded = Patient(scripted, wire, [("m", 0)], window).run(OpenLoopSource(sends))
    wire.close()
    scripted.close()
    found = offered(loaded, "m")
    assert (found.answered, found.refused, found.failed, found.expired, found.unsent) == (3, 2, 2, 1, 0)
    assert loaded.statuses == {"200": 3, "429": 1, "500": 1, "503": 1, "broken connection": 1, "expired": 1}


def test_what_finds_no_connection_waits_and_its_wait_counts() -> None:
    scripted = Scripted([None, said(200)])
    wire = open_connections(Endpoint("http", "127.0.0.1", scripted.port), [b"x"], 1)
    window = MeasureWindow(0, 9 * SECOND_NS, SECOND_NS)
    sends = iter([(0, 0), (800 * MS, 0), (800 * MS, 0)])
    loaded = Patient(scripted, wire, [("m", 900 * MS)], window).run(OpenLoopSource(sends))
    wire.close()
    scripted.close()
    found = offered(loaded, "m")
    assert (found.answered, found.expired, found.failed) == (1, 1, 1)
    assert found.late_sends >= 1


def test_clients_that_wait_ask_the_models_in_turn() -> None:
    scripted = Scripted([said(200)] * 1000)
    wire = open_connections(Endpoint("http", "127.0.0.1", scripted.port), [b"x", b"y"], 8)
    window = MeasureWindow(0, 100 * MS, SECOND_NS)
    loaded = Patient(scripted, wire, [("x", 0), ("y", 0)], window).run(ClosedLoopSource(2, 2, 100 * MS))
    wire.close()
    scripted.close()
    counts = [offered(loaded, name).offered for name in ("x", "y")]
    assert abs(counts[0] - counts[1]) <= 2
    assert min(counts) > 1


def test_what_was_recorded_can_be_played(server: Server, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl.gz"
    trace.write_bytes(gzip.compress(b"".join(b'{"timestamp": %d}\n' % (place * place) for place in range(50))))
    given = msgspec.structs.replace(GIVEN, url=server.http, models=("words=100",), arrival="trace", trace=str(trace))
    assert offered(offer_load(given, lambda _: None), "words").answered == 30


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_calls_reach_a_server_that_others_wrote() -> None:
    """A grpc.aio server, whose windows are smaller than the messages and whose headers are encoded differently."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as grpc does, so that the port stays reserved
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "cotenant_lab.competitors.bare_grpc", str(port)])
    try:
        until(lambda: process.poll() is not None or listens(port))
        messages = [length_prefixed(b"a" * 300_000), length_prefixed(b"b")]
        wire = open_connections(Endpoint("grpc", "127.0.0.1", port), messages, 2)
        sends = iter([(place * 2 * MS, place % 2) for place in range(100)])
        loaded = LoadGenerator(wire, [("large", 0), ("small", 0)], MeasureWindow(0, SECOND_NS, 90 * SECOND_NS)).run(
            OpenLoopSource(sends)
        )
        wire.close()
    finally:
        process.kill()
        process.wait()
        held.close()
    assert [offered(loaded, name).answered for name in ("large", "small")] == [50, 50]
