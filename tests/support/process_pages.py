"""Pages of processes as a hook writes them, and a registry of processes that needs no event loop."""

from __future__ import annotations

import os
import select
import struct
import subprocess
from collections.abc import Callable
from typing import Final

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.gate.process_pages import PROCESS_BYTES, ShareRole
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.gate.shared_pages import SealedPage
from cotenant.node.daemon.proc import ProcessTree
from cotenant.node.daemon.processes import LiveProcesses
from cotenant.node.model.admission import Reject
from cotenant.node.model.peer import PeerIdentity
from cotenant.node.ports import Attachment, ProcessPage, TenantKey

_LEDGER: Final = 4096
_SHARES: Final = _LEDGER + 64 + 128
_WORDS: Final = {
    "sequence": 0,
    "at_ns": 8,
    "quiet_ns": 16,
    "busy_ns": 32,
    "generation": 40,
    "wanted_ns": 64,
    "asked_ns": 96,
    "launches": 384,
    "device_ns": 584,
    "waits": 600,
    "ledger_generation": _LEDGER,
    "shares_used": _LEDGER + 8,
    **{
        name: _LEDGER + 64 + 8 * place
        for place, name in enumerate(
            (
                *("allocated_bytes", "own_bytes", "own_version", "managed_bytes", "begun", "ended", "denied"),
                *("denied_bytes", "wanted_bytes", "fault", "contexts", "code_bytes"),
            )
        )
    },
}
"""Offsets of words in the pages of a process: native/gate/pages.h and native/ledger/ledger.h."""


class HookPages:
    """The pages of one process, which the test writes in place of its hook."""

    def __init__(self) -> None:
        self.page = SealedPage.create("test-process", PROCESS_BYTES)

    def descriptor(self) -> int:
        """Return a new descriptor, as the node receives one."""
        return os.dup(self.page.descriptor)

    def open(self, generation: int) -> None:
        """Publish the generation that the node assigned."""
        self.write(generation=generation, ledger_generation=generation)

    def write(self, **words: int) -> None:
        for name, word in words.items():
            struct.pack_into("<Q", self.page.memory, _WORDS[name], word)

    def share(self, place: int, role: ShareRole | int, key: int, size_bytes: int) -> None:
        struct.pack_into("<QQQ", self.page.memory, _SHARES + 32 * place, int(role), key, size_bytes)
        self.write(shares_used=256)

    def close(self) -> None:
        self.page.close()


class FakeLoop:
    """Watches descriptors when the test asks for it."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[int], None]] = {}

    def watch(self, descriptor: int, when: int, ready: Callable[[int], None]) -> None:
        self.watched[descriptor] = ready

    def forget(self, descriptor: int) -> None:
        del self.watched[descriptor]

    def run_once(self) -> None:
        """Call the functions of all descriptors that are readable now."""
        poller = select.poll()
        for descriptor in self.watched:
            poller.register(descriptor, select.POLLIN)
        for descriptor, mask in poller.poll(0):
            self.watched[descriptor](mask)


class PageLog:
    """Records what the registry reports."""

    def __init__(self) -> None:
        self.pages: list[ProcessPage] = []
        self.left: list[TenantKey] = []
        self.on_page: Callable[[ProcessPage], None] = lambda _: None

    def page_added(self, page: ProcessPage) -> None:
        self.pages.append(page)
        self.on_page(page)

    def last_process_left(self, tenant: TenantKey) -> None:
        self.left.append(tenant)


def peer_of(process: subprocess.Popen[bytes] | int, cgroup: str = "", uid: int | None = None) -> PeerIdentity:
    """Return the identity of a live process as the listener determines it."""
    pid = process if isinstance(process, int) else process.pid
    return PeerIdentity(pid, os.pidfd_open(pid), os.getuid() if uid is None else uid, os.getgid(), cgroup)


class Registry:
    """A registry of processes with one device and a tenant in each of these slots: 0 is online, the others offline."""

    def __init__(self, slots: int = 3, tree: ProcessTree | None = None, quota_bytes: int = 0) -> None:
        self.grants, self.tables = LiveGrantPages(), LiveTenantTables()
        self.ledgers = LiveLedgers(self.grants)
        self.loop, self.log, self.reports = FakeLoop(), PageLog(), list[str]()
        self.now = 0
        self.processes = LiveProcesses(
            self.loop,
            (self.grants, self.tables, self.ledgers),
            self.reports.append,
            tree=tree,
            clock=lambda: self.now,
        )
        self.processes.listen(self.log)
        self.hooks: list[HookPages] = []
        entries = []
        for slot in range(slots):
            kind, priority = (Kind.OFFLINE, 7) if slot else (Kind.ONLINE, 2)
            self.grants.publish(Grant(slot, 1, kind, priority, 0, quota_bytes, 0, 0), 0)
            self.ledgers.grant(0, slot, 1)
            entries.append(GateEntry(slot, 1, priority, online=not slot))
        self.tables.set_table(0, GateRules(entries=tuple(entries)))

    def attach(
        self,
        slot: int,
        process: subprocess.Popen[bytes] | int | None = None,
        previous: tuple[int, int] | None = None,
        cgroup: str = "",
    ) -> tuple[HookPages, Attachment]:
        """Attach a process, the test's own by default, with new pages that its hook has opened."""
        hook = HookPages()
        self.hooks.append(hook)
        peer = peer_of(os.getpid() if process is None else process, cgroup)
        try:
            attached = self.processes.attach(0, (slot, 1), peer, hook.descriptor(), previous)
        finally:
            os.close(peer.pidfd)
        assert not isinstance(attached, Reject), attached.detail
        hook.open(attached.generation)
        return hook, attached

    def close(self) -> None:
        self.processes.close()
        self.grants.close()
        self.tables.close()
        for hook in self.hooks:
            hook.close()
