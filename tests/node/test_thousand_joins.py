"""A thousand joins with random kills of tenants and daemons leak nothing and grant nothing twice."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from cotenant.errors import CotenantError, WorldError
from cotenant.gate.grant import Grant, Kind
from cotenant.node import wire
from cotenant.node.client.connection import Connection
from cotenant.node.model.action import IssueGrant, Revoke
from cotenant.node.model.event import NodeStarted, TenantJoined
from cotenant.node.model.tenant import TenantSpec
from cotenant.simulate.replay import replay_file
from tests.support.node_processes import BOUND_S, NodeHarness, alive, until

pytestmark = pytest.mark.live

JOINS = 1000
WORKERS = 8
NODE_KILLS = 10
SEED = 20
OPTIONS = ("--slots", "48", "--reconnect-grace", "1s", "--gpu", "a=64GiB", "--gpu", "b=64GiB")

# Many tenants in one process, so that one SIGKILL ends them all at the same instant.
CLIENTS = """
import sys, time
from pathlib import Path
from cotenant.gate.grant import Kind
from cotenant.node.model.tenant import TenantSpec
from cotenant.node import wire
from cotenant.node.client.connection import Connection
crowd = [Connection(Path(sys.argv[1])) for _ in range(10)]
for one in crowd:
    one.ask(wire.Join(wire.VERSION, TenantSpec(Kind.OFFLINE, 7, command="crowd")))
print("here", flush=True)
time.sleep(600)
"""


class Worker(threading.Thread):
    """Joins again and again; leaves, vanishes, or stays through the death of the daemon and comes back."""

    def __init__(self, node_harness: NodeHarness, number: int, joins: Counter[str], enough: threading.Event) -> None:
        super().__init__()
        self._stage = node_harness
        self._chance = random.Random(SEED * 1000 + number)
        self._number = number
        self._joins = joins
        self._enough = enough
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._enough.is_set():
                self._live_once()
        except BaseException as failure:  # noqa: BLE001  the test raises it in its own thread
            self.failure = failure

    def _live_once(self) -> None:
        rng = self._chance
        spec = TenantSpec(
            Kind.OFFLINE,
            rng.randrange(10),
            name=f"w{self._number}" if rng.random() < 0.3 else "",
            memory_bytes=rng.randrange(1 << 30),
            command="worker",
        )
        joined = self._ask(wire.Join(wire.VERSION, spec))
        if joined is None:
            time.sleep(0.02)
            return
        connection, grant = joined
        self._joins["joins"] += 1
        for _ in range(rng.choice([0, 0, 0, 0, 1, 3])):
            time.sleep(0.01)
            try:
                connection.ask(wire.ListTenants(wire.VERSION))
            except CotenantError:
                connection.close()
                back = self._come_back(grant)
                if back is None:
                    return
                connection = back
        if rng.random() < 0.6:
            with contextlib.suppress(CotenantError):
                connection.ask(wire.Leave("exit 0"))
        connection.close()  # without a word, for the kernel to report: that is what a SIGKILL looks like

    def _come_back(self, grant: Grant) -> Connection | None:
        for _ in range(200):
            back = self._ask(wire.Resume(wire.VERSION, grant.slot, grant.generation))
            if back is not None:
                assert back[1] == grant, "a slot never moves"
                self._joins["resumed"] += 1
                return back[0]
            if self._enough.is_set():
                return None
            time.sleep(0.02)
        return None

    def _ask(self, request: wire.Request) -> tuple[Connection, Grant] | None:
        """Connection and terms, when the node is there and willing. Operators have no limit of requests."""
        try:
            connection = Connection(self._stage.directories.operator_socket)
        except WorldError:
            return None
        try:
            answer, handed = connection.ask(request)
        except CotenantError:
            connection.close()
            return None
        if not isinstance(answer, wire.Welcome):
            connection.close()
            return None
        assert not handed
        return connection, answer.grant


def set_neighbour_count(node_harness: NodeHarness) -> subprocess.Popen[str]:
    path = str(node_harness.directories.operator_socket)
    return subprocess.Popen(
        [sys.executable, "-c", CLIENTS, path], stdout=subprocess.PIPE, text=True, env=node_harness.environ
    )


def test_thousand_joins_with_random_kills_leak_nothing(node_harness: NodeHarness) -> None:
    rng = random.Random(SEED)
    node_harness.node(*OPTIONS)
    real = [node_harness.tenant(f"real{number}") for number in range(3)]
    joins: Counter[str] = Counter()
    enough = threading.Event()
    workers = [Worker(node_harness, number, joins, enough) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    try:
        for kill in range(NODE_KILLS):
            _until_joined((kill + 1) * JOINS // (NODE_KILLS + 1), joins, workers)
            if kill == 3:
                real[0].kill()
            if kill in {2, 5}:
                many = set_neighbour_count(node_harness)
                assert many.stdout is not None
                assert many.stdout.readline() == "here\n"
                many.kill()
                many.wait(BOUND_S)
                many.stdout.close()
            time.sleep(rng.random() * 0.05)
            node_harness.kill_node()
            node_harness.node(*OPTIONS)
        _until_joined(JOINS, joins, workers)
    finally:
        enough.set()
        for worker in workers:
            worker.join(BOUND_S)
    assert not _failed(workers), _failed(workers)[0]
    until(lambda: sorted(node_harness.slots()) == ["real1", "real2"] == sorted(node_harness.names()))
    pid = node_harness.node_pid()
    assert pid is not None
    check_memory(pid, tenants=2)
    for tenant in real[1:]:
        tenant.send_signal(signal.SIGTERM)
        assert tenant.wait(BOUND_S) == 143
    until(lambda: node_harness.tenant_list() is not None and not node_harness.names())
    check_memory(pid, tenants=0)
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
    assert not node_harness.directories.tenant_socket.exists()
    assert not node_harness.directories.operator_socket.exists()
    check_record(node_harness)


def _until_joined(goal: int, joins: Counter[str], workers: list[Worker]) -> None:
    until(lambda: joins["joins"] >= goal or _failed(workers))


def _failed(workers: list[Worker]) -> list[BaseException]:
    return [worker.failure for worker in workers if worker.failure is not None]


def check_memory(pid: int, tenants: int) -> None:
    """The node has a grant page for each tenant and at most one other. Only root may see what a node has mapped."""
    if os.geteuid() == 0:
        pages = Path(f"/proc/{pid}/maps")
        until(lambda: pages.read_text().count("/memfd:cotenant-grant ") - tenants in {0, 1})


def check_record(node_harness: NodeHarness) -> None:
    """What the journal says once everybody is gone."""
    turns = node_harness.journal()
    report = replay_file(node_harness.directories.journal)
    assert report.reproduced, report
    assert report.torn_bytes == 0
    assert report.actions == sum(len(turn.actions) for turn in turns)
    assert sum(isinstance(turn.event, NodeStarted) for turn in turns) == NODE_KILLS + 1
    given: Counter[tuple[int, int]] = Counter()
    taken: Counter[tuple[int, int]] = Counter()
    for turn in turns:
        for action in turn.actions:
            if isinstance(action, IssueGrant) and isinstance(turn.event, TenantJoined):
                given[action.grant.slot, action.grant.generation] += 1
            if isinstance(action, Revoke):
                taken[action.slot, action.generation] += 1
    assert len(given) >= JOINS
    assert set(given.values()) == {1}, "nothing is granted twice"
    assert given == taken, "whatever was granted is free again, once"
    highest = Counter(slot for slot, _ in given)
    assert all(generation <= highest[slot] for slot, generation in given), "generations have no gaps"
    assert [turn.now for turn in turns] == sorted(turn.now for turn in turns), "the clock never goes back"
