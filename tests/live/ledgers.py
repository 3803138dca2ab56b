"""How do tests give tenants a quota on a soft GPU without a node?"""

from __future__ import annotations

from pathlib import Path

from cotenant.domain.ledger import LedgerLine
from cotenant.domain.tenant import Kind, Terms
from cotenant.live.ledger import LiveLedgers, path_of
from cotenant.live.page import SLOT_VARIABLE, LivePages
from cotenant.live.softgpu import manage
from tests.live.hooks import hook_before
from tests.live.puppets import Puppet

GENERATION = 5
SLOTS = 3


class Tenants:
    """Tenants of one soft GPU, by their slots; their processes do what they are told."""

    def __init__(self, softgpu: Path, home: Path) -> None:
        self.softgpu = softgpu
        self.ledgers = LiveLedgers(home / "pages", SLOTS)
        self._pages = LivePages(home / "pages")
        self._hooks = [hook_before(softgpu, home / f"hook{slot}") for slot in range(SLOTS)]
        self._puppets: list[Puppet] = []
        for slot, hook in enumerate(self._hooks):
            self.ledgers.grant(0, slot, GENERATION)
            self.allow(slot, 0)
            (hook.records / "ledger").symlink_to(path_of(home / "pages", 0))
            (hook.records / "terms").symlink_to(home / "pages" / f"terms-{slot:04d}")

    def allow(self, slot: int, quota_bytes: int, kind: Kind = Kind.OFFLINE) -> None:
        """Say the quota of a tenant, at any time; 0 is none."""
        self._pages.publish(Terms(slot, GENERATION, kind, 5, 0, quota_bytes, 0, 0), 1)

    def process(self, slot: int) -> Puppet:
        """One more process of a tenant; its account at the device is its tenant's, which judges the ledger."""
        hook = self._hooks[slot]
        told = {SLOT_VARIABLE: f"{slot}/{GENERATION}", "SOFTGPU_ACCOUNT": f"tenant-{slot}"}
        made = Puppet(self.softgpu, **{**hook.environ("shim"), **told})
        self._puppets.append(made)
        return made

    def held(self, slot: int) -> int:
        """What the ledger says that a tenant holds."""
        return self.ledgers.held(0, slot)

    def truth(self, slot: int) -> int:
        """What the device says that it does."""
        return self._account(slot, "memory_bytes")

    def peak(self, slot: int) -> int:
        """The most that it ever held, by the device."""
        return self._account(slot, "memory_peak_bytes")

    def _account(self, slot: int, word: str) -> int:
        books = manage.inspect(self.softgpu, 0)
        found = [account[word] for account in books["accounts"] if account["account"] == f"tenant-{slot}"]
        return int(found[0]) if found else 0

    def line(self, process: Puppet) -> LedgerLine:
        """The line of a process."""
        return next(line for line in self.ledgers.lines(0) if line.owner >> 42 == process.process.pid)

    def bury(self) -> None:
        """Clear the lines of all who are gone, as a node does once the device has their memory back."""
        living = {puppet.process.pid for puppet in self._puppets if puppet.process.poll() is None}
        for line in self.ledgers.lines(0):
            if line.owner >> 42 not in living:
                self.ledgers.clear(0, line.slot, line.line, line.owner)

    def close(self) -> None:
        for puppet in self._puppets:
            puppet.kill()
        self.ledgers.close()
        self._pages.close()
