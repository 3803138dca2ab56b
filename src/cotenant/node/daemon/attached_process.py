"""A tenant's process that the kernel identified, and one that has attached its pages."""

from __future__ import annotations

import mmap
import os

from cotenant.gate.process_pages import PROCESS_BYTES, read_gate_page
from cotenant.gate.tenant_table import PAGE_BYTES
from cotenant.node.daemon.proc import ProcessTree, container_of, has_ended
from cotenant.node.model.peer import PeerIdentity
from cotenant.node.ports import ProcessPage, TenantKey
from cotenant.units.instant import Instant


class RootProcess:
    """A process that the kernel identified: a socket peer with its pidfd."""

    __slots__ = ("container", "group", "pid", "pidfd", "tenant", "uid")

    def __init__(self, tenant: TenantKey, peer: PeerIdentity, tree: ProcessTree) -> None:
        stat = tree.stat(peer.pid)
        self.tenant = tenant
        self.pid = peer.pid
        self.pidfd = os.dup(peer.pidfd)
        self.uid = peer.uid
        self.group = 0 if stat is None else stat.group
        self.container = container_of(peer.cgroup)

    @property
    def is_alive(self) -> bool:
        return not has_ended(self.pidfd)


class AttachedProcess(RootProcess):
    """A process with its pages, which all processes of its device map."""

    __slots__ = (
        *("_gate_copy", "_gate_page", "descriptor", "disconnected_ns", "epoch", "generation", "gpu", "index", "memory"),
    )

    def __init__(
        self, tenant: TenantKey, peer: PeerIdentity, tree: ProcessTree, page: ProcessPage, memory: mmap.mmap
    ) -> None:
        """Take over the descriptor and the mapping of the pages."""
        super().__init__(tenant, peer, tree)
        self.gpu = page.gpu
        self.index = page.index
        self.generation = page.generation
        self.epoch = page.epoch
        self.descriptor = page.descriptor
        self.memory = memory
        self.disconnected_ns: Instant | None = None
        self._gate_copy = b""
        self._gate_page: dict[str, int | list[int]] = {}

    def parse_gate_page(self, copy: bytes) -> dict[str, int | list[int]]:
        """Return the contents of a copy of its gate page, which the caller must not change.

        Several readers look at a page many times a second, and most pages have not changed since the last time.
        """
        if copy != self._gate_copy:
            self._gate_page = read_gate_page(copy)
            self._gate_copy = copy
        return self._gate_page

    def gate_page(self) -> dict[str, int | list[int]]:
        """Return a copy of its gate page; empty while the page does not name this process."""
        page = self.parse_gate_page(self.memory[:PAGE_BYTES])
        return page if page["generation"] == self.generation else {}

    def copy(self) -> bytes:
        """Return a copy of its pages, which it may change at any instant."""
        return self.memory[:PROCESS_BYTES]

    @property
    def page(self) -> ProcessPage:
        """Return the pages as the listener passes them on."""
        return ProcessPage(self.gpu, self.index, self.generation, self.epoch, self.descriptor)
