"""/metrics shows the node's state, has the families of docs/reference/metrics.md, and survives hostile readers."""

import contextlib
import errno
import functools
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from unittest.mock import MagicMock

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cotenant import _native
from cotenant.errors import ConfigError, WorldError
from cotenant.gate import tenant_table
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.request_buckets import REQUEST_BUCKETS, bucket_of
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.node.daemon.log import NodeLog
from cotenant.node.daemon.metrics import http
from cotenant.node.daemon.metrics.families import page_of
from cotenant.node.daemon.metrics.http import CONNECTIONS, MetricsListener
from cotenant.node.daemon.metrics.values import GpuMetrics, NodeMetrics, TenantMetrics, WorkCounters
from cotenant.node.daemon.observer import TurnObserver
from cotenant.node.daemon.tenant_pages import TenantPages
from cotenant.node.model.action import IssueGrant, Refuse, Revoke
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import Event, MpsStatusChanged, TenantJoined, TenantLeft, TimerFired
from cotenant.node.model.protection import ExitPhase, GpuSample, Health
from cotenant.node.model.tenant import TenantSpec
from cotenant.runner.address import listen_at
from cotenant.runner.live_loop import READ, LiveLoop
from cotenant.units.histogram import Recorder
from tests.support.node_in_process import BOUND_S, ManualClock, until
from tests.support.process_pages import Registry

pytestmark = pytest.mark.live

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
PAGE_BYTES = 8 << 20
listen = functools.partial(listen_at, field="node.metrics", backlog=CONNECTIONS)
"""More than sockets keep for a client that does not read."""
WORK = WorkCounters(2 * 10**9, launches=5, waits=3, waited_ns=10**9, denied=1, requests=8, late=2, request_ns=3 * 10**9)
LATENCY_COUNTS = tuple(map([bucket_of(took_ns) for took_ns in (10**5, 2 * 10**6, 10**8)].count, range(REQUEST_BUCKETS)))
TENANT = TenantMetrics(
    "web", 0, Kind.ONLINE, ExitPhase.RUNNING, True, 2, 1 << 30, 1 << 20, WORK, 20 * 10**6, LATENCY_COUNTS
)
DEVICE = GpuMetrics(
    "a", Health.UNHEALTHY, 16 << 30, GpuSample(500_000, 250_000, -1, 3 << 20, 16 << 30), 1 << 20, 4, is_mps_ready=True
)


def node_metrics(
    *tenants: TenantMetrics, gpus: tuple[GpuMetrics, ...] = (DEVICE,), departed: dict | None = None
) -> NodeMetrics:
    recorder = Recorder()
    for value in (5, 50_000, 2 * 10**9):
        recorder.record(value)
    counts: dict[str, int] = {"joined": 7, "no-memory": 2, "hang": 3}
    return NodeMetrics(
        "1.0", 64, 9, recorder.histogram(), 4096, 1, tenants, gpus, departed or {}, counts, counts, counts
    )


def samples(page: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def families(page: bytes) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page.decode(), re.MULTILINE))


def test_every_family_shows_the_state() -> None:
    exposed = samples(b"".join(page_of(lambda: node_metrics(TENANT))))
    web = ("web", "0", "online")
    expected = {
        ("cotenant_tenant_device_seconds_total", web): 2,
        ("cotenant_tenant_launches_total", web): 5,
        ("cotenant_tenant_waits_total", web): 3,
        ("cotenant_tenant_waited_seconds_total", web): 1,
        ("cotenant_tenant_denied_allocations_total", web): 1,
        ("cotenant_tenant_restarts_total", web): 2,
        ("cotenant_tenant_memory_held_bytes", web): 1 << 20,
        ("cotenant_tenant_memory_quota_bytes", web): 1 << 30,
        ("cotenant_tenant_paused", web): 1,
        ("cotenant_tenant_phase", (*web, "running")): 1,
        ("cotenant_tenant_slo_seconds", web): 0.02,
        ("cotenant_tenant_latency_seconds_bucket", (*web, "0.000131072")): 1,
        ("cotenant_tenant_latency_seconds_bucket", (*web, "0.033554432")): 2,
        ("cotenant_tenant_latency_seconds_bucket", (*web, "+Inf")): 3,
        ("cotenant_tenant_latency_seconds_count", web): 3,
        ("cotenant_tenant_latency_seconds_sum", web): 3,
        ("cotenant_gpu_state", ("0", "a", "unhealthy")): 1,
        ("cotenant_gpu_state", ("0", "a", "healthy")): 0,
        ("cotenant_gpu_utilization_ratio", ("0", "a")): 0.5,
        ("cotenant_gpu_sm_activity_ratio", ("0", "a")): 0.25,
        ("cotenant_gpu_memory_used_bytes", ("0", "a")): 3 << 20,
        ("cotenant_gpu_memory_total_bytes", ("0", "a")): 16 << 30,
        ("cotenant_gpu_memory_held_bytes", ("0", "a")): 1 << 20,
        ("cotenant_gpu_memory_unaccounted_bytes", ("0", "a")): 2 << 20,
        ("cotenant_gpu_mps_ready", ("0", "a")): 1,
        ("cotenant_gpu_evictions_total", ("0", "a")): 4,
        ("cotenant_node_info", ("1.0",)): 1,
        ("cotenant_node_turns_total", ()): 9,
        ("cotenant_node_journal_bytes", ()): 4096,
        ("cotenant_node_log_lost_lines_total", ()): 1,
        ("cotenant_node_slots", ()): 64,
        ("cotenant_node_tenants", ("online",)): 1,
        ("cotenant_node_tenants", ("offline",)): 0,
        ("cotenant_node_events_total", ("joined",)): 7,
        ("cotenant_node_events_total", ("left",)): 0,
        ("cotenant_node_refusals_total", ("no-memory",)): 2,
        ("cotenant_node_faults_total", ("hang",)): 3,
        ("cotenant_node_faults_total", ("bad-kernel",)): 0,
        ("cotenant_node_turn_seconds_bucket", ("1e-05",)): 1,
        ("cotenant_node_turn_seconds_bucket", ("0.0001",)): 2,
        ("cotenant_node_turn_seconds_bucket", ("+Inf",)): 3,
        ("cotenant_node_turn_seconds_count", ()): 3,
    }
    assert {(name, labels): exposed.get((name, tuple(sorted(labels)))) for name, labels in expected} == expected
    assert not [key for key in exposed if key[0] == "cotenant_gpu_clock_ratio"], "the device does not report its clock"


def test_documented_families_are_exposed_from_the_start() -> None:
    documented = dict(re.findall(r"^\| `(cotenant_\w+)` \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE))
    no_gpus = b"".join(page_of(lambda: node_metrics(gpus=())))
    assert families(no_gpus) == documented
    assert families(b"".join(page_of(lambda: node_metrics(TENANT)))) == documented
    fresh = GpuMetrics("a", Health.INIT, 1, GpuSample(), 0, 0, is_mps_ready=False)
    exposed = samples(b"".join(page_of(lambda: node_metrics(gpus=(fresh,)))))
    assert exposed["cotenant_gpu_state", ("0", "a", "init")] == 1, "a device has its series from the start"
    assert exposed["cotenant_kind_launches_total", ("0", "offline")] == 0


def test_documented_labels_equal_the_labels_of_samples() -> None:
    written = dict(re.findall(r"^\| `(cotenant_\w+)` \| \w+ \|([^|]*)\|", DOCUMENT.read_text(), re.MULTILINE))
    documented = {
        family.name + ("_total" if family.type == "counter" else ""): sorted(set(family.samples[0].labels) - {"le"})
        for family in text_string_to_metric_families(b"".join(page_of(lambda: node_metrics(TENANT))).decode())
        if family.samples
    }
    assert documented == {name: sorted(re.findall(r"\w+", written[name])) for name in documented}


def test_sums_over_a_kind_do_not_decrease_after_a_departure() -> None:
    before = samples(b"".join(page_of(lambda: node_metrics(TENANT))))
    after = samples(b"".join(page_of(lambda: node_metrics(departed={(0, Kind.ONLINE): WORK}))))
    for name in ("device_seconds", "launches", "waits", "waited_seconds", "denied_allocations", "requests"):
        key = (f"cotenant_kind_{name}_total", ("0", "online"))
        assert before[key] == after[key] > 0
    assert not [key for key in after if key[0].startswith("cotenant_tenant_")], "its own series are gone"


# -- over HTTP --------------------------------------------------------------------------------------------------


def test_invalid_addresses_are_refused_in_one_sentence() -> None:
    for address in ("9836", "127.0.0.1", ":9836", "127.0.0.1:x", "127.0.0.1:99999", "::1:80", "[127.0.0.1]:80"):
        with pytest.raises(ConfigError, match=r"write HOST:PORT"):
            listen(address)
    with listen("127.0.0.1:0") as taken, pytest.raises(WorldError, match=r"Address already in use; choose another"):
        listen(f"127.0.0.1:{taken.getsockname()[1]}")
    with listen("[::1]:0") as six:
        assert six.family is socket.AF_INET6


class MetricsServer:
    """A loop in a thread that serves a page; only the test advances its clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop: LiveLoop[Event] = LiveLoop(self.clock, TimerFired())
        self.rendered = self.chunks = 0
        self.listener = MetricsListener(self.loop, self.clock, listen("127.0.0.1:0"), self._page)
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()

    def _page(self) -> Iterator[bytes]:
        self.rendered += 1
        yield b"page %d\n" % self.rendered
        for _ in range(8):
            self.chunks += 1
            yield b"x" * (PAGE_BYTES // 8)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.loop.stop("the test is over")
        with contextlib.suppress(OSError):
            self.connect().close()
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive(), "the loop hangs"
        self.listener.close()
        self.loop.close()

    def connect(self, request: bytes = b"", *, is_narrow: bool = False) -> socket.socket:
        host, port = self.listener._listener.getsockname()
        connection = socket.socket()
        connection.settimeout(BOUND_S)
        if is_narrow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, port))
        connection.sendall(request)
        return connection

    def page(self) -> bytes:
        with urllib.request.urlopen(self.listener.address, timeout=BOUND_S) as answer:
            return bytes(answer.read())


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(1 << 16):
            data += more
    connection.close()
    return data


def test_page_is_rendered_at_most_once_a_second() -> None:
    with MetricsServer() as server:
        assert [server.page()[:6] for _ in range(5)] == [b"page 1"] * 5
        server.clock.advance(http.FRESH_NS)
        assert server.page()[:6] == b"page 2"
        assert len(server.page()) > PAGE_BYTES


def test_page_is_rendered_in_steps() -> None:
    clock = ManualClock()
    loop: LiveLoop[Event] = LiveLoop(clock, TimerFired())
    rendered: list[int] = []

    def page() -> Iterator[bytes]:
        for number in range(3):
            rendered.append(number)
            yield b"%d" % number

    listener = MetricsListener(loop, clock, listen("127.0.0.1:0"), page)
    connections = [socket.create_connection(listener._listener.getsockname(), BOUND_S) for _ in range(3)]
    for connection in connections:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    while len(listener._clients) < len(connections):  # the kernel may report a connection here later than to its client
        listener._accept(READ)
    for client in list(listener._clients.values()):
        client.socket.setblocking(True)
        listener._read(client)
        client.socket.setblocking(False)
    connections.pop(0).close()
    listener._forget(next(iter(listener._clients.values())))  # as when it is closed for a new connection
    for number in range(3):
        assert rendered == list(range(number)), "one chunk per step"
        assert listener.next_wakeup() == 0
        listener.wake(clock.now())
    listener.wake(clock.now())
    assert [read_all(connection).partition(b"\r\n\r\n")[2] for connection in connections] == [b"012", b"012"]
    assert listener.next_wakeup() is None
    listener.close()
    loop.close()


@pytest.mark.parametrize(
    "request_bytes, answer",
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics?x=1 HTTP/1.0\n\n", b"200"),
        (b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\x16\x03\x01 hello\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * http.HEAD_LIMIT_BYTES, b"431"),
    ],
)
def test_http_status_matches_the_request(request_bytes: bytes, answer: bytes) -> None:
    with MetricsServer() as server:
        response = read_all(server.connect(request_bytes))
        assert response.startswith(b"HTTP/1.1 " + answer)
        assert (b"page" in response) == (answer == b"200" and request_bytes.startswith(b"GET"))


def test_stalled_connection_is_closed_after_the_timeout() -> None:
    with MetricsServer() as server:
        half = server.connect(b"GET /metrics HT")
        deaf = server.connect(b"GET /metrics HTTP/1.1\r\n\r\n", is_narrow=True)
        until(lambda: len(server.listener._clients) == 2 and server.rendered == 1)
        assert server.page().startswith(b"page 1")
        server.clock.advance(http.PATIENCE_NS)
        server.page()  # the loop looks at its clock
        until(lambda: not server.listener._clients)
        assert read_all(half) == b""
        deaf.close()


def test_oldest_of_too_many_connections_is_closed() -> None:
    with MetricsServer() as server:
        connections = [server.connect(b"GET ") for _ in range(3 * http.CONNECTIONS)]
        assert server.page().startswith(b"page 1")
        assert len(server.listener._clients) <= http.CONNECTIONS
        assert read_all(connections[0]) == b""
        for connection in connections[1:]:
            connection.close()


def test_connections_wait_without_free_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    loop: LiveLoop[Event] = LiveLoop(clock, TimerFired())
    listener = MetricsListener(loop, clock, listen("127.0.0.1:0"), lambda: iter(()))
    exhausted = MagicMock(wraps=listener._listener)
    exhausted.accept.side_effect = OSError(errno.EMFILE, "too many open files")
    server_socket, listener._listener = listener._listener, exhausted
    listener._accept(0)
    assert server_socket.fileno() not in loop._selector.get_map()
    assert listener.next_wakeup() == clock.now() + http.FRESH_NS
    clock.advance(http.FRESH_NS)
    listener.wake(clock.now())
    assert server_socket.fileno() in loop._selector.get_map()
    listener.close()
    loop.close()


# -- the observer ---------------------------------------------------------------------------------------------------


def test_work_of_departed_tenants_and_last_samples_are_kept(tmp_path: Path) -> None:
    grant = Grant(1, 1, Kind.OFFLINE, 7, 0, 0, 0, 0)
    registry = Registry()
    hook, _ = registry.attach(1)
    hook.write(launches=1, device_ns=1000)
    with (tmp_path / "log").open("wb") as log:
        observer = TurnObserver(
            NodeLog("text", descriptor=log.fileno()),
            TenantPages(registry.processes, registry.tables),
            registry.ledgers,
            0,
        )
        observer(1, TenantJoined(1, 1, 0, TenantSpec(Kind.OFFLINE, 7, "job")), [IssueGrant(1, 1, "job", grant)])
        assert observer.work_of(grant, 0) == WorkCounters(device_ns=1000, launches=1)
        registry.tables.remove(0, 1)
        registry.processes.remove((1, 1))  # the effects of a turn precede its observers
        observer(2, TenantLeft(1, "exit 0"), [Revoke(2, 1, "job", 1, 1, "exit 0")])
        assert observer.departed == {(0, Kind.OFFLINE): WorkCounters(device_ns=1000, launches=1)}
        observer(3, TenantLeft(1, "exit 0"), [Revoke(3, 1, "job", 1, 1, "exit 0")])
        assert observer.departed == {(0, Kind.OFFLINE): WorkCounters(device_ns=1000, launches=1)}, "once"
        observer.record_sample(0, GpuSample(5))
        observer.record_sample(0, GpuSample(7))
        observer(5, MpsStatusChanged(0, True), [])
        refused = Refuse(6, 1, Reject(Reason.NO_SLOT, "none"))
        observer(6, TenantJoined(1, 1, 0, TenantSpec(Kind.OFFLINE, 7, "job")), [refused])
    assert (observer.samples, observer.mps, observer.refusals) == ({0: GpuSample(7)}, {0: True}, {"no-slot": 1})
    assert (tmp_path / "log").read_text().count("\n") == 5
    registry.close()


def test_latencies_of_an_online_tenant_come_from_its_page(tmp_path: Path) -> None:
    registry = Registry()
    hook, attached = registry.attach(0)
    memory = tenant_table.device_memory()
    tenant_table.write_tenant_table(memory, GateRules(entries=(GateEntry(5, attached.generation, 2, online=True),)))
    gate = _native.Gate(memory, 5, attached.generation)
    gate.requested(3 * 10**6, 2 * 10**6)
    gate.requested(10**6, 2 * 10**6)
    hook.page.memory[: tenant_table.PAGE_BYTES] = tenant_table.gate_page(memory, 5)
    hook.open(attached.generation)
    with (tmp_path / "log").open("wb") as log:
        observer = TurnObserver(
            NodeLog("text", descriptor=log.fileno()),
            TenantPages(registry.processes, registry.tables),
            registry.ledgers,
            0,
        )
    grant = Grant(0, 1, Kind.ONLINE, 2, 2 * 10**6, 0, 0, 0)
    assert sum(observer.latencies_of(grant)) == 2
    assert observer.work_of(grant, 0)[5:] == (2, 1, 4 * 10**6)
    assert observer.latencies_of(msgspec.structs.replace(grant, generation=3)) == (), "an earlier tenant's page"
    assert observer.latencies_of(msgspec.structs.replace(grant, kind=Kind.OFFLINE)) == ()
