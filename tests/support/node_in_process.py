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

import msgspec

from cotenant.gate.activity import DeviceSnapshot, GateCounts
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.node import wire
from cotenant.node.client.connection import Connection
from cotenant.node.config.access import LimitsConfig, OperatorsConfig
from cotenant.node.daemon.access import Access
from cotenant.node.daemon.attaching import NodeServices
from cotenant.node.daemon.listener import PATIENCE_NS, ListeningSockets, LiveListener
from cotenant.node.daemon.tokens import Tokens
from cotenant.node.directories import Directories, listen
from cotenant.node.host import NodeEffects, NodeHost, NodePorts
from cotenant.node.model.event import Event, NodeSettings, NodeStarted, TimerFired
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.peer import PeerIdentity
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.peer import identify
from cotenant.node.sim.node import SimEnforcer
from cotenant.node.state.node import NodeMachine
from cotenant.runner.journal_file import FileJournal
from cotenant.runner.live_loop import LiveLoop
from cotenant.units.instant import Instant
from tests.support.fake_processes import FakeProcesses

SPEC = TenantSpec(Kind.OFFLINE, 7, command="test")
NO_OPERATORS = OperatorsConfig()
BOUND_S = 120.0


class ManualClock:
    """A clock that changes only when the test advances it."""

    def __init__(self, start: Instant = 1_000) -> None:
        self._now = start

    def now(self) -> Instant:
        return self._now

    def advance(self, duration_ns: int) -> None:
        self._now += duration_ns


class NodeThread:
    """Runs a function, such as a loop, in its own thread."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._target = run
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._target()
        except BaseException as failure:  # noqa: BLE001  raised again by check()
            self.failure = failure

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive(), "the loop hangs"

    def check(self) -> None:
        """Raise the exception that ended the function, if any."""
        if self.failure is not None:
            raise self.failure


class InProcessNode:
    """A node in a thread; if anything but `close` ends it, the test fails."""

    def __init__(
        self,
        *,
        slots: int = 4,
        most: int = 16,
        bind: bool = True,
        gpus: tuple[Gpu, ...] = (),
        operators: OperatorsConfig = NO_OPERATORS,
        limits: tuple[LimitsConfig, ...] = (),
        burst: int = 10**9,
        do_pods_need_grant: bool = False,
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
        self.directories = Directories(self.home, self.home)
        self.path = self.directories.tenant_socket
        self.peer_fields: dict[str, Any] = {}
        """Replaces fields of the identity of each peer that connects to the tenant socket from now on."""
        self.operator_fields: dict[str, Any] = {}
        """The same for the operator socket."""
        self.processes = FakeProcesses()
        self.environment: dict[str, str] = {}
        self.clock = ManualClock()
        self.machine = NodeMachine()
        self.loop: LiveLoop[Event] = LiveLoop(self.clock, TimerFired())
        self.tokens = Tokens(b"k" * 32)
        services = NodeServices(
            self.machine.tenants,
            lambda: self.machine.settings.gpus,
            self._tenant_list,
            self._activity,
            lambda grant: dict(self.environment),
            lambda spec: None,
            self.processes,
            Access(operators, limits, os.geteuid()),
            self.tokens,
            do_pods_need_grant,
        )
        sockets = ListeningSockets(listen(self.path, 0o666), listen(self.directories.operator_socket, 0o666))
        self._operator_socket = sockets.operator
        self.listener = LiveListener(
            self.loop, self.clock, sockets, services, most, identify_peer=self._identify, burst=burst
        )
        self.pages = LiveGrantPages()
        self.gates = LiveTenantTables()
        self.ledgers = LiveLedgers(self.pages)
        self.journal = FileJournal(self.home / "journal", 1 << 30)
        if bind:
            ports = NodePorts(self.listener, self.pages, self.gates, self.ledgers, SimEnforcer())
            effects = NodeEffects(ports, self.loop.stop)
            self.loop.bind(NodeHost(self.machine, effects.effects(), self.journal))
            self.loop.post(NodeStarted(NodeSettings(slots, 10**10, gpus=gpus), "test", 0))
        self.running = NodeThread(self.loop.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _identify(self, connection: socket.socket) -> PeerIdentity:
        is_operator = connection.getsockname() == str(self.directories.operator_socket)
        fields = self.operator_fields if is_operator else self.peer_fields
        return msgspec.structs.replace(identify(connection), **fields)

    def _activity(self) -> wire.Activity:
        """Return the tables and accounts of all devices; no process has launched anything."""
        devices = []
        for gpu in range(len(self.machine.settings.gpus)):
            rules = self.gates.read(gpu)
            counts = {} if rules is None else {entry.slot: GateCounts() for entry in rules.entries}
            gate = None if rules is None else DeviceSnapshot(gpu, self.clock.now(), rules, counts)
            devices.append(wire.GpuActivity(gate, self.ledgers.snapshot(gpu), {}))
        return wire.Activity(wire.VERSION, devices)

    def _tenant_list(self) -> wire.TenantList:
        return wire.TenantList(
            wire.VERSION,
            "test",
            os.getpid(),
            self.machine.tenants(),
            list(self.machine.registry.departed),
            self.clock.now(),
            self.machine.turn,
            self.machine.settings.slots,
            list(self.machine.settings.gpus),
            self.loop.turn_ns.histogram(),
            self.machine.rules,
            self.machine.watches(),
        )

    def close(self) -> None:
        """Stop, and fail if the node has died before."""
        self.loop.stop("the test is over")
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as wakeup:
            wakeup.connect(str(self.path))
        self.running.join()
        self.listener.close()
        self.processes.close()
        self.pages.close()
        self.gates.close()
        self.journal.close()
        self.loop.close()
        shutil.rmtree(self.home, ignore_errors=True)
        self.running.check()

    # -- peers -------------------------------------------------------------------------------------------------

    def honest(self) -> wire.TenantList:
        """Return the answer that a well-behaved client must get whatever other peers do."""
        before, self.operator_fields = self.operator_fields, {}
        with Connection(self.directories.operator_socket, BOUND_S) as connection:
            answer, _ = connection.ask(wire.ListTenants(wire.VERSION))
        self.operator_fields = before
        assert isinstance(answer, wire.TenantList)
        return answer

    def stranger(self, *messages: bytes) -> socket.socket:
        """Open a connection and send these bytes, which need not follow the protocol."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))  # without a timeout it waits while the node's backlog is full
        connection.settimeout(BOUND_S)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the node may have closed it already
            for data in messages:
                connection.sendall(data)
        return connection

    def let_patience_run_out(self) -> None:
        """Move the clock past every deadline; a request makes the loop check them."""
        self.clock.advance(PATIENCE_NS)
        self.honest()

    def peers(self) -> int:
        return len(self.listener._peers)

    def settled(self, peers: int = 0) -> None:
        """Wait until this number of connections is left, and each without a tenant has a deadline."""
        until(
            lambda: self.peers() == peers and all(self.is_timed(peer) for peer in list(self.listener._peers.values()))
        )

    def is_timed(self, peer: Any) -> bool:
        """Return whether the node has set the peer's deadline: advancing the clock earlier would delay it."""
        return not peer.is_idle or peer.number in self.listener._deadlines


def received(connection: socket.socket) -> list[wire.Answer]:
    """Return all answers until the node closes or resets the connection."""
    frames = wire.Frames(wire.ANSWER_LIMIT_BYTES)
    answers = []
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            answers += [wire.decode_answer(frame) for frame in frames.feed(data)]
    connection.close()
    return answers


def join(connection: Connection, spec: TenantSpec = SPEC) -> Grant:
    """Join as a tenant and return the grant."""
    answer, descriptors_received = connection.ask(wire.Join(wire.VERSION, spec))
    assert isinstance(answer, wire.Welcome), answer
    assert not descriptors_received
    return answer.grant


def descriptors() -> int:
    """Return the number of open descriptors, after collecting the garbage of earlier tests."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def open_files() -> set[tuple[int, int, int]]:
    """Return the open files of this process: additional ones are leaks, missing ones were garbage of earlier tests."""
    files = set()
    for number in [int(path.name) for path in list(Path("/proc/self/fd").iterdir())]:
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed already
            status = os.fstat(number)
            files.add((number, status.st_dev, status.st_ino))
    return files


def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds; another thread makes it true."""
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)
