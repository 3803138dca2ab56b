"""Bench `memory`: whether memory quotas hold while processes allocate and are killed."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.errors import CotenantError
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.ledger import LedgerSnapshot
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.hook import probe, shim
from cotenant.node.client.connection import list_tenants, read_activity
from cotenant.node.directories import Directories
from cotenant.runner.clock import LiveClock, pause
from cotenant.runner.process import run_and_capture
from cotenant.softgpu import manage
from cotenant.units.text import round_size
from cotenant_lab.bench.attach_server import AttachServer
from cotenant_lab.errors import RunFailedError
from cotenant_lab.programs.board import KINDS, QUIET, STOP, WORK, Board

OPERATIONS: Final = 100_000
QUICK_OPERATIONS: Final = 2_400
KILLS: Final = 48
QUICK_KILLS: Final = 8
QUIETS: Final = 10
QUICK_QUIETS: Final = 2
CONTEXT_BYTES: Final = 24 << 20
BURSTS: Final = 60
CALLS: Final = 1_000
_MIB: Final = 1 << 20
_PATIENCE_S: Final = 120.0
_SETTLED_S: Final = 60.0
"""Limit for clearing up after killed processes; only what is never released counts as leaked."""
_LOOK_S: Final = 0.01
ReportLine = Callable[[str], None]


class BenchTenant(NamedTuple):
    """A tenant of the bench: several processes under one quota."""

    name: str
    workers: int
    quota_bytes: int


TENANTS: Final = (
    BenchTenant("four", 4, 1024 * _MIB),
    BenchTenant("two", 2, 512 * _MIB),
    BenchTenant("other", 2, 384 * _MIB),
)
SCOUT: Final = BenchTenant("scout", 1, 256 * _MIB)
LARGEST_BYTES: Final = 128 * _MIB


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of `bench memory`."""

    bench: str = "memory"
    costs: str = "ideal"
    processes: int
    operations: int
    kills: int
    denied: int
    stale_handles: int
    failed: int
    """Calls that failed for an unknown reason."""
    allocations: dict[str, int]
    bypassed_bytes: int
    """The largest amount by which any tenant exceeded its quota, without memory that it left to another tenant, which
    is charged for it."""
    leaked_bytes: int
    """Largest difference between ledger and device at rest, plus what remained after all processes ended."""
    quiet_points: int
    peaks: dict[str, int]
    quotas: dict[str, int]
    added_ns_per_alloc: float
    """An allocation with its free, compared with the hook without a ledger."""
    met: dict[str, bool]
    """Targets by field."""


def bench_memory(rounds: int, report: ReportLine, *, quick: bool = False) -> MemoryReport:
    """Run eight processes of three tenants on a software GPU, then time one process with an idle driver."""
    home = Path(tempfile.mkdtemp(prefix="cotenant-memory-"))
    try:
        with _MemorySetup(home, quick=quick, report=report) as setup:
            setup.run()
            metrics = setup.metrics()
        added_ns = _added_ns(home, rounds, report)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    targets = {name: not metrics[name] for name in ("bypassed_bytes", "leaked_bytes")}
    return MemoryReport(**metrics, added_ns_per_alloc=added_ns, met=targets)


class _MemorySetup:
    """A software GPU, a node and the tenants in one directory."""

    def __init__(self, home: Path, *, quick: bool, report: ReportLine) -> None:
        self._home = home
        self._report = report
        self._directories = Directories(home / "run", home / "state")
        self._gpus = self._directories.runtime / "softgpu"
        self._operations = QUICK_OPERATIONS if quick else OPERATIONS
        self._kills = QUICK_KILLS if quick else KILLS
        self._quiets = QUICK_QUIETS if quick else QUIETS
        self._clock = LiveClock(0)
        self._boards = {tenant.name: Board(home / f"board-{tenant.name}", tenant.workers) for tenant in TENANTS}
        self._running: list[subprocess.Popen[bytes]] = []
        self._node: subprocess.Popen[bytes] | None = None
        self._leaked = 0
        self._remaining = 0

    def __enter__(self) -> Self:
        for directory in (self._directories.runtime, self._directories.state):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        manage.create(self._gpus, "v100", 1, context_bytes=CONTEXT_BYTES, counts_code=True)
        with (self._home / "node.err").open("ab") as complaints:
            self._node = subprocess.Popen(
                self._cotenant("node", "--slots", "8"), stdin=subprocess.DEVNULL, stdout=complaints, stderr=complaints
            )
        for _ in self._until("the node does not answer"):
            try:
                list_tenants(self._directories)
            except CotenantError:
                continue
            return self
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.communicate()  # closes its input, too
        if self._node is not None:
            self._node.terminate()
            self._node.wait()
        manage.destroy(self._gpus)

    def run(self) -> None:
        """Run all processes to their end."""
        total = sum(tenant.workers for tenant in TENANTS)
        self._report(f"{total} processes of {len(TENANTS)} tenants, of which {self._kills} are killed")
        self._learn_context_bytes()
        for number, tenant in enumerate(TENANTS):
            self._start(number, tenant, self._operations // total, self._kills * tenant.workers // total)
        goal = self._operations // total * total
        for quiet in range(1, self._quiets + 1):
            for _ in self._until("the processes make no progress"):
                if self._total("done") * self._quiets >= goal * quiet:
                    break
            self._order(QUIET)
            self._leaked = max(self._leaked, self._difference())
            self._report(f"{self._total('done')} of {goal} operations, {self._total('denied')} refused")
            self._order(WORK)
        for board in self._boards.values():
            board.set_order(STOP)
        self._remaining = self._remains()

    def metrics(self) -> dict[str, Any]:
        """Return the measured values."""
        accounts = {account["account"]: account for account in manage.inspect(self._gpus, 0)["accounts"]}
        peaks = {tenant.name: accounts[tenant.name]["kept_peak_bytes"] for tenant in TENANTS}
        lives = self._total("lives")
        return {
            "processes": sum(tenant.workers for tenant in TENANTS),
            "operations": self._total("done"),
            "kills": lives - sum(tenant.workers for tenant in TENANTS),
            "denied": self._total("denied"),
            "stale_handles": self._total("stale"),
            "failed": self._total("failed"),
            "allocations": {kind: self._total(kind) for kind in KINDS},
            "bypassed_bytes": max(0, *(peaks[tenant.name] - tenant.quota_bytes for tenant in TENANTS)),
            "leaked_bytes": self._leaked + self._remaining,
            "quiet_points": self._quiets,
            "peaks": peaks,
            "quotas": {tenant.name: tenant.quota_bytes for tenant in TENANTS},
        }

    # -- tenants -------------------------------------------------------------------------------------------------

    def _learn_context_bytes(self) -> None:
        """Run one process that has only a context, from which the node learns what a context needs on this device."""
        board = Board(self._home / f"board-{SCOUT.name}", SCOUT.workers)
        self._start(0, SCOUT, 0, 0)
        for _ in self._until("the node does not learn what a context needs"):
            if (snapshot := self._ledger()) is not None and snapshot.context_bytes:
                break
        board.set_order(STOP)
        scout = self._running.pop()
        scout.communicate()

    def _cotenant(self, *words: str) -> list[str]:
        directory_flags = ["--runtime-dir", str(self._directories.runtime), "--state-dir", str(self._directories.state)]
        return [sys.executable, "-m", "cotenant", words[0], *directory_flags, *words[1:]]

    def _start(self, number: int, tenant: BenchTenant, operations: int, kills: int) -> None:
        numbers = (tenant.workers, operations, kills, number + 1, LARGEST_BYTES)
        results = [str(self._home / f"board-{tenant.name}"), str(self._home / "mail"), *map(str, numbers)]
        flags = ["--name", tenant.name, "--gpu", "soft:0", "--offline", "--memory", f"{tenant.quota_bytes}B"]
        lead = [sys.executable, "-m", "cotenant_lab.programs.hoard", "lead", *results]
        with (self._home / f"{tenant.name}.err").open("ab") as complaints:
            self._running.append(
                subprocess.Popen(
                    self._cotenant(
                        "run", *flags, "--measure", "never", "--", "env", f"SOFTGPU_ACCOUNT={tenant.name}", *lead
                    ),
                    stdin=subprocess.PIPE,
                    stdout=complaints,
                    stderr=complaints,
                )
            )

    def _total(self, word: str) -> int:
        return sum(board.total(word) for board in self._boards.values())

    def _order(self, order: int) -> None:
        for board in self._boards.values():
            board.set_order(order)
        if order != QUIET:
            return
        for _ in self._until("the processes do not pause"):
            if all(board.obeyed() for board in self._boards.values()):
                return

    # -- ledger and device ---------------------------------------------------------------------------------------

    def _ledger(self) -> LedgerSnapshot | None:
        devices = read_activity(self._directories).gpus
        return devices[0].ledger if devices else None

    def _present_difference(self) -> int:
        """Return the difference between ledger and device in the memory of all tenants on the device.

        It is not compared by tenant: memory that a process left to processes of other tenants counts for one of those
        tenants, and the device's accounts name the tenant that allocated it.
        """
        slots = {row.tenant.name: row.tenant.grant.slot for row in list_tenants(self._directories).tenants}
        snapshot = self._ledger()
        counters = {
            account["account"]: account["memory_bytes"] for account in manage.inspect(self._gpus, 0)["accounts"]
        }
        difference = 0
        for tenant in TENANTS:
            account = snapshot.accounts.get(slots.get(tenant.name, -1)) if snapshot is not None else None
            managed = sum(line.managed_bytes for line in account.lines) if account is not None else 0
            held = account.held_bytes - managed if account is not None else 0
            difference += held - counters.get(tenant.name, 0)
        return abs(difference)

    def _difference(self) -> int:
        """Return the difference after the memory of killed processes was released, or after a time limit."""
        end_ns = self._clock.now() + round(_SETTLED_S * 1e9)
        while (difference := self._present_difference()) and self._clock.now() < end_ns:
            pause(_LOOK_S)
        return difference

    def _remains(self) -> int:
        """Return what ledger and device still hold after every process ended."""
        for _ in self._until("the processes do not end"):
            if not manage.inspect(self._gpus, 0)["clients"]:
                break
        remaining = self._difference()
        counters = manage.inspect(self._gpus, 0)["accounts"]
        return remaining + sum(int(counter["memory_bytes"]) for counter in counters)

    def _until(self, otherwise: str) -> Iterator[None]:
        end_ns = self._clock.now() + round(_PATIENCE_S * 1e9)
        while self._clock.now() < end_ns:
            yield
            if any(process.poll() is not None for process in self._running):
                raise RunFailedError(f"a tenant of the bench ended: {self._complaint()}")
            pause(_LOOK_S)
        raise RunFailedError(f"{otherwise}: {self._complaint()}")

    def _complaint(self) -> str:
        lines = [line for file in sorted(self._home.glob("*.err")) for line in file.read_text().splitlines()[-3:]]
        return " / ".join(lines) or "no process printed a reason"


# -- cost --------------------------------------------------------------------------------------------------------
def _added_ns(home: Path, rounds: int, report: ReportLine) -> float:
    """Alternate the hook with and without a ledger; compare each with the bare driver in the same process."""
    costs: dict[bool, list[float]] = {False: [], True: []}
    for number in range(1, rounds + 1):
        report(f"round {number} of {rounds}: {BURSTS} bursts of {CALLS} allocations, with and without a ledger")
        for has_ledger, samples in costs.items():
            samples.extend(_bursts(home / f"cost{number}-{int(has_ledger)}", has_ledger=has_ledger))
    return statistics.median(costs[True]) - statistics.median(costs[False])


def _bursts(home: Path, *, has_ledger: bool) -> list[float]:
    """Return the nanoseconds that the hook adds to an allocation with its free, burst by burst."""
    home.mkdir()
    environ = probe.environment(home, shim.null_driver(), {}, measure=False, sample=0)
    grant = Grant(0, 1, Kind.OFFLINE, 7, 0, 1 << 30, 0, 0)
    server = AttachServer([grant], GateRules(entries=(GateEntry(0, 1, 7, online=False),)))
    try:
        if has_ledger:
            environ |= server.variables(0)
        command = [sys.executable, "-m", "cotenant.hook.probe", "compare", str(BURSTS), str(CALLS)]
        rows: list[list[float]] = msgspec.json.decode(run_and_capture(command, environ))
        if has_ledger and server.ledger(0) is None:
            raise RunFailedError("the hook found no ledger: nothing was measured")
    finally:
        server.close()
    return [2 * (row[3] - row[2]) for row in rows]


def show_memory(console: Console, report: MemoryReport) -> None:
    """Print the report of `cotenant-lab bench memory`."""
    rows = [[name, round_size(quota), round_size(report.peaks[name])] for name, quota in report.quotas.items()]
    console.print(table("by the device's accounting", ["TENANT", "QUOTA", "PEAK"], rows))
    console.print(table("allocations", ["KIND", "COUNT"], [[kind, str(n)] for kind, n in report.allocations.items()]))
    console.print(
        f"{report.operations} operations of {report.processes} processes, {report.kills} of them killed; "
        f"{report.denied} refused because of a quota, {report.stale_handles} stale handles, {report.failed} failed"
    )
    console.print(
        f"beyond a quota: {report.bypassed_bytes} B; difference of ledger and device: {report.leaked_bytes} B"
    )
    console.print(f"an allocation with its free costs {report.added_ns_per_alloc:.0f} ns more than without a ledger")
