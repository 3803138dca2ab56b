"""A node inside this process: the real loop, door, pages, journal and machine, on a clock that the test sets."""

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

from cotenant.domain.event import NodeSettings, NodeStarted
from cotenant.domain.gpu import Gpu
from cotenant.domain.instant import Instant
from cotenant.domain.tenant import Kind, TenantSpec, Terms
from cotenant.format import wire
from cotenant.host import Host, NodePorts, NodeWorld
from cotenant.live.client import Connection
from cotenant.live.directory import listen
from cotenant.live.door import PATIENCE_NS, LiveDoor
from cotenant.live.gate import LiveGates
from cotenant.live.journal import FileJournal
from cotenant.live.ledger import LiveLedgers
from cotenant.live.loop import LiveLoop
from cotenant.live.page import LivePages
from cotenant.machine.node import NodeMachine
from cotenant.sim.warden import SimWardens

SPEC = TenantSpec(Kind.OFFLINE, 7, command="test")
BOUND_S = 120.0


class SetClock:
    """Stands still until somebody moves it."""

    def __init__(self, start: Instant = 1_000) -> None:
        self._now = start

    def now(self) -> Instant:
        return self._now

    def advance(self, duration_ns: int) -> None:
        self._now += duration_ns


class InThread:
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


class Indoors:
    """Runs in a thread; whatever ends it but `close` is the failure of the test that did it."""

    def __init__(self, *, slots: int = 4, most: int = 16, bind: bool = True, gpus: tuple[Gpu, ...] = ()) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
        self.path = self.home / "node.sock"
        self.clock = SetClock()
        self.machine = NodeMachine()
        self.loop = LiveLoop(self.clock)
        self.door = LiveDoor(self.loop, self.clock, listen(self.path, -1), self._roll, most)
        self.pages = LivePages(self.home / "pages")
        self.gates = LiveGates(self.home / "pages", slots)
        self.ledgers = LiveLedgers(self.home / "pages", slots)
        self.journal = FileJournal(self.home / "journal", 1 << 30)
        if bind:
            ports = NodePorts(self.door, self.pages, self.gates, self.ledgers, SimWardens())
            world = NodeWorld(ports, self.loop.stop)
            self.loop.bind(Host(self.machine, world.deeds(), self.journal))
            self.loop.post(NodeStarted(NodeSettings(slots, 10**10, gpus=gpus), "test", 0))
        self.running = InThread(self.loop.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _roll(self) -> wire.Tenants:
        return wire.Tenants(
            wire.VERSION,
            "test",
            os.getpid(),
            self.machine.tenants(),
            list(self.machine.departed),
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
        self.door.close()
        self.pages.close()
        self.gates.close()
        self.ledgers.close()
        self.journal.close()
        self.loop.close()
        shutil.rmtree(self.home, ignore_errors=True)
        self.running.check()

    # -- peers -------------------------------------------------------------------------------------------------

    def honest(self) -> wire.Tenants:
        """The answer that an honest client must get whatever others do."""
        with Connection(self.path, BOUND_S) as connection:
            answer, _ = connection.ask(wire.List(wire.VERSION))
        assert isinstance(answer, wire.Tenants)
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
        return len(self.door._peers)

    def settled(self, peers: int = 0) -> None:
        """Wait until so many connections are left."""
        until(lambda: self.peers() == peers)


def heard(connection: socket.socket) -> list[wire.Answer]:
    """All that the node says until it hangs up; being reset is a way of hanging up."""
    frames = wire.Frames(wire.ANSWER_LIMIT_BYTES)
    answers = []
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            answers += [wire.decode_answer(frame) for frame in frames.feed(data)]
    connection.close()
    return answers


def join(connection: Connection, spec: TenantSpec = SPEC) -> Terms:
    """Become a tenant; the page is looked at by other tests."""
    answer, handed = connection.ask(wire.Join(wire.VERSION, spec))
    assert isinstance(answer, wire.Welcome), answer
    assert handed
    for descriptor in handed:
        os.close(descriptor)
    return answer.terms


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
