"""Processes on a software GPU with memory quotas, and a node that only attaches and measures them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.ledger import LedgerLine
from cotenant.gate.process_pages import ProcessLedger
from cotenant.softgpu import manage
from tests.support.cuda_programs import ScriptedProgram
from tests.support.fake_node import FakeNode, NodePages
from tests.support.hook_runs import hook_before

GENERATION = 5


class LedgerFixture:
    """The ledger of one software GPU, tenants with quotas (0: none), and their processes."""

    def __init__(self, softgpu: Path, home: Path, *quotas_bytes: int) -> None:
        self.softgpu = softgpu
        self._home = Path(tempfile.mkdtemp(prefix="cotenant-"))  # short enough for the path of a socket
        self._pages = NodePages([self._grant(slot, quota) for slot, quota in enumerate(quotas_bytes)])
        self.ledgers = self._pages.ledgers
        self.node = FakeNode(self._home / "tenant.sock", self._pages)
        self.environs = []
        for slot in range(len(quotas_bytes)):
            hook = hook_before(softgpu, home / f"hook{slot}")
            variables = {"COTENANT_SOCKET": str(self.node.path), "COTENANT_TOKEN": str(slot)}
            self.environs.append({**hook.environ("shim"), **variables, "SOFTGPU_ACCOUNT": f"tenant{slot}"})
        self.started: list[ScriptedProgram] = []

    def _grant(self, slot: int, quota_bytes: int, kind: Kind = Kind.OFFLINE) -> Grant:
        return Grant(slot, GENERATION, kind, 7, 1_000_000, quota_bytes, 0, 0)

    def allow(self, slot: int, quota_bytes: int, kind: Kind = Kind.OFFLINE) -> None:
        """Set the quota of a tenant, at any time."""
        self._pages.grants.publish(self._grant(slot, quota_bytes, kind), 1)

    def start(self, slot: int) -> ScriptedProgram:
        """Start a process and return it once its context and code are loaded and measured."""
        program = ScriptedProgram(self.softgpu, **self.environs[slot])
        self.started.append(program)
        program.do("sync")
        self.measure()
        return program

    def _observe(self) -> None:
        """Read the pages of all processes, and charge what has been exported and freed, as the node does."""
        for process in self.node.attached:
            self.ledgers.observe(0, process.index, process.ledger())
        self.ledgers.settle(0, lambda _: False)
        self.ledgers.write(0)

    def held(self, slot: int) -> int:
        """Return the bytes that a tenant holds by the ledger."""
        with self.node.changed:
            self._observe()
            return self.ledgers.held(0, slot)

    def truth(self, slot: int, what: str = "memory_bytes") -> int:
        """Return a value of a tenant's account by the device's own counters."""
        accounts = manage.inspect(self.softgpu, 0)["accounts"]
        return sum(account[what] for account in accounts if account["account"] == f"tenant{slot}")

    def denied(self, slot: int) -> int:
        with self.node.changed:
            self._observe()
            return self.ledgers.denied(0).get(slot, 0)

    def lines(self, slot: int) -> tuple[LedgerLine, ...]:
        """Return the ledger lines of a tenant."""
        with self.node.changed:
            self._observe()
            return self.ledgers.snapshot(0).accounts[slot].lines

    def line(self, process: ScriptedProgram) -> LedgerLine:
        """Return the ledger line of one process."""
        slots = range(len(self.environs))
        return next(line for slot in slots for line in self.lines(slot) if line.pid == process.process.pid)

    def page(self, process: ScriptedProgram) -> ProcessLedger:
        """Return the ledger page of one process as the process wrote it."""
        return next(other for other in self.node.attached if other.pid == process.process.pid).ledger()

    def measure(self) -> None:
        """Do as the node does: set each line to the memory that the device reports."""
        with self.node.changed:
            self._observe()
            clients = manage.inspect(self.softgpu, 0)["clients"]
            held = {client["pid"]: client["counters"]["memory_bytes"] for client in clients}
            for process in self.node.attached:
                self.ledgers.measure(0, process.index, process.ledger(), held.get(process.pid, 0))
            self.ledgers.write(0)

    def set_reclaimable(self, slot: int, reclaimable_bytes: int) -> None:
        """Do as the node does for an online tenant: state how much it could get by evicting offline tenants."""
        with self.node.changed:
            self.ledgers.set_reclaimable(0, slot, reclaimable_bytes)
            self.ledgers.write(0)

    def learn_context(self, context_bytes: int) -> None:
        """Do as the node does once it has measured a context."""
        with self.node.changed:
            self.ledgers.learn_context(0, context_bytes)
            self.ledgers.write(0)

    def bury(self) -> None:
        """Do as the node does: release the memory of ended processes once the device has freed it."""
        ended = {program.process.pid for program in self.started if program.process.poll() is not None}
        self.node.until(lambda: not ended & {process.pid for process in self.node.attached})
        self.node.until(lambda: not ended & {client["pid"] for client in manage.inspect(self.softgpu, 0)["clients"]})
        with self.node.changed:
            self._observe()
            self.ledgers.settle(0, lambda pid: pid in ended)
            self.ledgers.write(0)

    def close(self) -> None:
        for program in self.started:
            if program.process.poll() is None:
                program.kill()
        self.node.close()
        self._pages.close()
        shutil.rmtree(self._home)
