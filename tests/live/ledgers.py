"""How do tests hold processes on a soft GPU to a quota without a node?"""

from __future__ import annotations

from pathlib import Path

from cotenant.domain.ledger import LedgerLine
from cotenant.domain.tenant import Kind, Terms
from cotenant.live.clock import pause
from cotenant.live.ledger import LiveLedgers, path_of
from cotenant.live.page import SLOT_VARIABLE, LivePages
from cotenant.live.softgpu import manage
from tests.live.hooks import hook_before
from tests.live.puppets import Puppet

GENERATION = 5
_LOOK_S = 0.005


class Quotas:
    """The ledger of one soft GPU, tenants with quotas (0: none), and processes of theirs."""

    def __init__(self, softgpu: Path, home: Path, *quotas_bytes: int) -> None:
        self.softgpu = softgpu
        self.ledgers = LiveLedgers(home / "pages", len(quotas_bytes))
        self._pages = LivePages(home / "pages")
        self.environs = []
        for slot, quota_bytes in enumerate(quotas_bytes):
            self.allow(slot, quota_bytes)
            self.ledgers.grant(0, slot, GENERATION)
            hook = hook_before(softgpu, home / f"hook{slot}")
            (hook.records / "ledger").symlink_to(path_of(home / "pages", 0))
            (hook.records / "terms").symlink_to(home / "pages" / f"terms-{slot:04d}")
            told = {SLOT_VARIABLE: f"{slot}/{GENERATION}", "SOFTGPU_ACCOUNT": f"tenant{slot}"}
            self.environs.append({**hook.environ("shim"), **told})
        self.started: list[Puppet] = []

    def allow(self, slot: int, quota_bytes: int, kind: Kind = Kind.OFFLINE) -> None:
        """Say the quota of a tenant, at any time."""
        self._pages.publish(Terms(slot, GENERATION, kind, 7, 1_000_000, quota_bytes, 0, 0), 1)

    def start(self, slot: int) -> Puppet:
        """One more process, once it has its context and its code, and what these take is measured."""
        made = Puppet(self.softgpu, **self.environs[slot])
        self.started.append(made)
        made.do("sync")
        self.measure()
        return made

    def held(self, slot: int) -> int:
        """By the ledger."""
        return self.ledgers.held(0, slot)

    def truth(self, slot: int, what: str = "memory_bytes") -> int:
        """By the device's own books."""
        accounts = manage.inspect(self.softgpu, 0)["accounts"]
        return sum(account[what] for account in accounts if account["account"] == f"tenant{slot}")

    def denied(self, slot: int) -> int:
        return sum(line.denied for line in self.ledgers.lines(0) if line.slot == slot)

    def line(self, process: Puppet) -> LedgerLine:
        """What the ledger says of one process."""
        return next(line for line in self.ledgers.lines(0) if line.owner >> 42 == process.process.pid)

    def measure(self) -> None:
        """What the node does: the device is asked what each process holds."""
        lines = self.ledgers.lines(0)
        held = {
            client["pid"]: client["counters"]["memory_bytes"] for client in manage.inspect(self.softgpu, 0)["clients"]
        }
        for line in lines:
            self.ledgers.measured(0, line, held.get(line.owner >> 42, 0))

    def bury(self) -> None:
        """What the node does: the lines of those who are gone are cleared once the device has their memory back."""
        alive = {client["pid"] for client in manage.inspect(self.softgpu, 0)["clients"]}
        for line in self.ledgers.lines(0):
            pid = line.owner >> 42
            while pid in alive and not Path(f"/proc/{pid}").exists():
                pause(_LOOK_S)
                alive = {client["pid"] for client in manage.inspect(self.softgpu, 0)["clients"]}
            if pid not in alive:
                self.ledgers.clear(0, line.slot, line.line, line.owner)
        for slot in range(len(self.environs)):
            self.ledgers.sweep(0, slot)

    def close(self) -> None:
        for puppet in self.started:
            if puppet.process.poll() is None:
                puppet.kill()
        self.ledgers.close()
        self._pages.close()
