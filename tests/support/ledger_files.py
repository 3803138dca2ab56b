"""Processes on a software GPU with memory quotas, without a node."""

from __future__ import annotations

from pathlib import Path

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.grant_file import SLOT_VARIABLE, LiveGrantPages
from cotenant.gate.ledger import LedgerLine
from cotenant.gate.ledger_file import LiveLedgers, ledger_path
from cotenant.runner.clock import pause
from cotenant.softgpu import manage
from tests.support.cuda_programs import ScriptedProgram
from tests.support.hook_runs import hook_before

GENERATION = 5
_POLL_S = 0.005


class LedgerFixture:
    """The ledger of one software GPU, tenants with quotas (0: none), and their processes."""

    def __init__(self, softgpu: Path, home: Path, *quotas_bytes: int) -> None:
        self.softgpu = softgpu
        self.ledgers = LiveLedgers(home / "pages", len(quotas_bytes))
        self._pages = LiveGrantPages(home / "pages")
        self.environs = []
        for slot, quota_bytes in enumerate(quotas_bytes):
            self.allow(slot, quota_bytes)
            self.ledgers.grant(0, slot, GENERATION)
            hook = hook_before(softgpu, home / f"hook{slot}")
            (hook.records / "ledger").symlink_to(ledger_path(home / "pages", 0))
            (hook.records / "grant").symlink_to(home / "pages" / f"grant-{slot:04d}")
            variables = {SLOT_VARIABLE: f"{slot}/{GENERATION}", "SOFTGPU_ACCOUNT": f"tenant{slot}"}
            self.environs.append({**hook.environ("shim"), **variables})
        self.started: list[ScriptedProgram] = []

    def allow(self, slot: int, quota_bytes: int, kind: Kind = Kind.OFFLINE) -> None:
        """Set the quota of a tenant, at any time."""
        self._pages.publish(Grant(slot, GENERATION, kind, 7, 1_000_000, quota_bytes, 0, 0), 1)

    def start(self, slot: int) -> ScriptedProgram:
        """Start a process and return it once its context and code are loaded and measured."""
        program = ScriptedProgram(self.softgpu, **self.environs[slot])
        self.started.append(program)
        program.do("sync")
        self.measure()
        return program

    def held(self, slot: int) -> int:
        """Return the bytes that a tenant holds by the ledger."""
        return self.ledgers.held(0, slot)

    def truth(self, slot: int, what: str = "memory_bytes") -> int:
        """Return a value of a tenant's account by the device's own counters."""
        accounts = manage.inspect(self.softgpu, 0)["accounts"]
        return sum(account[what] for account in accounts if account["account"] == f"tenant{slot}")

    def denied(self, slot: int) -> int:
        return sum(line.denied for line in self.ledgers.lines(0) if line.slot == slot)

    def line(self, process: ScriptedProgram) -> LedgerLine:
        """Return the ledger line of one process."""
        return next(line for line in self.ledgers.lines(0) if line.owner >> 42 == process.process.pid)

    def measure(self) -> None:
        """Do as the node does: set each line to the memory that the device reports."""
        lines = self.ledgers.lines(0)
        held = {
            client["pid"]: client["counters"]["memory_bytes"] for client in manage.inspect(self.softgpu, 0)["clients"]
        }
        for line in lines:
            self.ledgers.measured(0, line, held.get(line.owner >> 42, 0))

    def bury(self) -> None:
        """Do as the node does: clear the lines of ended processes once the device has freed their memory."""
        alive = {client["pid"] for client in manage.inspect(self.softgpu, 0)["clients"]}
        for line in self.ledgers.lines(0):
            pid = line.owner >> 42
            while pid in alive and not Path(f"/proc/{pid}").exists():
                pause(_POLL_S)
                alive = {client["pid"] for client in manage.inspect(self.softgpu, 0)["clients"]}
            if pid not in alive:
                self.ledgers.clear(0, line.slot, line.line, line.owner)
        for slot in range(len(self.environs)):
            self.ledgers.sweep(0, slot)

    def close(self) -> None:
        for program in self.started:
            if program.process.poll() is None:
                program.kill()
        self.ledgers.close()
        self._pages.close()
