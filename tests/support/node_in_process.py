"""A node in this process: the real loop, listener, pages, journal and state machine on a manual clock."""

import contextlib
import gc
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from cotenant.gate.gate_file import LiveTenantTables
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.grant_file import LiveGrantPages
from cotenant.gate.ledger_file import LiveLedgers
from cotenant.node import wire
from cotenant.node.client.connection import Connection
from cotenant.node.daemon.listener import PATIENCE_NS, LiveListener
from cotenant.node.directories import listen
from cotenant.node.host import NodeEffects, NodeHost, NodePorts
from cotenant.node.model.event import Event, NodeSettings, NodeStarted, TimerFired
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.sim.node import SimEnforcer
from cotenant.node.state.node import NodeMachine
from cotenant.runner.journal_file import FileJournal
from cotenant.runner.live_loop import LiveLoop
from cotenant.units.instant import Instant

SPEC = TenantSpec(Kind.OFFLINE, 7, command="test")
BOUND_S = 120.0


class ManualClock:
    """Stands still until somebody moves it."""

    def __init__(self, start: Instant = 1_000) -> None:
        self._now = start

    def now(self) -> Instant:
        return self._now

    def advance(self, duration_ns: int) -> None:
        self._now += duration_ns


class NodeThread:
    """A loop that runs in a thread of its own."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._target = run
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._target()
        except BaseException as failure:  # noqa: BLE001  the thread that checks raises it again
            self.failure = failure

    def join(self) -> None:
        """Wait until it has ended, as it was told to."""
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive(), "the loop hangs"

    def check(self) -> None:
        """Fail if it had died before."""
        if self.failure is not None:
            raise self.failure


class InProcessNode:
    """Runs in a thread; whatever ends it but `close` is the failure of the test that did it."""

    def __init__(self, *, slots: int = 4, most: int = 16, bind: bool = True, gpus: tuple[Gpu, ...] = ()) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
        self.path = self.home / "node.sock"
        self.clock = ManualClock()
        self.machine = NodeMachine()
        self.loop: LiveLoop[Event] = LiveLoop(self.clock, TimerFired())
        self.listener = LiveListener(self.loop, self.clock, listen(self.path, -1), self._roll, most)
        self.pages = LiveGrantPages(self.home / "pages")
        self.gates = LiveTenantTables(self.home / "pages", slots)
        self.ledgers = LiveLedgers(self.home / "pages", slots)
        self.journal = FileJournal(self.home / "journal", 1 << 30)
        if bind:
            ports = NodePorts(self.listener, self.pages, self.gates, self.ledgers, SimEnforcer())
            world = NodeEffects(ports, self.loop.stop)
            self.loop.bind(NodeHost(self.machine, world.effects(), self.journal))
            self.loop.post(NodeStarted(NodeSettings(slots, 10**10, gpus=gpus), "test", 0))
        self.running = NodeThread(self.loop.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _roll(self) -> wire.TenantList:
        return wire.TenantList(
            wire.VERSION,
            "test",
            os.getpid(),
            self.machine.tenants(),
            list(self.machine.registry.departed),
            self.clock.now(),
            self.machine.turn,
            self.machine.settings.slots,
            [],
            self.loop.turn_ns.histogram(),
            self.machine.rules,
            self.machine.watches(),
        )

    def close(self) -> None:
        """Stop, and fail if the node had died before."""
        self.loop.stop("the test is over")
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as nudge:
            nudge.connect(str(self.path))
        self.running.join()
        self.listener.close()
        self.pages.close()
        self.gates.close()
        self.ledgers.close()
        self.journal.close()
        self.loop.close()
        shutil.rmtree(self.home, ignore_errors=True)
        self.running.check()

    # -- peers -------------------------------------------------------------------------------------------------

    def honest(self) -> wire.TenantList:
        """The answer that an honest client must get whatever others do."""
        with Connection(self.path, BOUND_S) as connection:
            answer, _ = connection.ask(wire.ListTenants(wire.VERSION))
        assert isinstance(answer, wire.TenantList)
        return answer

    def stranger(self, *said: bytes) -> socket.socket:
        """A connection that keeps to no protocol."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))  # without a timeout it waits while the node's backlog is full
        connection.settimeout(BOUND_S)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the node may have had enough already
            for data in said:
                connection.sendall(data)
        return connection

    def let_patience_run_out(self) -> None:
        """Move the clock past every deadline; an honest question makes the loop look at it."""
        self.clock.advance(PATIENCE_NS)
        self.honest()

    def peers(self) -> int:
        return len(self.listener._peers)

    def settled(self, peers: int = 0) -> None:
        """Wait until so many connections are left, and the node knows how long each that is no tenant may be silent."""
        until(
            lambda: self.peers() == peers and all(self.is_timed(peer) for peer in list(self.listener._peers.values()))
        )

    def is_timed(self, peer: Any) -> bool:
        """Whether the node has set its deadline: a clock that is moved before that moves the deadline, too."""
        return peer.tenant or peer.joins or peer.number in self.listener._deadlines


def received(connection: socket.socket) -> list[wire.Answer]:
    """All that the node says until it hangs up; being reset is a way of hanging up."""
    frames = wire.Frames(wire.ANSWER_LIMIT_BYTES)
    answers = []
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            answers += [wire.decode_answer(frame) for frame in frames.feed(data)]
    connection.close()
    return answers


def join(connection: Connection, spec: TenantSpec = SPEC) -> Grant:
    """Become a tenant; the page is looked at by other tests."""
    answer, handed = connection.ask(wire.Join(wire.VERSION, spec))
    assert isinstance(answer, wire.Welcome), answer
    assert handed
    for descriptor in handed:
        os.close(descriptor)
    return answer.grant


def descriptors() -> int:
    """How many this process has open; what earlier tests left is not to vanish between two looks."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def open_files() -> set[tuple[int, int, int]]:
    """What this process has open: more than before is a leak, less is only what the garbage of an earlier test held."""
    found = set()
    for number in [int(path.name) for path in list(Path("/proc/self/fd").iterdir())]:
        with contextlib.suppress(OSError):  # that of the listing itself is closed already
            status = os.fstat(number)
            found.add((number, status.st_dev, status.st_ino))
    return found


def until(wanted: Callable[[], Any]) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + BOUND_S
    while not wanted():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
