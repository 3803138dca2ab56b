"""Does /metrics say what the node's state is, name what docs/metrics.md names, and harm nobody whoever asks?"""

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
from cotenant.domain.action import Grant, Refuse, Revoke
from cotenant.domain.control import REQUEST_BUCKETS, bucket_of
from cotenant.domain.event import MpsSeen, TenantJoined, TenantLeft
from cotenant.domain.gate import GateRules, GateSeat
from cotenant.domain.histogram import Recorder
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.protect import GpuSample, Health, Stage
from cotenant.domain.tenant import Kind, TenantSpec, Terms
from cotenant.errors import ConfigError, WorldError
from cotenant.live.address import listen_at
from cotenant.live.gate import LiveGates
from cotenant.live.ledger import LiveLedgers
from cotenant.live.loop import READ, LiveLoop
from cotenant.live.observe import http
from cotenant.live.observe.collect import page_of
from cotenant.live.observe.figures import GpuFigures, NodeFigures, TenantFigures, Work
from cotenant.live.observe.http import CONNECTIONS, MetricsDoor
from cotenant.live.observe.log import NodeLog
from cotenant.live.observe.witness import Witness
from tests.live.indoors import BOUND_S, SetClock, until

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
PAGE_BYTES = 8 << 20
listen = functools.partial(listen_at, field="node.metrics", backlog=CONNECTIONS)
"""More than sockets keep for a client that does not read."""
HELD = Work(2 * 10**9, launches=5, waits=3, waited_ns=10**9, denied=1, requests=8, late=2, request_ns=3 * 10**9)
COUNTED = tuple(map([bucket_of(took_ns) for took_ns in (10**5, 2 * 10**6, 10**8)].count, range(REQUEST_BUCKETS)))
TENANT = TenantFigures("web", 0, Kind.ONLINE, Stage.RUNNING, True, 2, 1 << 30, 1 << 20, HELD, 20 * 10**6, COUNTED)
DEVICE = GpuFigures(
    "a", Health.UNHEALTHY, 16 << 30, GpuSample(500_000, 250_000, -1, 3 << 20, 16 << 30), 1 << 20, 4, is_mps_ready=True
)


def figures(
    *tenants: TenantFigures, gpus: tuple[GpuFigures, ...] = (DEVICE,), departed: dict | None = None
) -> NodeFigures:
    recorder = Recorder()
    for value in (5, 50_000, 2 * 10**9):
        recorder.record(value)
    counts: dict[str, int] = {"joined": 7, "no-memory": 2, "hang": 3}
    return NodeFigures(
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


def test_every_family_says_what_the_state_says() -> None:
    found = samples(b"".join(page_of(lambda: figures(TENANT))))
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
        ("cotenant_tenant_stage", (*web, "running")): 1,
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
    assert {(name, labels): found.get((name, tuple(sorted(labels)))) for name, labels in expected} == expected
    assert not [key for key in found if key[0] == "cotenant_gpu_clock_ratio"], "the device does not tell"


def test_documents_and_exposition_name_the_same_families_and_all_are_there_before_anybody_came() -> None:
    written = dict(re.findall(r"^\| `(cotenant_\w+)` \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE))
    nobody = b"".join(page_of(lambda: figures(gpus=())))
    assert families(nobody) == written
    assert families(b"".join(page_of(lambda: figures(TENANT)))) == written
    fresh = GpuFigures("a", Health.INIT, 1, GpuSample(), 0, 0, is_mps_ready=False)
    found = samples(b"".join(page_of(lambda: figures(gpus=(fresh,)))))
    assert found["cotenant_gpu_state", ("0", "a", "init")] == 1, "a device has its series from the start"
    assert found["cotenant_kind_launches_total", ("0", "offline")] == 0


def test_the_labels_that_documents_name_are_those_that_samples_have() -> None:
    written = dict(re.findall(r"^\| `(cotenant_\w+)` \| \w+ \|([^|]*)\|", DOCUMENT.read_text(), re.MULTILINE))
    told = {
        family.name + ("_total" if family.type == "counter" else ""): sorted(set(family.samples[0].labels) - {"le"})
        for family in text_string_to_metric_families(b"".join(page_of(lambda: figures(TENANT))).decode())
        if family.samples
    }
    assert told == {name: sorted(re.findall(r"\w+", written[name])) for name in told}


def test_sums_over_a_kind_do_not_go_back_when_somebody_leaves() -> None:
    before = samples(b"".join(page_of(lambda: figures(TENANT))))
    after = samples(b"".join(page_of(lambda: figures(departed={(0, Kind.ONLINE): HELD}))))
    for name in ("device_seconds", "launches", "waits", "waited_seconds", "denied_allocations", "requests"):
        key = (f"cotenant_kind_{name}_total", ("0", "online"))
        assert before[key] == after[key] > 0
    assert not [key for key in after if key[0].startswith("cotenant_tenant_")], "its own series are gone"


# -- over HTTP --------------------------------------------------------------------------------------------------


def test_addresses_that_cannot_be_are_refused_in_one_sentence() -> None:
    for address in ("9836", "127.0.0.1", ":9836", "127.0.0.1:x", "127.0.0.1:99999", "::1:80", "[127.0.0.1]:80"):
        with pytest.raises(ConfigError, match=r"write HOST:PORT"):
            listen(address)
    with listen("127.0.0.1:0") as taken, pytest.raises(WorldError, match=r"Address already in use; name another"):
        listen(f"127.0.0.1:{taken.getsockname()[1]}")
    with listen("[::1]:0") as six:
        assert six.family is socket.AF_INET6


class Shown:
    """A loop in a thread that serves a page; the clock stands still until the test moves it."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.loop = LiveLoop(self.clock)
        self.made = self.pieces = 0
        self.door = MetricsDoor(self.loop, self.clock, listen("127.0.0.1:0"), self._page)
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()

    def _page(self) -> Iterator[bytes]:
        self.made += 1
        yield b"page %d\n" % self.made
        for _ in range(8):
            self.pieces += 1
            yield b"x" * (PAGE_BYTES // 8)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.loop.stop("the test is over")
        with contextlib.suppress(OSError):
            self.stranger().close()
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive(), "the loop hangs"
        self.door.close()
        self.loop.close()

    def stranger(self, said: bytes = b"", *, is_narrow: bool = False) -> socket.socket:
        host, port = self.door._listener.getsockname()
        connection = socket.socket()
        connection.settimeout(BOUND_S)
        if is_narrow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, port))
        connection.sendall(said)
        return connection

    def page(self) -> bytes:
        with urllib.request.urlopen(self.door.address, timeout=BOUND_S) as answer:
            return bytes(answer.read())


def heard(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(1 << 16):
            data += more
    connection.close()
    return data


def test_a_page_is_made_once_a_second_at_most_however_many_ask() -> None:
    with Shown() as shown:
        assert [shown.page()[:6] for _ in range(5)] == [b"page 1"] * 5
        shown.clock.advance(http.FRESH_NS)
        assert shown.page()[:6] == b"page 2"
        assert len(shown.page()) > PAGE_BYTES


def test_a_page_is_made_piece_by_piece_with_other_work_between() -> None:
    clock = SetClock()
    loop = LiveLoop(clock)
    made: list[int] = []

    def page() -> Iterator[bytes]:
        for number in range(3):
            made.append(number)
            yield b"%d" % number

    door = MetricsDoor(loop, clock, listen("127.0.0.1:0"), page)
    asking = [socket.create_connection(door._listener.getsockname(), BOUND_S) for _ in range(3)]
    for connection in asking:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    while len(door._clients) < len(asking):  # the system may tell us of one later than it told its client
        door._accept(READ)
    for client in list(door._clients.values()):
        client.socket.setblocking(True)
        door._read(client)
        client.socket.setblocking(False)
    asking.pop(0).close()
    door._forget(next(iter(door._clients.values())))  # as when it gives way to a newcomer
    for number in range(3):
        assert made == list(range(number)), "one piece a step"
        assert door.next_wakeup() == 0
        door.wake(clock.now())
    door.wake(clock.now())
    assert [heard(connection).partition(b"\r\n\r\n")[2] for connection in asking] == [b"012", b"012"]
    assert door.next_wakeup() is None
    door.close()
    loop.close()


@pytest.mark.parametrize(
    "said, answer",
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
def test_every_request_gets_the_answer_it_deserves(said: bytes, answer: bytes) -> None:
    with Shown() as shown:
        told = heard(shown.stranger(said))
        assert told.startswith(b"HTTP/1.1 " + answer)
        assert (b"page" in told) == (answer == b"200" and said.startswith(b"GET"))


def test_who_says_half_a_request_or_does_not_read_loses_its_connection_in_time_and_nobody_else_does() -> None:
    with Shown() as shown:
        half = shown.stranger(b"GET /metrics HT")
        deaf = shown.stranger(b"GET /metrics HTTP/1.1\r\n\r\n", is_narrow=True)
        until(lambda: len(shown.door._clients) == 2 and shown.made == 1)
        assert shown.page().startswith(b"page 1")
        shown.clock.advance(http.PATIENCE_NS)
        shown.page()  # the loop looks at its clock
        until(lambda: not shown.door._clients)
        assert heard(half) == b""
        deaf.close()


def test_the_oldest_of_too_many_connections_gives_way() -> None:
    with Shown() as shown:
        crowd = [shown.stranger(b"GET ") for _ in range(3 * http.CONNECTIONS)]
        assert shown.page().startswith(b"page 1")
        assert len(shown.door._clients) <= http.CONNECTIONS
        assert heard(crowd[0]) == b""
        for connection in crowd[1:]:
            connection.close()


def test_without_descriptors_newcomers_wait_and_the_loop_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SetClock()
    loop = LiveLoop(clock)
    door = MetricsDoor(loop, clock, listen("127.0.0.1:0"), lambda: iter(()))
    exhausted = MagicMock(wraps=door._listener)
    exhausted.accept.side_effect = OSError(errno.EMFILE, "too many open files")
    listener, door._listener = door._listener, exhausted
    door._accept(0)
    assert listener.fileno() not in loop._selector.get_map()
    assert door.next_wakeup() == clock.now() + http.FRESH_NS
    clock.advance(http.FRESH_NS)
    door.wake(clock.now())
    assert listener.fileno() in loop._selector.get_map()
    door.close()
    loop.close()


# -- the witness ---------------------------------------------------------------------------------------------------


def test_what_those_who_left_did_is_kept_and_samples_are_those_seen_last(tmp_path: Path) -> None:
    gates = LiveGates(tmp_path, 2)
    seat, terms = GateSeat(0, 1, 7, online=False), Terms(0, 1, Kind.OFFLINE, 7, 0, 0, 0, 0)
    gates.seat(0, GateRules(seats=(seat,)))
    gate = _native.Gate(gates._files[0].memory, 0, 1)
    gate.announce((1000, 1000, 0, 0, 1), 5_000)
    del gate
    with (tmp_path / "log").open("wb") as log:
        witness = Witness(NodeLog("text", descriptor=log.fileno()), gates, LiveLedgers(tmp_path, 2), 0)
        witness(1, TenantJoined(1, 1, 0, TenantSpec(Kind.OFFLINE, 7, "job")), [Grant(1, 1, "job", terms)])
        assert witness.work_of(terms, 0) == Work(device_ns=1000, launches=1)
        gates.rise(0, 0)
        witness(2, TenantLeft(1, "exit 0"), [Revoke(2, 1, "job", 0, 1, "exit 0")])
        assert witness.departed == {(0, Kind.OFFLINE): Work(device_ns=1000, launches=1)}
        witness(3, TenantLeft(1, "exit 0"), [Revoke(3, 1, "job", 0, 1, "exit 0")])
        assert witness.departed == {(0, Kind.OFFLINE): Work(device_ns=1000, launches=1)}, "once"
        witness.saw(0, GpuSample(5))
        witness.saw(0, GpuSample(7))
        witness(5, MpsSeen(0, True), [])
        refused = Refuse(6, 1, Reject(Reason.NO_SLOT, "none"))
        witness(6, TenantJoined(1, 1, 0, TenantSpec(Kind.OFFLINE, 7, "job")), [refused])
    assert (witness.samples, witness.mps, witness.refusals) == ({0: GpuSample(7)}, {0: True}, {"no-slot": 1})
    assert (tmp_path / "log").read_text().count("\n") == 5
    gates.close()


def test_the_latencies_of_an_online_tenant_are_those_of_its_own_page(tmp_path: Path) -> None:
    gates = LiveGates(tmp_path, 2)
    gates.seat(0, GateRules(seats=(GateSeat(0, 2, 2, online=True),)))
    gate = _native.Gate(gates._files[0].memory, 0, 2)
    gate.requested(3 * 10**6, 2 * 10**6)
    gate.requested(10**6, 2 * 10**6)
    del gate
    with (tmp_path / "log").open("wb") as log:
        witness = Witness(NodeLog("text", descriptor=log.fileno()), gates, LiveLedgers(tmp_path, 2), 0)
    terms = Terms(0, 2, Kind.ONLINE, 2, 2 * 10**6, 0, 0, 0)
    assert sum(witness.latencies_of(terms)) == 2
    assert witness.work_of(terms, 0)[5:] == (2, 1, 4 * 10**6)
    assert witness.latencies_of(msgspec.structs.replace(terms, generation=3)) == (), "an earlier tenant's page"
    assert witness.latencies_of(msgspec.structs.replace(terms, kind=Kind.OFFLINE)) == ()
