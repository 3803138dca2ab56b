"""A thousand joins, tenants and daemons killed at random: is anything leaked, granted twice or not on record?"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

from cotenant.apps.replay import replay_file
from cotenant.domain.action import Grant, Revoke
from cotenant.domain.event import NodeStarted, TenantJoined
from cotenant.domain.tenant import Kind, TenantSpec, Terms
from cotenant.errors import CotenantError, WorldError
from cotenant.format import wire
from cotenant.live.client import Connection
from cotenant.live.page import read_page
from tests.e2e.stage import BOUND_S, Stage, alive, until

JOINS = 1000
WORKERS = 8
NODE_KILLS = 10
SEED = 20
OPTIONS = ("--slots", "48", "--grace", "1s", "--gpu", "a=64GiB", "--gpu", "b=64GiB")

# Many tenants in one process, so that one SIGKILL ends them all at the same instant.
CROWD = """
import sys, time
from pathlib import Path
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.format import wire
from cotenant.live.client import Connection
crowd = [Connection(Path(sys.argv[1])) for _ in range(10)]
for one in crowd:
    one.ask(wire.Join(wire.VERSION, TenantSpec(Kind.OFFLINE, 7, command="crowd")))
print("here", flush=True)
time.sleep(600)
"""


class Worker(threading.Thread):
    """Joins again and again; leaves, vanishes, or stays through the death of the daemon and comes back."""

    def __init__(self, stage: Stage, number: int, joins: Counter[str], enough: threading.Event) -> None:
        super().__init__()
        self._stage = stage
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
        chance = self._chance
        spec = TenantSpec(
            Kind.OFFLINE,
            chance.randrange(10),
            name=f"w{self._number}" if chance.random() < 0.3 else "",
            memory_bytes=chance.randrange(1 << 30),
            command="worker",
        )
        joined = self._ask(wire.Join(wire.VERSION, spec))
        if joined is None:
            time.sleep(0.02)
            return
        connection, terms = joined
        self._joins["joins"] += 1
        for _ in range(chance.choice([0, 0, 0, 0, 1, 3])):
            time.sleep(0.01)
            try:
                connection.ask(wire.List(wire.VERSION))
            except CotenantError:
                connection.close()
                back = self._come_back(terms)
                if back is None:
                    return
                connection = back
        if chance.random() < 0.6:
            with contextlib.suppress(CotenantError):
                connection.ask(wire.Leave("exit 0"))
        connection.close()  # without a word, for the kernel to report: that is what a SIGKILL looks like

    def _come_back(self, terms: Terms) -> Connection | None:
        for _ in range(200):
            back = self._ask(wire.Resume(wire.VERSION, terms.slot, terms.generation))
            if back is not None:
                assert back[1] == terms, "a slot never moves"
                self._joins["resumed"] += 1
                return back[0]
            if self._enough.is_set():
                return None
            time.sleep(0.02)
        return None

    def _ask(self, request: wire.Request) -> tuple[Connection, Terms] | None:
        """Connection and terms, when the node is there and willing; the page must say what the welcome says."""
        try:
            connection = Connection(self._stage.places.socket)
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
        assert len(handed) == 5, "its terms page, and its device's gate and ledger to read and to write"
        assert read_page(handed[0]) == answer.terms
        for descriptor in handed:
            os.close(descriptor)
        return connection, answer.terms


def crowd(stage: Stage) -> subprocess.Popen[str]:
    path = str(stage.places.socket)
    return subprocess.Popen([sys.executable, "-c", CROWD, path], stdout=subprocess.PIPE, text=True, env=stage.environ)


def test_a_thousand_joins_with_random_kills_leak_nothing(stage: Stage) -> None:
    chance = random.Random(SEED)
    stage.node(*OPTIONS)
    real = [stage.tenant(f"real{number}") for number in range(3)]
    joins: Counter[str] = Counter()
    enough = threading.Event()
    workers = [Worker(stage, number, joins, enough) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    try:
        for kill in range(NODE_KILLS):
            _until_joined((kill + 1) * JOINS // (NODE_KILLS + 1), joins, workers)
            if kill == 3:
                real[0].kill()
            if kill in {2, 5}:
                many = crowd(stage)
                assert many.stdout is not None
                assert many.stdout.readline() == "here\n"
                many.kill()
                many.wait(BOUND_S)
                many.stdout.close()
            time.sleep(chance.random() * 0.05)
            stage.kill_node()
            stage.node(*OPTIONS)
        _until_joined(JOINS, joins, workers)
    finally:
        enough.set()
        for worker in workers:
            worker.join(BOUND_S)
    assert not _failed(workers), _failed(workers)[0]
    until(lambda: sorted(stage.slots()) == ["real1", "real2"] == sorted(stage.names()))
    for tenant in real[1:]:
        tenant.send_signal(signal.SIGTERM)
        assert tenant.wait(BOUND_S) == 143
    until(lambda: stage.roll() is not None and not stage.names())
    pid = stage.node_pid()
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
    assert not stage.places.socket.exists()
    check_record(stage)


def _until_joined(goal: int, joins: Counter[str], workers: list[Worker]) -> None:
    until(lambda: joins["joins"] >= goal or _failed(workers))


def _failed(workers: list[Worker]) -> list[BaseException]:
    return [worker.failure for worker in workers if worker.failure is not None]


def check_record(stage: Stage) -> None:
    """What the journal and the pages say once everybody is gone."""
    until(lambda: stage.granted_pages() == [])
    turns = stage.journal()
    report = replay_file(stage.places.journal)
    assert report.reproduced, report
    assert report.torn_bytes == 0
    assert report.actions == sum(len(turn.actions) for turn in turns)
    assert sum(isinstance(turn.event, NodeStarted) for turn in turns) == NODE_KILLS + 1
    given: Counter[tuple[int, int]] = Counter()
    taken: Counter[tuple[int, int]] = Counter()
    for turn in turns:
        for action in turn.actions:
            if isinstance(action, Grant) and isinstance(turn.event, TenantJoined):
                given[action.terms.slot, action.terms.generation] += 1
            if isinstance(action, Revoke):
                taken[action.slot, action.generation] += 1
    assert len(given) >= JOINS
    assert set(given.values()) == {1}, "nothing is granted twice"
    assert given == taken, "whatever was granted is free again, once"
    highest = Counter(slot for slot, _ in given)
    assert all(generation <= highest[slot] for slot, generation in given), "generations have no gaps"
    assert [turn.now for turn in turns] == sorted(turn.now for turn in turns), "the clock never goes back"
