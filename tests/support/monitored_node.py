"""A software GPU with gate, ledger, hooked programs and a monitor, without a node."""

from __future__ import annotations

import contextlib
import functools
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.ledger import LedgerSnapshot
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.node.daemon.monitor.monitor import DeviceMonitor, MonitorParts
from cotenant.node.daemon.monitor.nvml_sampler import NvmlSampler
from cotenant.node.daemon.processes import LiveProcesses
from cotenant.node.daemon.tenant_pages import TenantPages
from cotenant.node.model.event import Event, GpuSampled, NodeSettings, TimerFired
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import ExitPhase, GpuWatch, Health, Lifecycle, ProtectLimits
from cotenant.node.model.tenant import Tenant, TenantSpec, TenantView
from cotenant.runner.background import BackgroundTasks
from cotenant.runner.clock import LiveClock
from cotenant.runner.live_loop import LiveLoop
from cotenant.softgpu import manage
from cotenant.units.instant import MILLISECOND_NS
from tests.support.attach_server import AttachServer
from tests.support.gate_files import GENERATION
from tests.support.hook_runs import Hook, hook_before
from tests.support.node_in_process import until
from tests.support.software_gpus import PROGRAMS

LIMITS = ProtectLimits(period_ns=100 * MILLISECOND_NS, hang_factor=10, hang_least_ns=400 * MILLISECOND_NS)
WELL = GpuWatch(Health.HEALTHY)
CONTEXT_BYTES = 300 << 20
NO_SUCH_PID = 1 << 22  # no process has this number: the registry says which process belongs to which tenant
ENTRIES = (GateEntry(0, GENERATION, 2, online=True), GateEntry(1, GENERATION, 7, online=False))
T = TypeVar("T")


class FakeNode:
    """The state of a node as the test sets it."""

    def __init__(self, gpu: Gpu, limits: ProtectLimits) -> None:
        self.turn = 1
        self.settings = NodeSettings(2, 10**10, gpus=(gpu,), limits=limits)
        self.present: list[Tenant] = []
        self.health = [WELL]

    def tenants(self) -> list[TenantView]:
        return [TenantView(tenant, connected=True) for tenant in self.present]

    def watches(self) -> list[GpuWatch]:
        return self.health

    def set_tenants(self, *tenants: Tenant, health: GpuWatch = WELL) -> None:
        self.present, self.health = list(tenants), [health]
        self.turn += 1


def tenant(slot: int, *, phase: ExitPhase = ExitPhase.RUNNING, paused: bool = False) -> Tenant:
    """Return the online tenant of slot 0 or the offline tenant of slot 1."""
    kind, priority = (Kind.OFFLINE, 7) if slot else (Kind.ONLINE, 2)
    grant = Grant(slot, GENERATION, kind, priority, 0, 0, 0, 0)
    spec = TenantSpec(kind, priority)
    return Tenant(f"t{slot}", grant, spec, NO_SUCH_PID, 0, 0, paused=paused, lifecycle=Lifecycle(phase, turn=1))


class Program:
    """A program of tests/programs that runs as a tenant and follows commands."""

    def __init__(self, environ: dict[str, str], program: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / program)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)

    def received(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, *words: object) -> None:
        self.tell(*words)
        assert self.received() == "done"

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()


class MonitoredNode:
    """One software GPU with all parts; the monitor and the socket run in their own thread."""

    def __init__(self, home: Path, limits: ProtectLimits = LIMITS) -> None:
        self.directory = home / "gpu"
        manage.create(self.directory, "v100", 1, context_bytes=CONTEXT_BYTES, counts_code=True)
        self._home = Path(tempfile.mkdtemp(prefix="ct-"))  # short enough for the path of a socket
        self.socket = self._home / "tenant.sock"
        self.hook: Hook = hook_before(self.directory, home / "run-1")
        self.records = home
        self.known = FakeNode(Gpu("soft:0", 0, ("soft:0",)), limits)
        self.entries = ENTRIES
        self.events: list[Event] = []
        self.programs: list[Program] = []
        self._running: _Running | None = None

    def start(self) -> None:
        """Start the monitor, as a starting node does."""
        self._running = _Running(self)

    def stop(self) -> None:
        """Stop the monitor, as a node that stops or dies does."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def call(self, function: Callable[[_Running], T]) -> T:
        """Call a function in the monitor's thread and return its result."""
        assert self._running is not None
        return self._running.rounds.call(functools.partial(function, self._running))

    def next_wakeup(self) -> int | None:
        """Return the monitor's next wake-up as of a round of the loop that begins after this call."""
        assert self._running is not None
        rounds = self._running.rounds
        before = rounds.count
        until(lambda: rounds.count >= before + 2)
        return rounds.wakeup

    def set_paused(self, *, paused: bool) -> None:
        """Pause the launches of the offline tenant, or let them continue."""
        online, offline = ENTRIES
        self.entries = (online, msgspec.structs.replace(offline, paused=paused))
        if self._running is not None:
            self.call(lambda running: running.set_table())

    def program(self, slot: int, program: str = "worker.py", **more: str) -> Program:
        """Start a program in a slot and wait until it has its context."""
        environ = self.hook.environ("shim", measure=True)
        joining = {"COTENANT_SOCKET": str(self.socket), "COTENANT_TOKEN": str(slot), "COTENANT_REQUIRED": "1"}
        started = Program({**environ, **joining, **more}, program)
        self.programs.append(started)
        assert started.received() == "done"
        return started

    def device_counters(self) -> dict[str, Any]:
        return manage.inspect(self.directory, 0)

    def device_bytes(self) -> int:
        """Return the memory in use by the device's own counters."""
        device_counters = self.device_counters()
        return int(device_counters["memory_bytes"] - device_counters["memory_free_bytes"])

    def page(self, slot: int) -> dict[str, int | list[int]]:
        """Return the combined gate page of a tenant."""
        return self.call(lambda running: running.pages.page(0, slot))

    def ledger(self) -> LedgerSnapshot:
        return self.call(lambda running: running.ledgers.snapshot(0))

    def held(self, slot: int) -> int:
        account = self.ledger().accounts.get(slot)
        return 0 if account is None else account.held_bytes

    def lines(self) -> int:
        """Return the number of attached processes."""
        return self.call(lambda running: len(running.processes.on(0)))

    def ledger_bytes(self) -> int:
        return sum(account.held_bytes for account in self.ledger().accounts.values())

    def agree(self) -> None:
        """Wait until the ledger agrees with the device."""
        until(lambda: self.ledger_bytes() == self.device_bytes())

    def posted(self, kind: type[T]) -> list[T]:
        return [event for event in list(self.events) if isinstance(event, kind)]

    def seen(self, more: int) -> None:
        """Wait for this number of further samples."""
        before = len(self.posted(GpuSampled))
        until(lambda: len(self.posted(GpuSampled)) >= before + more)

    def close(self) -> None:
        for program in self.programs:
            program.kill()
        self.stop()
        manage.destroy(self.directory)
        shutil.rmtree(self._home)


class _Running:
    def __init__(self, monitored: MonitoredNode) -> None:
        self._monitored = monitored
        self._loop: LiveLoop[Event] = LiveLoop(LiveClock(0), TimerFired())
        self._grants, self._tables = LiveGrantPages(), LiveTenantTables()
        self.ledgers = LiveLedgers(self._grants)
        for entry in ENTRIES:
            kind = Kind.ONLINE if entry.online else Kind.OFFLINE
            self._grants.publish(Grant(entry.slot, GENERATION, kind, entry.priority, 0, 0, 0, 0), 1)
            self.ledgers.grant(0, entry.slot, GENERATION)
        self.set_table()
        self.processes = LiveProcesses(self._loop, (self._grants, self._tables, self.ledgers), lambda _: None)
        self.pages = TenantPages(self.processes, self._tables)
        self._server = AttachServer(self._loop, monitored.socket, self.processes, GENERATION)
        self._tasks = BackgroundTasks(self._loop, "test")
        parts = MonitorParts(
            self._grants,
            self._tables,
            self.ledgers,
            self.processes,
            NvmlSampler([monitored.directory]),
            self._tasks,
            monitored.records,
        )
        self.watch = DeviceMonitor(monitored.known, parts, monitored.events.append)
        self.rounds = _Rounds(self.watch)
        self._loop.add_timer(self.watch)
        self._loop.add_timer(self.rounds)
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def set_table(self) -> None:
        self._tables.set_table(0, GateRules(entries=self._monitored.entries))

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as failure:  # noqa: BLE001  raised again by close()
            self.failure = failure

    def close(self) -> None:
        self._loop.stop("the test is over")
        self._thread.join(30)
        assert not self._thread.is_alive(), "the loop hangs"
        self.watch.close()
        self._tasks.close()
        self._server.close()
        self.processes.close()
        self._grants.close()
        self._tables.close()
        self._loop.close()
        if self.failure is not None:
            raise self.failure


class _Rounds:
    """Wakes the loop often, so that it notices changes by the test, and runs what the test asks for."""

    def __init__(self, watch: DeviceMonitor) -> None:
        self._watch = watch
        self._calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self.count = 0
        self.wakeup: int | None = None

    def call(self, function: Callable[[], T]) -> T:
        results: queue.Queue[T] = queue.Queue()
        self._calls.put(lambda: results.put(function()))
        return results.get(timeout=60)

    def next_wakeup(self) -> int:
        self.wakeup = self._watch.next_wakeup()
        self.count += 1
        return 0 if not self._calls.empty() else LiveClock(0).now() + 5 * MILLISECOND_NS

    def wake(self, now: int) -> None:
        """Run what the test asks for."""
        del now
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()()


@contextlib.contextmanager
def monitored_node(home: Path, limits: ProtectLimits = LIMITS) -> Iterator[MonitoredNode]:
    """Yield a monitored node and close it afterwards."""
    monitored = MonitoredNode(home, limits)
    try:
        yield monitored
    finally:
        monitored.close()


def eventually(function: Callable[[], T]) -> T:
    """Wait until the function returns a true value, and return it."""
    values: list[T] = []

    def poll() -> T:
        values[:] = [function()]
        return values[0]

    until(poll)
    return values[0]


def changed(limits: ProtectLimits, **fields: int) -> ProtectLimits:
    """Return the limits with other values of these fields."""
    return msgspec.structs.replace(limits, **fields)
